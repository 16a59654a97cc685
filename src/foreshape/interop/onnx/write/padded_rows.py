"""Ragged rows in a graph of ONNX: rows one after another, with the lengths of their sequences as another value.

An input is padded, ``[sequences, time, *row]`` with ``NAME.lengths``, and so is a result; numbers behind the end of a sequence are never read. With two
levels it is ``[sequences, parts, time, *row]``, and ``NAME.lengths.1``, ``[sequences, parts]``, has the lengths of the parts. Between, the rows of all
sequences follow each other: so operators without knowledge of sequences are written as for dense rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.core.spec import BF16, BOOL, FP32, INT64, DType, Lod, Spec
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.language.wire.onnx_records import TypeRecord

if TYPE_CHECKING:
    from foreshape.interop.onnx.write.graph_writer import GraphWriter


def length_name(name: str, level: int) -> str:
    """Return the name of the input or result with the lengths at a level of a ragged one."""
    return f"{name}.lengths" + (f".{level}" if level else "")


def padded_types(writer: GraphWriter, name: str, spec: Spec) -> list[tuple[str, TypeRecord]]:
    """Return the names and types of the padded rows of a ragged input or result, and of its lengths."""
    assert spec.lod is not None
    sizes = [str(spec.lod.counts[0]), *[f"{name}.{'time' if level == 0 else f'time.{level}'}" for level in range(len(spec.lod.counts))]]
    if isinstance(spec.lod.counts[0], int):
        sizes = [spec.lod.counts[0], *sizes[1:]]  # pyright: ignore[reportAssignmentType]
    row = [d if isinstance(d, int) else str(d) for d in spec.known_dims[1:]]
    lengths = [(length_name(name, level), TypeRecord("tensor", 7, tuple(sizes[: level + 1]))) for level in range(len(spec.lod.counts))]
    return [(name, TypeRecord("tensor", writer.code_of(spec.known_dtype), (*sizes, *row))), *lengths]


def _constant(writer: GraphWriter, numbers: Any, dtype: DType = INT64) -> OnnxValue:
    import numpy

    if dtype is BF16:
        return writer.node("Cast", [_constant(writer, numbers, FP32)], to=writer.code_of(dtype))[0]
    return writer.constant(numpy.array(numbers, "bool" if dtype is BOOL else dtype.numpy_name))


class RowsWriter:
    """The forms of ragged rows, as nodes of a writer."""

    def __init__(self, writer: GraphWriter) -> None:
        self.writer = writer

    def node(self, operator: str, *inputs: OnnxValue | None, **attributes: Any) -> OnnxValue:
        """Append a node with one result."""
        return self.writer.node(operator, inputs, **attributes)[0]

    def ints(self, *numbers: int) -> OnnxValue:
        """Return a row of int64 numbers."""
        return _constant(self.writer, numbers)

    def part(self, row: OnnxValue, start: int, end: int = 2**62) -> OnnxValue:
        """Return a part of a row of numbers."""
        return self.node("Slice", row, self.ints(start), self.ints(end), self.ints(0))

    def time(self, count: OnnxValue) -> OnnxValue:
        """Return 0, 1, ... up to a number in a row of one."""
        return self.node("Range", _constant(self.writer, 0), self.node("Squeeze", count, self.ints(0)), _constant(self.writer, 1))

    def longest(self, lengths: OnnxValue, least: int = 1) -> OnnxValue:
        """Return the length of the longest sequence, or ``least``, in a row."""
        return self.node("ReduceMax", self.node("Concat", lengths, self.ints(least), axis=0), keepdims=1)

    def offsets(self, lengths: OnnxValue) -> OnnxValue:
        """Return the place of the first row of each sequence."""
        return self.node("CumSum", lengths, _constant(self.writer, 0), exclusive=1)

    def mask(self, lengths: OnnxValue, time: OnnxValue) -> OnnxValue:
        """Return [sequences, time]: True where a sequence has a row."""
        return self.node("Less", self.node("Unsqueeze", time, self.ints(0)), self.node("Unsqueeze", lengths, self.ints(1)))

    def with_one_more(self, rows: OnnxValue, dtype: DType, fill: Any) -> tuple[OnnxValue, OnnxValue]:
        """Return the rows with one more at their end, full of a number (or of a value), and its place, in a row."""
        shape = self.node("Shape", rows)
        filler = fill if isinstance(fill, OnnxValue) else _constant(self.writer, fill, dtype)
        extra = self.node("Expand", filler, self.node("Concat", self.ints(1), self.part(shape, 1), axis=0))
        return self.node("Concat", rows, extra, axis=0), self.part(shape, 0, 1)

    def padded(self, rows: OnnxValue, lengths: OnnxValue, dtype: DType, fill: Any = 0, count: OnnxValue | None = None) -> OnnxValue:
        """Return [sequences, time, *row] with a number behind the ends. ``count``: the time, in a row, if it is not the longest."""
        time = self.time(self.longest(lengths) if count is None else count)
        source, end = self.with_one_more(rows, dtype, fill)
        index = self.node("Add", self.node("Unsqueeze", self.offsets(lengths), self.ints(1)), self.node("Unsqueeze", time, self.ints(0)))
        return self.node("Gather", source, self.node("Where", self.mask(lengths, time), index, end), axis=0)

    def unpadded(self, x: OnnxValue, lengths: OnnxValue) -> OnnxValue:
        """Return the rows of [sequences, time, *row], without the ones behind the ends."""
        time = self.time(self.part(self.node("Shape", x), 1, 2))
        return self.kept(x, self.mask(lengths, time))

    def kept(self, x: OnnxValue, mask: OnnxValue) -> OnnxValue:
        """Return the rows of [sequences, time, *row] where [sequences, time] is True."""
        return self.node("GatherND", x, self.node("Transpose", self.node("NonZero", mask), perm=[1, 0]))

    def sequence_of_each_row(self, lengths: OnnxValue) -> OnnxValue:
        """Return the number of the sequence of each row."""
        mask = self.mask(lengths, self.time(self.longest(lengths)))
        return self.node("Squeeze", self.part(self.node("NonZero", mask), 0, 1), self.ints(0))

    # --- inputs and results

    def opened(self, x: OnnxValue, sizes: Sequence[OnnxValue]) -> tuple[OnnxValue, list[OnnxValue]]:
        """Return the rows of a padded input, and the lengths of its sequences level by level."""
        lengths = [sizes[0]]
        for inner in sizes[1:]:
            for outer in lengths:
                inner = self.unpadded(inner, outer)
            x = self.unpadded(x, lengths[-1])
            lengths.append(inner)
        return self.unpadded(x, lengths[-1]), lengths

    def closed(self, rows: OnnxValue, lengths: Sequence[OnnxValue], dtype: DType) -> list[OnnxValue]:
        """Return the padded form of ragged rows, and its lengths level by level."""
        out = rows
        for level in reversed(lengths):
            out = self.padded(out, level, dtype)
        padded_lengths: list[OnnxValue] = []
        for index, level in enumerate(lengths):
            for outer in reversed(lengths[:index]):
                level = self.padded(level, outer, INT64)
            padded_lengths.append(level)
        return [out, *padded_lengths]


def levels_of(writer: GraphWriter, lod: Lod) -> list[OnnxValue] | None:
    """Return the lengths of the sequences at each level; None if nothing is known of them."""
    lengths = writer.lengths.get(lod.source)
    return None if lengths is None or len(lengths) < len(lod.counts) else lengths[: len(lod.counts)]
