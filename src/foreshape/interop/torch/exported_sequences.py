"""Ragged inputs of exported code: two plain tensors, the rows and the offsets of their sequences.

Written code asks offsets for numbers: of rows, the longest sequence. In a trace the first is the size of the rows, and the second a size of its own, known at
the run.
"""

from __future__ import annotations

import linecache
import re
import sys
import traceback
from collections.abc import Generator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.core.dims import Dim, evaluate, symbols_of
from foreshape.core.values.torch_private import private
from foreshape.interop.onnx_comparison import drawn_feed
from foreshape.interop.torch.own_code import own_code
from foreshape.interop.torch.replaced import exports_here, replaced
from foreshape.interop.torch.untyped_torch import torch
from foreshape.interop.torch.write.numbers_code import one_symbol
from foreshape.language.program import Program

_SEVERAL: Final = re.compile(r"^(?:\(-1\) \+ )?L\['\w+_offsets\w*'\](?:\[\d+\])?\.size\(\)\[0\] >= [23]$")
"""A trace's note that there are two sequences or more."""


def inputs_of(program: Program, feeds: Sequence[str], sizes: Mapping[str, Sequence[int]], seed: int) -> tuple[Any, ...]:
    """Return drawn inputs of written code: an input each, a ragged one as rows, with the offsets behind the first of its sequences. Some are empty."""
    drawn = drawn_feed(program, sizes, seed)
    variables = program.global_block.vars
    dims = [(d, n) for name in feeds for d, n in zip(variables[name].spec.known_dims, sizes[name], strict=True) if isinstance(d, Dim)]
    known = {name: n // per for d, n in dims for name, per in (one_symbol(d),) if name}
    given: list[Any] = []
    sources: set[str] = set()
    for name in feeds:
        given.append(torch.from_numpy(drawn[name]))
        lod = variables[name].spec.lod
        if lod is None or lod.source in sources:
            continue
        sources.add(lod.source)
        total, levels = sizes[name][0], list[Any]()
        for count in reversed(lod.counts):
            for symbol in symbols_of(count):
                known.setdefault(symbol, total // 3 + 2 if total > 12 else 1)
            levels.append(_offsets(total, evaluate(count, known), seed))
            total = len(levels[-1]) - 1
        given.append(levels[0] if len(levels) == 1 else levels[::-1])
    return tuple(given)


def _offsets(total: int, count: int, seed: int) -> Any:
    """Return the offsets of ``count`` sequences of ``total`` parts: the same for the same numbers."""
    import numpy

    cuts = numpy.sort(numpy.random.RandomState(seed).randint(0, total + 1, max(count - 1, 0)))
    return torch.tensor([0, *cuts.tolist(), *[total] * (count > 0)])


def open_sizes(program: Program, feeds: Sequence[str], axes: Mapping[str, Sequence[int]]) -> tuple[Any, ...]:
    """Return for each of `inputs_of` its open axes, in torch's words."""
    size = torch.export.Dim.DYNAMIC
    given: list[Any] = []
    sources: set[str] = set()
    for name in feeds:
        given.append(dict.fromkeys(axes[name], size))
        lod = program.global_block.vars[name].spec.lod
        if lod is not None and lod.source not in sources:
            sources.add(lod.source)
            levels = [{} if isinstance(count, int) else {0: size} for count in lod.counts]
            given.append(levels[0] if len(levels) == 1 else levels)
    return tuple(given)


def take_single_sequences(found: Any) -> None:
    """Leave out a trace's notes that offsets are of two sequences or more, as at the traced sizes."""
    found._guards_code = [guard for guard in found._guards_code if not _SEVERAL.search(guard)]
    for symbol, bounds in found.range_constraints.items():
        if bounds.lower == 3:
            found.range_constraints[symbol] = type(bounds)(2, bounds.upper)


@contextmanager
def traced_offsets(module: Any) -> Generator[None]:
    """Let a trace go through the offsets of written code, with open sizes."""
    names = vars(sys.modules[type(module).__module__])
    offsets: Any = names.get("Offsets")
    if offsets is None:
        yield
        return
    with replaced(offsets, **{name: property(made) for name, made in _TRACED.items()}), own_code(module, _open_length):  # Python's own is a number
        yield


def _open_length(_: Any) -> dict[str, Any]:
    return {"len": _length}


def _length(of: Any) -> Any:
    return of.shape[0] if exports_here() and isinstance(of, torch.Tensor) else len(of)


def _size(number: Any) -> Any:
    """Return a whole number of a tensor as a size of its own."""
    made = number.item()
    private.check(made >= 0)
    return made


def _rows(of: Any) -> Any:
    return of.kept("rows", lambda: _size(of.last[-1]))


def _longest(of: Any) -> Any:
    return of.kept("longest", lambda: _size(torch.cat([of.lengths, of.lengths.new_zeros(1)]).max()))


def _segments(of: Any) -> Any:
    return of.kept("segments", lambda: torch.repeat_interleave(of.lengths, output_size=of.rows))


def _positions(of: Any) -> Any:
    return of.kept("positions", lambda: torch.arange(of.rows, device=of.last.device) - of.last[:-1].index_select(0, of.segments))


def _reversal(of: Any) -> Any:
    last = of.last
    return of.kept("reversal", lambda: (last[:-1] + last[1:] - 1).index_select(0, of.segments) - torch.arange(of.rows, device=last.device))


_TRACED: Final = {"rows": _rows, "longest": _longest, "segments": _segments, "positions": _positions, "reversal": _reversal}


def refused_op(failed: BaseException, module: Any, program: Program) -> str:
    """Return in words the operator at whose line a trace failed, and the line; empty if the error names none."""
    file = sys.modules[type(module).__module__].__file__
    at = [frame.lineno for frame in traceback.extract_tb(failed.__traceback__) if frame.filename == file and frame.name == "forward"]
    if not at:
        return ""
    above, line = (linecache.getline(str(file), (at[-1] or 0) - before).strip() for before in (1, 0))
    comment = line.partition("  # ")[2] or (above[2:] if above.startswith("# ") else "")
    results = {one.split(":")[0].strip() for one in comment.split(";")}
    op = next((op for op in program.all_ops() if results & {*op.output_names()}), None)
    return f"{f'{op.type}, ' if op is not None else ''}at {line.partition('  #')[0].rstrip('(')}: "
