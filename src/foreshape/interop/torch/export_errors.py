"""Refusals of torch.export in words: the line of the network's code, what is wrong there, and what to change."""

from __future__ import annotations

import linecache
import os
import re
import traceback
from typing import Any, Final

from foreshape.errors import SchemaError
from foreshape.interop.torch.node_sites import TORCH
from foreshape.program.call_site import call_site

_OURS: Final = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__)))) + os.sep
_CALLED: Final = re.compile(r'File "(.*?)", line (\d+), in')
_HINTS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"data-dependent|GuardOnDataDependent|DataDependentOutput|\.item\(\)|nonzero",
        "what the code does there depends on values, which are not known before a run: torch.cond or torch.where choose by values",
    ),
    (r"Constraints violated|ConstraintViolation|specializ", "a size that was to be open is fixed by the code: leave its axis out of dynamic"),
    (r"dynamic_shapes|dynamic shapes", "dynamic must have an entry for each argument of forward, in its nesting"),
    (r"input type|Unsupported type|pytree|register_dataclass", "inputs and results are tensors, in tuples, lists and dicts"),
    (r"mutat|in-?place|functional", "the code changes what may not be changed in an exported network: give it a copy"),
)


def refused_export(failed: BaseException | None) -> SchemaError:
    """Return the error about a module refused by torch.export, at the user's line, with torch's own words."""
    text = str(failed).strip()
    words = next((line.strip() for line in text.splitlines() if line.strip()), "it has no words for it")
    at = _line(failed, text)
    hint = next((told for pattern, told in _HINTS if re.search(pattern, f"{type(failed).__name__} {text}")), "")
    said = f"torch.export refuses the module: {words[:600]}"
    if at is not None:
        said += f"\n    at {linecache.getline(*at).strip()}    {os.path.basename(at[0])}:{at[1]}"
    error = SchemaError(said + (f"\n    {hint}" if hint else ""))
    return error.told(required=hint or None, seen=words, site=None if at is None else call_site((*at, "forward")))


def _line(failed: BaseException | None, text: str) -> tuple[str, int] | None:
    """Return the innermost line outside of torch and of this package: of the code that ran, else the last one that torch names."""
    frames: list[Any] = list(traceback.extract_tb(failed.__traceback__)) if failed is not None else []
    found = [(frame.filename, int(frame.lineno or 0)) for frame in frames] or []
    named = [(file, int(line)) for file, line in _CALLED.findall(text)]
    for lines in (found, named):
        own = [one for one in lines if not one[0].startswith((TORCH, _OURS)) and os.sep in one[0] and os.path.isfile(one[0])]
        if own:
            return own[-1]
    return None
