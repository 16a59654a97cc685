"""Refusals of torch.export in words: the line of the network's code, what is wrong there, and what to change."""

from __future__ import annotations

import importlib
import inspect
import linecache
import logging
import os
import re
import sysconfig
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.core.package_folder import PACKAGE
from foreshape.errors import SchemaError
from foreshape.interop.torch.jagged_tensors import JaggedRefused
from foreshape.interop.torch.node_sites import TORCH
from foreshape.interop.torch.replaced import exports_here, replaced
from foreshape.interop.torch.sparse_matrices import SparseRefused
from foreshape.interop.torch.untyped_torch import torch
from foreshape.language.program.call_site import call_site

_CALLED: Final = re.compile(r'File "(.*?)", line (\d+), in')
_HINTS: Final[tuple[tuple[str, str], ...]] = (
    (
        r"does not have a field with name '__obj_flatten__'|[Qq]uantized",
        "quantized modules of torch.ao have no form here: give the one before that",
    ),
    (r"ScriptModule", "a module of torch.jit has no code to be exported: give the module that it was made of"),
    (r"RaggedSize", "the size of a ragged axis is no number: x.offsets().diff() has the length of each sequence, and x.values() all rows"),
    (r"\.numpy\(\)|numpy", "NumPy's functions are not recorded: the same functions of torch are"),
    (
        r"data-dependent|GuardOnDataDependent|DataDependentOutput|\.item\(\)|nonzero|argument 'size' failed to unpack|FakeTensor.*to a Python number",
        "what the code does there depends on values, which are not known before a run: torch.cond or torch.where choose by values",
    ),
    (r"Constraints violated|ConstraintViolation|specializ", "a size that was to be open is fixed by the code: leave its axis out of dynamic"),
    (r"cannot be solved|unable to solve", "the code asks of sizes what torch cannot solve: leave an axis out of dynamic"),
    (r"dynamic_shapes|dynamic shapes", "dynamic must have an entry for each argument of forward, in its nesting"),
    (r"input type|Unsupported type|pytree|register_dataclass|not a known type", "inputs and results are tensors, in tuples, lists and dicts"),
    (r"same device", "the module and its inputs must lie on one device: module.to(device)"),
    (r"found a fake tensor in the exported", "torch.autograd.grad reads a tensor within an operator that is kept whole here, as a dropout"),
    (r"mutat|in-?place|functional", "the code changes what may not be changed in an exported network: give it a copy"),
)
_ADVICE: Final = re.compile(
    r"\s*(?:\(unhinted: [^()]*(?:\([^()]*\)[^()]*)*\)|\(Size-like symbols: [^)]*\)|To register .*|If this type holds tensors.*|Maybe try .*)"
)
"""torch's words about its own functions, which are not called by the user."""
_STANDARD: Final = sysconfig.get_paths()["stdlib"] + os.sep


def refused_export(failed: BaseException | None, symbols: Mapping[str, str] | None = None) -> SchemaError:
    """Return the error about a module refused by torch.export, at the user's line, with torch's own words.

    Args:
        failed: torch's error.
        symbols: torch's symbol -> the name, input and axis of the size.
    """
    text = str(failed).strip()
    words = next((line.strip() for line in text.splitlines() if line.strip()), "it has no words for it")
    words = _ADVICE.sub("", words)[:600]
    known = {symbol: told for symbol, told in (symbols or {}).items() if re.search(rf"\b{symbol}\b", words)}
    words = re.sub(r"\b[su]\d+\b", lambda found: known.get(found[0], found[0]).split(",")[0], words)
    at = _line(failed, text)
    refused_here = isinstance(failed, (JaggedRefused, SparseRefused))
    hint = "" if refused_here else next((told for pattern, told in _HINTS if re.search(pattern, f"{type(failed).__name__} {text}")), "")
    refusal = f"{'the module has no form here' if refused_here else 'torch.export refuses the module'}: {words}"
    refusal += "".join(f"\n    {told}" for told in known.values())
    if at is not None:
        refusal += f"\n    at {linecache.getline(*at).strip()}    {os.path.basename(at[0])}:{at[1]}"
    error = SchemaError(refusal + (f"\n    {hint}" if hint else ""))
    return error.told(required=hint or None, seen=words, site=None if at is None else call_site((*at, "forward")))


def _line(failed: BaseException | None, text: str) -> tuple[str, int] | None:
    """Return the innermost line outside of torch, Python and this package: of the code run, else the last one named by torch."""
    frames: list[Any] = list(traceback.extract_tb(failed.__traceback__)) if failed is not None else []
    found = [(frame.filename, int(frame.lineno or 0)) for frame in frames] or []
    named = [(file, int(line)) for file, line in _CALLED.findall(text)]
    for lines in (found, named):
        own = [one for one in lines if os.sep in one[0] and not _foreign(one[0]) and os.path.isfile(one[0])]
        if own:
            return own[-1]
    return None


def _foreign(file: str) -> bool:
    return file.startswith((TORCH, PACKAGE)) or f"{os.sep}sympy{os.sep}" in file or (file.startswith(_STANDARD) and "-packages" not in file)


def check_inputs(module: Any, inputs: Sequence[Any], leaves: Sequence[Any]) -> None:
    """Check that a module takes the inputs, before torch is asked.

    Raises:
        SchemaError: it is no module; forward takes other arguments; an input is neither a tensor nor a number, a text or None.
    """
    if not isinstance(module, torch.nn.Module):
        raise SchemaError.must("module", "an nn.Module, an ExportedProgram or the path of a .pt2", f"a {type(module).__name__}")
    for leaf in leaves:
        if not isinstance(leaf, (torch.Tensor, bool, int, float, complex, str, type(None), torch.dtype, torch.device)):
            kind = f"{type(leaf).__module__}.{type(leaf).__qualname__}".removeprefix("builtins.")
            advice = "; torch.as_tensor makes one of an array" if hasattr(leaf, "__array__") else ""
            raise SchemaError.must("example_inputs", f"tensors, numbers, texts and None, in tuples, lists and dicts{advice}", f"a {kind}")
        if isinstance(leaf, torch.Tensor) and leaf.is_nested:
            seen = f"a nested tensor of {leaf.size(0)} parts of the layout {leaf.layout}"
            raise SchemaError.must("example_inputs", "nested tensors of the layout torch.jagged, ragged in axis 1, or dense ones", seen)
        if isinstance(leaf, torch.Tensor) and leaf.layout is not torch.strided:
            raise SchemaError.must("example_inputs", "dense tensors: x.to_dense() makes one", f"one of the layout {leaf.layout}")
    if isinstance(module, torch.jit.ScriptModule):
        return  # refused by torch, and its forward has no signature
    signature = inspect.signature(module.forward)
    try:
        signature.bind(*inputs)
    except TypeError as wrong:
        named = [p.name for p in signature.parameters.values() if p.kind is p.KEYWORD_ONLY and p.default is p.empty]
        keyword = f"; {', '.join(named)} can be given by name alone: import a module whose forward takes it by place, or gives it" if named else ""
        raise SchemaError(f"example_inputs must be the arguments of forward{signature}, by place; seen {len(inputs)}, and {wrong}{keyword}") from None


@contextmanager
def quiet() -> Generator[None]:
    """Keep torch from printing an error beside raising it: the graph so far, and logged tracebacks, unless ``TORCH_LOGS`` asks for them."""
    trace: Any = importlib.import_module("torch.export._trace")
    logger = logging.getLogger("torch")
    level = logger.level
    if "TORCH_LOGS" in os.environ:
        yield
        return
    logger.setLevel(logging.CRITICAL)
    try:
        with replaced(trace, print=_no_print):
            yield
    finally:
        logger.setLevel(level)


def _no_print(*given: Any, **named: Any) -> None:
    if not exports_here():
        print(*given, **named)
