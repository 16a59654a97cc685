"""The stages of a series of oneDNN's kernels, and its memory. Shared by rewrites of frozen steps; no rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.compiler.lowering.call_memory import workspace_of
from foreshape.compiler.lowering.fusion.graph import dims_of, fused_as, spec_of
from foreshape.compiler.lowering.kernel_calls import KernelCall, Value, values_of
from foreshape.core.data_class import data_class, field
from foreshape.core.dims import Size, evaluate, maximum, product, reaches, symbols_of
from foreshape.core.spec import FP32
from foreshape.language.operator.byte_computations import GridRounding, RangeRounding
from foreshape.machine.kernels.onednn_grids import ALIGNMENT
from foreshape.machine.kernels.onednn_ragged import FILLED, filling_bytes
from foreshape.machine.kernels.onednn_stages import Same
from foreshape.machine.kernels.onednn_texts import Attended, stretches

_TRIED = 64
"""The values of each symbol for comparing two sizes."""


@data_class()
class SeriesStage:
    """An instruction as a part of a series.

    ``stage``: its computation on ``sources``; None for a packed kernel (`KernelCall.packed`). ``number``: its result among the instruction's, if each of
    several has a stage.
    """

    of: KernelCall
    sources: list[Value]
    stage: Any = None
    before: list[SeriesStage] = field(default_factory=list["SeriesStage"])
    """The stages whose work it does too, in order."""
    slot: int | None = None
    number: int = 0
    rounding: KernelCall | None = None
    """The call that rounds its result."""

    @property
    def result(self) -> Value:
        return values_of(self.of.results)[self.number] if self.rounding is None else values_of(self.rounding.results)[0]

    @property
    def calls(self) -> list[KernelCall]:
        """Return the calls whose work it does."""
        return [self.of, *(stage.of for stage in self.before), *([] if self.rounding is None else [self.rounding])]


def attention_of(s: SeriesStage) -> Attended | None:
    """Return the attention of a stage, if any."""
    return s.stage if isinstance(s.stage, Attended) else None


def rows_of(s: SeriesStage) -> Value | None:
    """Return the offsets of the ragged rows of a stage, None for others."""
    return s.result.lod


def only_rounds(s: SeriesStage) -> bool:
    """Return True if a stage does nothing but round its operand."""
    return fused_as(s.of, GridRounding) is not None


def probed_bytes(value: Value) -> int:
    """Return the bytes of a value where each symbol is `_TRIED`, for comparing two; 0 for one that is no dense tensor."""
    spec = spec_of(value)
    return 0 if spec is None else _probed(spec.nbytes)


def _probed(size: Size) -> int:
    return size if isinstance(size, int) else evaluate(size, dict.fromkeys(symbols_of(size), _TRIED))


def rounds_by_range(s: SeriesStage) -> bool:
    """Return True if a stage rounds its operand by a range found in the run."""
    return fused_as(s.of, RangeRounding) is not None


def give_slots(run: list[SeriesStage], inside: dict[Value, int], out: Sequence[Value]) -> list[list[Size]]:
    """Give each inner result a part of a piece of memory; return the sizes of the results in each part."""
    root = {s.result: s.result for s in run}
    for s in run:
        if isinstance(s.stage, Same):
            source = root.get(s.sources[0])
            if source is None or s.result in out or source in out:
                s.stage = s.stage._replace(copies=True)
            else:
                root[s.result] = source
    last = {root[v]: index for index, s in enumerate(run) for v in (*s.sources, s.result) if v in root}
    slots: list[list[Size]] = []
    probe: list[int] = []
    free: set[int] = set()
    for index, s in enumerate(run):
        value = s.result
        if root[value] is not value:
            s.slot = run[inside[root[value]]].slot
        elif value not in out:
            spec = spec_of(value)
            size: Size = 0 if spec is None else spec.nbytes + (3 * ALIGNMENT if rounds_by_range(s) else 0)
            tried = _probed(size)
            fits = sorted((probe[k] < tried, abs(probe[k] - tried), k) for k in free)
            if fits:
                s.slot = fits[0][2]
                free.discard(s.slot)
            else:
                s.slot = len(slots)
                slots.append([])
                probe.append(0)
            probe[s.slot] = max(probe[s.slot], tried)
            if size not in slots[s.slot]:
                slots[s.slot].append(size)
        for v in {root[v] for v in (*s.sources, value) if v in root}:
            slot = run[inside[v]].slot
            if last[v] == index and slot is not None:
                free.add(slot)
    return slots


def series_bytes(run: list[SeriesStage], slots: list[list[Size]], outside: Sequence[Value], out: Sequence[Value], half: bool = False) -> Size:
    """Return the bytes of a series beside its operands and results.

    Args:
        slots: as `give_slots` returns them.
        outside, out: its operands and results.
        half: its products are of bf16.
    """
    pieces: Size = sum((maximum(*sizes) for sizes in slots), start=0)
    works = [maximum(*map(workspace_of, s.calls)) for s in run]
    total = pieces + maximum(*set(works)) if rows_of(run[0]) is None else _ragged_bytes(run, works, pieces, [*outside, *out])
    return total + _between(run, half) + ALIGNMENT * (len(slots) + len(outside) + 1)


def _between(run: list[SeriesStage], half: bool) -> Size:
    """Return the most bytes for fp32 numbers made of a stage's bytes or bf16, or made into these."""
    rounded = (
        {v for s in run for v in (*s.sources, s.result)} if half else {s.result for s in run if s.rounding is not None or only_rounds(s) or rounds_by_range(s)}
    )
    read = [[spec.nbytes + ALIGNMENT for v in (*s.sources, s.result) if v in rounded and (spec := spec_of(v)) is not None] for s in run]
    return maximum(0, *{sum(sizes, start=0) for sizes in read})


def _ragged_bytes(run: list[SeriesStage], works: Sequence[Size], pieces: Size, copied: Sequence[Value]) -> Size:
    """Return the bytes of a series of ragged rows, whole or by parts.

    Args:
        works: the workspace of the kernels of each stage.
        pieces: the bytes of its values in one piece of memory.
        copied: its operands and results.
    """
    attentions = [attention_of(s) for s in run]
    work = maximum(0, *{w for w, attention in zip(works, attentions, strict=True) if attention is None})
    total = pieces + work + _filling(copied, [s.result for s in run if s.slot is not None])
    heads = max((a.heads for a in attentions if a is not None), default=0)
    if not heads:
        return total
    spec = spec_of(run[0].result)
    assert spec is not None and spec.lod is not None  # of ragged rows
    rows, count = spec.known_dims[0], spec.lod.counts[-1]
    scores = (reaches(count, 1) - reaches(count, 2)) * (1 - reaches(rows, FILLED)) * heads * rows * rows * FP32.itemsize
    return maximum(total + scores, *_by_parts(run, works))


def _filling(copied: Sequence[Value], inner: Sequence[Value]) -> Size:
    """Return the bytes for rows behind some operands and results, and behind the values in between."""
    dims = [dims_of(v) or (0,) for v in (*copied, *inner)]
    of_row = [product(d[1:]) * FP32.itemsize for d in dims]
    return filling_bytes(dims[0][0], sum(of_row[: len(copied)], start=0), sum(of_row[len(copied) :], start=0))


def _by_parts(run: list[SeriesStage], works: Sequence[Size]) -> list[Size]:
    """Return the bytes of each part: its own values in a piece of memory, and all living values of others."""
    places = {s.result: number for number, s in enumerate(run)}
    last = {v: number for number, s in enumerate(run) for v in s.sources if v in places}
    out: list[Size] = []
    for begin, end in stretches([attention_of(s) is not None for s in run]):
        living: Size = 0
        slots: dict[int, set[Size]] = {}
        inner: list[Value] = []
        for s in run:
            place, read = places[s.result], last.get(s.result, -1)
            if s.slot is None or place >= end or read < begin or (spec := spec_of(s.result)) is None:
                continue
            if place >= begin and read < end:
                slots.setdefault(s.slot, set()).add(spec.nbytes)
                inner.append(s.result)
            else:
                living = living + spec.nbytes
        piece = sum((maximum(*sizes) for sizes in slots.values()), start=0)
        steps = run[begin:end]
        copied = [v for v in dict.fromkeys(v for s in steps for v in (*s.sources, s.result)) if v not in inner]
        filling = 0 if attention_of(steps[0]) is not None else _filling(copied, inner)
        out.append(living + piece + filling + maximum(0, *{*works[begin:end]}) + ALIGNMENT * len(slots))
    return out
