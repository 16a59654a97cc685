"""A whole encoder of a lone text as one series: its products and normalizations row by row, and its attention between them.

Of several texts the kernels between two attentions are a series each, and torch's kernel computes the attention. For one text the calls would take as long as
the kernels.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from time import perf_counter
from typing import Any, NamedTuple

from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ShapeError
from foreshape.machine.kernels.kept_kernels import drop_oldest
from foreshape.machine.kernels.onednn_attention import HeadedAttention
from foreshape.machine.kernels.onednn_bytes import turned
from foreshape.machine.kernels.onednn_chain import ChainLine, KernelTime, Series, SeriesPart
from foreshape.machine.kernels.onednn_grids import ALIGNMENT, HALF, Grid, aligned
from foreshape.machine.kernels.onednn_library import NOTHING_AFTER, RESULT, SOURCE, STEP_OF, After, Handle, Library, Memory, Primitive, Unimplemented
from foreshape.machine.kernels.onednn_packed import FEW, DescribedPrimitive, described, row_major_strides
from foreshape.machine.kernels.onednn_ragged import FILLED, RaggedSeries, lacking_of, with_zeros
from foreshape.machine.kernels.onednn_steps import ChainKernel, PlannedStep

MOST = 1 << 13
"""So many primitives are kept for lengths of texts, each with its places in memory: some 50 MiB."""


_UNKNOWN: Any = object()


class Attended(NamedTuple):
    """Softmax(Q K' * scale) V of rows ``[rows, heads * columns]``, for each head."""

    heads: int
    scale: float

    def described(self, library: Library, dims: Sequence[Sequence[int]]) -> DescribedPrimitive:
        """Refuse: it is of the rows of a text, not of all."""
        raise Unimplemented("an attention is not computed row by row")

    def primitives(self, library: Library, rows: int, width: int) -> list[DescribedPrimitive]:
        """Return its computation for so many rows of this width in memory: products with the keys, softmax, products with the values."""
        heads, columns = self.heads, width // self.heads
        dims, pairs = (heads, rows, columns), (heads, rows, rows)
        lying, transposed = Memory(dims, (columns, width, 1)), Memory((heads, columns, rows), (columns, 1, width))
        scores, threads = Memory(pairs, row_major_strides(pairs)), 1 if heads * rows * rows * columns < FEW else None
        first = Primitive("product", (lying, transposed, None, scores, After(None, (), ((SOURCE, 0),))), threads)
        second = Primitive("softmax", (scores, 2, NOTHING_AFTER), threads)
        third = Primitive("product", (scores, lying, None, lying, NOTHING_AFTER), threads)
        return [
            described(library, first, {STEP_OF | SOURCE: library.number(self.scale)}, pairs, row_major_strides(pairs)),
            described(library, second, {}, pairs, row_major_strides(pairs)),
            described(library, third, {}, dims, (columns, width, 1)),
        ]


class TextLine(ChainLine):
    """The kernels of a series for a text of so many rows, possibly fewer than its operands have.

    Args:
        kept: the primitives of all lines, by their sizes. Another length has an attention of its own alone.
    """

    def __init__(
        self,
        library: Library,
        steps: Sequence[ChainKernel],
        given: Sequence[Tensor],
        out: Sequence[int],
        rows: int,
        kept: dict[Hashable, Any],
        in_half: bool = False,
    ) -> None:
        self._rows, self._kept = rows, kept
        self._own: dict[Hashable, Any] = {}  # the attentions, shared by layers
        super().__init__(library, steps, given, out, in_half)

    def plan(self, step: ChainKernel, dims: Sequence[tuple[int, ...]], grids: Sequence[Any], number: int, leaves: bool) -> PlannedStep:
        operand_dims, threads = [dims[s] for s in step.sources], self.onednn.threads()
        if not isinstance(step.stage, Attended):
            step_plan = self._kept.get((number, *operand_dims, threads))
            if step_plan is None:
                step_plan = self._kept[number, *operand_dims, threads] = super().plan(step, dims, grids, number, leaves)
            return step_plan
        (rows, width), heads = operand_dims[0], step.stage.heads
        if any(isinstance(grids[s], Grid) for s in step.sources):
            raise Unimplemented("an attention takes no bytes")
        if any(d != operand_dims[0] for d in operand_dims) or width % heads or not 0 < self._rows <= rows:
            raise ShapeError.must("Q, K and V", f"[{self._rows} or more, {heads} equal parts]", f"{[list(d) for d in operand_dims]}")
        attention = self._own.get((step.stage, width))
        if attention is None:
            attention = self._own[step.stage, width] = step.stage.primitives(self.onednn, self._rows, width)
            self._own.update((d.description, self.onednn.primitive(d.description)) for d in attention)
        scores, softmax, out = attention
        room = -(-self.onednn.nbytes(scores.orders[RESULT]) // ALIGNMENT) * ALIGNMENT
        primitives: list[tuple[DescribedPrimitive, tuple[int, ...], int]] = []
        places: list[int] = []
        for source in step.sources:  # it sums weights of a softmax, and reads fp32
            if grids[source] is HALF:
                primitives.append((turned(self.onednn, operand_dims[0], HALF, None), (source,), -1 - room))
                places, room = [*places, -1 - room], room + aligned(4 * rows * width)
            else:
                places.append(source)
        q, k, v = places
        primitives += [(scores, (q, k), -1), (softmax, (-1,), -1), (out, (-1, v), number)]
        return PlannedStep(primitives, operand_dims[0], None, room)

    def primitive(self, description: Handle) -> Handle:
        handle = self._own.get(description) or self._kept.get(description)
        if handle is None:
            handle = self._kept[description] = super().primitive(description)
        return handle


class TextSeries(Series):
    """A series of ragged rows with attention within sequences between its other steps.

    Its last operand are the offsets of the sequences. The function ``otherwise`` of an attention takes them too.
    """

    def __init__(self, library: Library, steps: Sequence[ChainKernel], count: int, in_half: bool = False) -> None:
        super().__init__(library, steps, count, in_half)
        self._kept: dict[Hashable, Any] = {}
        self._texts: dict[Hashable, TextLine | None] = {}
        self._parts = [self._part(begin, end) for begin, end in stretches([isinstance(s.stage, Attended) for s in steps])]

    def __call__(self, *given: Any) -> Any:
        return self._run(given)

    def clocked(self, *given: Any) -> tuple[Any, list[KernelTime]]:
        times: list[KernelTime] = []
        return self._run(given, times), times

    def _run(self, given: Sequence[Any], times: list[KernelTime] | None = None) -> Any:
        *rows, offsets = given
        count = len(rows[0])
        if any(len(x) != count for x in rows):
            raise ShapeError.must("operands", f"of {count} rows, as the first is", ", ".join(str(list(x.shape)) for x in rows))
        if offsets.count == 1 and 1 < count < FILLED and offsets.rows == count:
            lacking = lacking_of(count)
            filled = [with_zeros(x, lacking) for x in rows]
            line = self._text_line(filled, count)
            if line is not None:
                results = line(filled, times)
                return results if not lacking else results[:count].clone() if len(self._out) == 1 else [y[:count].clone() for y in results]
        return self._by_parts(rows, offsets, times)

    def forget(self, share: float) -> None:
        super().forget(share)
        with self._lock:
            drop_oldest(self._texts, share)
            drop_oldest(self._kept, share)  # a line has its own references

    def _text_line(self, filled: Sequence[Tensor], count: int) -> TextLine | None:
        """Return the kernels of a text of so many rows; None if oneDNN lacks one."""
        key = (count, self._key(filled))
        line = self._texts.get(key, _UNKNOWN)
        if line is not _UNKNOWN:
            return line
        with self._lock:
            if key not in self._texts:
                if len(self._texts) >= max(MOST // len(self._steps), 1):
                    del self._texts[next(iter(self._texts))]
                try:
                    self._texts[key] = TextLine(self._library, self._steps, filled, self._out, count, self._kept, self._in_half)
                except Unimplemented:
                    self._texts[key] = None
            return self._texts[key]

    def _by_parts(self, rows: Sequence[Tensor], offsets: Offsets, times: list[KernelTime] | None) -> Any:
        """Return the results of any sequences, part by part."""
        values: dict[int, Any] = dict(enumerate(rows))
        for part in self._parts:
            operands = [values[v] for v in part.sources]
            if times is not None:
                results, seconds = part.clocked(operands, offsets)
                times += seconds
            else:
                results = part.run(*operands, offsets) if part.attends else part.run(*operands)
            del operands
            values.update(zip(part.results, [results] if len(part.results) == 1 else results, strict=True))
            for v in part.last:
                del values[v]
        return values[self._out[0]] if len(self._out) == 1 else [values[v] for v in self._out]

    def _part(self, begin: int, end: int) -> _Part:
        """Return some successive steps as a part."""
        part = self.part(begin, end)
        if isinstance(self._steps[begin].stage, Attended):
            return _Part(begin, self._steps[begin].otherwise, True, [*self._steps[begin].sources], part.results, part.last)
        return _Part(begin, RaggedSeries(self._library, part.steps, len(part.sources), self._in_half), False, part.sources, part.results, part.last)


class _Part(NamedTuple):
    """Successive steps of a series, with the numbers of the values read and made, and of the last values read here."""

    begin: int
    run: Any
    attends: bool
    sources: list[int]
    results: list[int]
    last: list[int]

    def clocked(self, given: Sequence[Tensor], offsets: Offsets) -> tuple[Any, list[KernelTime]]:
        """Return its results and the times of its kernels, with the numbers of the whole series' steps."""
        if self.attends:
            began = perf_counter()
            results = self.run(*given, offsets)
            return results, [KernelTime(self.begin, perf_counter() - began, "attention")]
        results, times = self.run.clocked(*given)
        return results, [t._replace(step=self.begin + t.step) if t.step >= 0 else t for t in times]


class AttendingSeries(Series):
    """A series with dense attentions between its other steps; with too many scores for one piece of memory, the steps between them are a series each."""

    def __init__(self, library: Library, steps: Sequence[ChainKernel], count: int, in_half: bool = False) -> None:
        super().__init__(library, steps, count, in_half)
        self._parts: list[tuple[Any, SeriesPart]] = []
        for begin, end in stretches([isinstance(s.stage, HeadedAttention) for s in steps]):
            part, attends = self.part(begin, end), isinstance(steps[begin].stage, HeadedAttention)
            self._parts.append((steps[begin].otherwise if attends else Series(library, part.steps, len(part.sources), in_half), part))

    def otherwise(self, given: Sequence[Tensor]) -> Any:
        """Run the attentions by other kernels."""
        values: dict[int, Any] = dict(enumerate(given))
        for run, part in self._parts:
            sources = part.sources if isinstance(run, Series) else part.steps[0].sources
            operands = part.sources if isinstance(run, Series) else [part.sources[v] for v in sources]
            results = run(*[values[v] for v in operands])
            values.update(zip(part.results, [results] if len(part.results) == 1 else results, strict=True))
            for v in part.last:
                values[v] = None
        return values[self._out[0]] if len(self._out) == 1 else [values[v] for v in self._out]


def stretches(attends: Sequence[bool]) -> list[tuple[int, int]]:
    """Return the begins and ends of successive steps without attention, and each attention alone."""
    out: list[tuple[int, int]] = []
    for index, alone in enumerate(attends):
        if alone or not out or attends[index - 1]:
            out.append((index, index + 1))
        else:
            out[-1] = (out[-1][0], index + 1)
    return out
