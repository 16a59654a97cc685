"""`SkippedCode`: a function left to Python as a whole by torch, as it cannot end a graph at the place of an untraced call."""

from __future__ import annotations

import importlib
import time
from collections.abc import Iterable
from types import CodeType
from typing import Any, Final, NamedTuple

from foreshape.language.program.call_site import CallSite

_RESUMED: Final = "torch_dynamo_resume_in_"
"""Before the name of a function: torch's name of its rest behind a break."""
_FORGOTTEN: Final = [0.0]
"""The time, in microseconds, at which torch last forgot its graphs."""


class SkippedCode(NamedTuple):
    """A function left to Python.

    Attributes:
        reason: in torch's words.
        site: the untraced line, or the function's first one.
    """

    reason: str
    site: CallSite


def skipped_among(codes: Iterable[CodeType]) -> list[SkippedCode]:
    """Return the functions left to Python among some and the rests of these behind breaks, as far as torch's own list of late compilations tells.

    Args:
        codes: their code.
    """
    places = {(code.co_filename, code.co_name) for code in codes}
    metrics: Any = importlib.import_module("torch._dynamo.utils")
    skipped: dict[SkippedCode, None] = {}
    for entry in metrics.get_compilation_metrics():
        name = str(entry.co_name)
        function = name.removeprefix(_RESUMED).rpartition("_at_")[0] if name.startswith(_RESUMED) else name
        if entry.has_guarded_code or not entry.fail_reason or (entry.co_filename, function) not in places or (entry.start_time_us or 0) < _FORGOTTEN[0]:
            continue
        file, line = entry.fail_user_frame_filename or entry.co_filename, entry.fail_user_frame_lineno or entry.co_firstlineno
        skipped[SkippedCode(str(entry.fail_reason).strip(), CallSite(file, line, function if function == name else f"the rest of {function}"))] = None
    return [*skipped]


def forget_skipped() -> None:
    """Leave out the functions listed by torch so far, as it forgets its graphs."""
    _FORGOTTEN[0] = time.time_ns() / 1000
