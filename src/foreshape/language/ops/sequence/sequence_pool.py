"""Pooling over sequences: one row of every sequence, and averages of the largest numbers in the rows of ragged matrices."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import ANY, FLOATING, FP32, FP64, INT32, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import fail, require, require_equal, require_rank
from foreshape.language.operator.samples import SampleTensor, f32, reject, sample
from foreshape.language.operator.sequence_computations import SequenceEnd, SequenceMaximum, SequencePooling
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import one_per_sequence, ragged, rows, same_sequences
from foreshape.machine.kernels.segments import column, empty_sequences, ends, segment_sum

_SUMS = ("AVERAGE", "SUM", "SQRT")
_EXTREMES = {"MAX": "amax", "MIN": "amin"}
_TYPES = (*_SUMS, "LAST", "FIRST", *_EXTREMES)
_FAR = 1e30
"""A number above any row number, and below the largest fp32 number."""
_EXACT = 1 << 24
"""The largest number up to which fp32 has every whole number."""


def _pooltype() -> Any:
    return attribute(AttrType.STRING, "AVERAGE", choices=_TYPES, doc="SQRT is the sum over the root of the length; MIN is not PaddlePaddle's")


def _is_test() -> Any:
    return attribute(AttrType.BOOLEAN, False, doc="ignored here; PaddlePaddle leaves MaxIndex out, and its gradient operator requires it")


def _pad_value() -> Any:
    return attribute(AttrType.FLOAT, 0.0, doc="the result of an empty sequence")


class SequencePool(Operator):
    """Out = for each innermost sequence of X the sum, average, first, last, largest or smallest row, elementwise.

    MaxIndex = for MAX and MIN, the row number in X of each element of Out (the first of equal ones). It is -1 for an empty sequence, and a zero for other
    types. It has the element type of X in its description, as in PaddlePaddle's programs, though PaddlePaddle's kernel writes int32: the numbers are whole.
    """

    type = "sequence_pool"
    example_results = ("Out",)
    examples = ("X",)
    X = operand(FLOATING, doc="ragged rows")
    Out = result(doc="[sequences, *row], ragged as the outer levels of X")
    MaxIndex = result(doc="as Out for MAX and MIN, dense; otherwise no dims")
    untrained = ("MaxIndex",)
    pooltype = _pooltype()
    pad_value = _pad_value()
    is_test = _is_test()

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        out = one_per_sequence(X, "X", X.known_dims[1:])
        number = FP64 if X.dtype is FP64 else FP32
        return out, X.dense(out.known_dims if self.pooltype in _EXTREMES else (), number)

    def workspace(self, X: Spec, *, requested: tuple[bool, ...], strided: frozenset[str]) -> Size:
        if self.pooltype not in _EXTREMES:
            count = X.lod.counts[-1] if X.lod is not None else X.known_dims[0]
            numbers = 2 if self.pooltype in _SUMS else product(X.known_dims[1:])  # weights, or rows before they are put in place
            return 2 * copies(strided, X=X) + (0 if self.pooltype == "SUM" else count * numbers * X.known_dtype.itemsize)
        pooled = X.with_dtype(FP64 if X.dtype is FP64 else FP32)
        return copies(strided, X=X) + (X.nbytes + pooled.nbytes + pooled.known_dtype.itemsize * X.known_dims[0] if requested[1] else 0)

    def computes(self) -> SequencePooling | SequenceEnd | SequenceMaximum | None:
        if self.pooltype in _SUMS or self.pad_value:
            return _pooling(self.pooltype, self.pad_value)
        return SequenceMaximum() if self.pooltype == "MAX" else None if self.pooltype == "MIN" else SequenceEnd(self.pooltype == "LAST")

    def kernel(self, X: Tensor, *, offsets: list[Offsets], requested: tuple[bool, bool]) -> tuple[Tensor, Tensor | None]:
        sequences = offsets[0]
        if self.pooltype in _EXTREMES:
            return self._extremes(X, sequences, requested[1])
        out = self._sums(X, sequences) if self.pooltype in _SUMS else self._ends(X, sequences)
        return out, torch.zeros((), dtype=_number(X), device=X.device) if requested[1] else None

    def _sums(self, X: Tensor, sequences: Offsets) -> Tensor:
        out, rows = segment_sum(X, sequences), max(sequences.rows, 1)
        if self.pooltype != "SUM":
            out.mul_(1.0 / (rows if self.pooltype == "AVERAGE" else math.sqrt(rows)) if sequences.count == 1 else _weights(sequences, self.pooltype, X))
        if self.pad_value != 0.0:
            empty = empty_sequences(sequences)
            if empty is not None:
                out.index_fill_(0, empty, self.pad_value)
        return out

    def _ends(self, X: Tensor, sequences: Offsets) -> Tensor:
        full, rows = ends(sequences, self.pooltype == "LAST")
        if full is None:
            return X.index_select(0, rows)
        out = X.new_full((sequences.count, *X.shape[1:]), self.pad_value)
        return out.index_copy_(0, full, X.index_select(0, rows))

    def _extremes(self, X: Tensor, sequences: Offsets, index_too: bool) -> tuple[Tensor, Tensor | None]:
        reduce = _EXTREMES[self.pooltype]
        flat = X if X.dim() == 2 else X.reshape(X.shape[0], _width(X))
        segments = sequences.segments.unsqueeze(1).expand(flat.shape)
        out = flat.new_full((sequences.count, flat.shape[1]), self.pad_value).scatter_reduce_(0, segments, flat, reduce, include_self=False)
        index = None
        if index_too:
            number = _number(X)
            if X.shape[0] > _EXACT and number is torch.float32:
                raise ExecutionError(f"{self.pooltype} keeps the numbers of rows as fp32, which holds up to {_EXACT}; seen {X.shape[0]} rows")
            pooled = out.index_select(0, sequences.segments)
            # A large number for rows other than the extreme. The least number left is the first row of the extreme (every row, for NaN).
            less = torch.lt if reduce == "amax" else torch.gt
            numbers = less(flat, pooled, out=torch.empty_like(flat, dtype=number)).mul_(_FAR)
            numbers.add_(torch.arange(X.shape[0], dtype=number, device=X.device).unsqueeze(1))
            index = torch.full_like(out, -1.0, dtype=number).scatter_reduce_(0, segments, numbers, "amin", include_self=False)
            index = index.view(sequences.count, *X.shape[1:])
        return out.view(sequences.count, *X.shape[1:]), index

    def gradient_ops(self, slots: GradientSlots) -> None:
        if any(n in slots.available for slot in self.untrained for n in slots.output(slot)):
            raise SchemaError("sequence_pool has no gradient through its result MaxIndex: nothing is to be trained through it")
        inputs = {"X": slots.input("X"), "Out@GRAD": slots.grad_of_output("Out")}
        if self.pooltype in _EXTREMES:
            inputs["MaxIndex"] = slots.output("MaxIndex") or list(slots.op.block.name_result(slots.op, "MaxIndex"))
        attrs = {"pooltype": self.pooltype, "pad_value": self.pad_value, "is_test": self.is_test}
        slots.add("sequence_pool_grad", inputs, {"X@GRAD": slots.input("X")}, attrs)

    samples = [sample(X=f32(9, 2, distinct=True).ragged([4, 0, 5]), pooltype=t, pad_value=p) for t in _TYPES for p in (0.0, 1.5)] + [
        sample(X=x, pooltype=t)
        for t in _TYPES
        for x in (
            f32(7, 3, distinct=True).ragged([2, 1], [3, 0, 4]),
            f32(6, 1, 4, distinct=True).ragged([2, 0], [1, 1], [4, 2]),
            f32(5, distinct=True).ragged([5]),
            f32(0, 2).ragged([]),
            f32(0, 3).ragged([2, 0], [0, 0]),
            f32(4, 0).ragged([1, 3]),
        )
    ]


def _pooling(pooltype: Any, pad_value: float) -> SequencePooling | None:
    return SequencePooling(pooltype) if pooltype in _SUMS and pad_value == 0.0 else None


def _width(X: Tensor) -> int:
    out = 1
    for size in X.shape[1:]:
        out *= size
    return out


def _number(X: Tensor) -> Any:
    return torch.float64 if X.dtype is torch.float64 else torch.float32


def _weights(sequences: Offsets, pooltype: str, like: Tensor) -> Tensor:
    """Return the factors of the sums of the sequences, ``[count, 1, ...]``."""

    def make() -> Tensor:
        lengths = sequences.lengths.clamp(min=1).to(torch.float64)
        return (lengths if pooltype == "AVERAGE" else lengths.sqrt()).reciprocal().to(like.dtype)

    return column(sequences.kept((pooltype, like.dtype), make), like.dim())


def _d_out(value: SampleTensor) -> dict[str, Any]:
    return {"Out@GRAD": value}


class SequencePoolGrad(Operator):
    """The gradient of sequence_pool: to every row its share of the gradient of its sequence's row."""

    type = "sequence_pool_grad"
    X = operand(FLOATING, doc="ragged rows")
    MaxIndex = operand(ANY, optional=True, doc="for MAX and MIN: the rows of X in Out")
    d_out = replace(operand(FLOATING, same_type_as="X", doc="[sequences, *row]"), name="Out@GRAD")
    d_x = replace(result(doc="as X"), name="X@GRAD")
    pooltype = _pooltype()
    pad_value = _pad_value()
    is_test = _is_test()
    gradient = NOT_WRITTEN

    def infer_shape(self, *specs: Any) -> Spec:
        x, index, d_out = specs
        pooled = one_per_sequence(x, "X", x.known_dims[1:])
        check_made(**{"Out@GRAD": (d_out, pooled)})
        if self.pooltype in _EXTREMES:
            if index is None:
                fail(f"MaxIndex is missing, and {self.pooltype} needs it", SchemaError)
            check_made(MaxIndex=(index, pooled))
        return x.like()

    def workspace(self, *specs: Any) -> Size:
        _, index, d_out = specs
        spread_bytes = 0 if self.pooltype == "SUM" else d_out.nbytes
        return spread_bytes + (0 if index is None else 16 * index.elements)

    def backward_of(self) -> SequencePooling | None:
        return _pooling(self.pooltype, self.pad_value)

    def kernel(self, *tensors: Any, offsets: list[Offsets]) -> Tensor:
        X, index, d_out = tensors
        sequences = offsets[0]
        if self.pooltype in _SUMS:
            share = d_out if self.pooltype == "SUM" else d_out * _weights(sequences, self.pooltype, X)
            return share.index_select(0, sequences.segments)
        out = torch.zeros_like(X)
        if self.pooltype in _EXTREMES:
            empty = empty_sequences(sequences)
            rows = index.long()
            if empty is not None:
                full = sequences.lengths.nonzero().view(-1)
                rows, d_out = rows.index_select(0, full), d_out.index_select(0, full)
            return out.scatter_(0, rows, d_out)
        full, rows = ends(sequences, self.pooltype == "LAST")
        return out.index_copy_(0, rows, d_out if full is None else d_out.index_select(0, full))

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), pooltype="LAST", **_d_out(f32(3, 2))),
        sample(X=f32(3, 2).ragged([1, 0, 2]), MaxIndex=f32(3, 2, data=[[0, 0], [-1, -1], [2, 1]]), pooltype="MAX", **_d_out(f32(3, 2))),
    ]
    rejects = [reject(X=f32(9, 2).ragged([4, 0, 5]), pooltype="MAX", says="MaxIndex is missing", error=SchemaError, **_d_out(f32(3, 2)))]


class SequenceTopkAvgPooling(Operator):
    """Averages of the k largest numbers of matrix rows. Innermost sequence i of X holds ``channel_num`` matrices of r x c numbers.

    Here r and c are the lengths of the sequences i of ROW and COLUMN. Out = for each row of each matrix, for each k of ``topks``, the sum of its k largest
    numbers (of all, if it has fewer), divided by k.

    pos = the columns of the ``topks[-1]`` largest numbers, the largest first; -1 if there are fewer.
    """

    type = "sequence_topk_avg_pooling"
    examples = ("X", "ROW", "COLUMN")
    X = operand(FLOATING, doc="ragged, [numbers, 1]")
    ROW = operand(doc="ragged; its lengths are the heights of the matrices")
    COLUMN = operand(doc="ragged; its lengths are the widths of the matrices")
    Out = result(doc="[rows of ROW, channel_num * len(topks)], ragged as ROW")
    pos = result(doc="int32 [rows of ROW * channel_num * topks[-1]]")
    topks = attribute(AttrType.INTS, low=1, doc="each at least 1, rising")
    channel_num = attribute(AttrType.INT, low=1)

    def infer_shape(self, X: Spec, ROW: Spec, COLUMN: Spec) -> tuple[Spec, Spec]:
        for spec, slot in ((X, "X"), (ROW, "ROW"), (COLUMN, "COLUMN")):
            ragged(spec, slot)
            require(spec.rank >= 1, f"{slot} must have at least one dim", **{slot: None})
        require_rank(2, X, "X")
        require_equal(X.known_dims[1], 1, f"X must be a column, [numbers, 1]; its rows have {X.known_dims[1]}", X=1)
        same_sequences(X, ROW, "X", "ROW")
        same_sequences(ROW, COLUMN, "ROW", "COLUMN")
        if not self.topks or any(a >= b for a, b in zip(self.topks, self.topks[1:], strict=False)):
            fail(f"topks must be one or more rising numbers; seen {list(self.topks)}", error=SchemaError)
        height = ROW.known_dims[0]
        pos = rows(INT32, (height * self.channel_num * self.topks[-1],), None)
        return rows(X.dtype, (height, self.channel_num * len(self.topks)), ROW.lod), pos

    def _lines(self, sequences: Offsets, row: Offsets, column: Offsets) -> tuple[Tensor, Tensor]:
        """Return the first element in X of each row of each matrix, and its length.

        They are in the order of Out: row after row, in each all channels.
        """

        def make() -> tuple[Tensor, Tensor]:
            width = column.lengths
            if not torch.equal(sequences.lengths, self.channel_num * row.lengths * width):
                raise ExecutionError(
                    "sequence_topk_avg_pooling: each sequence of X must have channel_num * rows * columns numbers; seen "
                    f"{sequences.host_lengths[:20]}, {row.host_lengths[:20]} and {column.host_lengths[:20]}"
                )
            segments = row.segments
            first = (sequences.last[:-1][segments] + row.positions * width[segments]).unsqueeze(1)
            channel = (row.lengths * width)[segments].unsqueeze(1) * torch.arange(self.channel_num, device=segments.device)
            return (first + channel).reshape(-1), width[segments].repeat_interleave(self.channel_num)

        return sequences.kept(("matrix rows", row, column, self.channel_num), make)

    def _shares(self, like: Tensor) -> Tensor:
        """Return the weight of the k-th largest number in each average, ``[len(topks), topks[-1]]``."""
        sizes = torch.tensor(self.topks, device=like.device).unsqueeze(1)
        counted = torch.arange(self.topks[-1], device=like.device) < sizes
        return counted.to(like.dtype) / sizes

    def workspace(self, X: Spec, ROW: Spec, COLUMN: Spec) -> Size:
        return 64 * X.elements + 32 * self._number_count(ROW)

    def _number_count(self, ROW: Spec) -> Size:
        """Return the count of numbers kept of all matrix rows."""
        return ROW.known_dims[0] * self.channel_num * self.topks[-1]

    def kernel(self, X: Tensor, ROW: Tensor, COLUMN: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Tensor]:
        if not len(X) and not len(ROW):
            return X.new_empty((0, self.channel_num * len(self.topks))), X.new_empty(0, dtype=torch.int32)
        begin, length = self._lines(*offsets)
        count, limit = len(begin), self.topks[-1]
        values = X.reshape(-1)
        # all numbers by line, and in a line by falling value, without padding: a line may be very much longer than the others
        line = torch.empty(len(values), dtype=torch.int64, device=X.device)
        lines = Offsets.of_lengths(length)
        element = begin[lines.segments] + lines.positions
        line[element] = lines.segments
        falling = torch.argsort(values, descending=True, stable=True)
        order = falling[torch.argsort(line[falling], stable=True)]
        rank = torch.arange(limit, device=X.device)
        valid = rank < length.unsqueeze(1)
        chosen = (lines.last[:-1].unsqueeze(1) + rank).masked_fill_(~valid, 0)
        chosen = order[chosen] if len(values) else chosen
        largest = values[chosen].masked_fill_(~valid, 0) if len(values) else X.new_zeros(count, limit)
        pos = (chosen - begin.unsqueeze(1)).masked_fill_(~valid, -1)
        out = largest @ self._shares(X).T
        return out.view(ROW.shape[0], self.channel_num * len(self.topks)), pos.view(-1).to(torch.int32)

    def _gradient_workspace(self, X: Spec, ROW: Spec, COLUMN: Spec, pos: Spec, d_out: Spec) -> Size:
        return 32 * self._number_count(ROW)

    @gradient("X", "ROW", "COLUMN", "pos", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, ROW: Tensor, COLUMN: Tensor, pos: Tensor, d_out: Tensor, *, offsets: list[Any]) -> Tensor:
        if not len(X):
            return X.new_zeros(X.shape)
        begin, _ = self._lines(*offsets[:3])
        shares = d_out.reshape(len(begin), len(self.topks)) @ self._shares(X)
        column = pos.view(len(begin), self.topks[-1])
        valid = column >= 0
        place = (begin.unsqueeze(1) + column)[valid]
        return X.new_zeros(X.shape[0]).index_copy_(0, place, shares[valid]).view(X.shape)

    samples = [
        sample(X=f32(22, 1, distinct=True).ragged([12, 0, 10]), ROW=f32(8, 2).ragged([3, 0, 5]), COLUMN=f32(4, 3).ragged([2, 1, 1]), topks=[1, 3],
               channel_num=2),
        sample(X=f32(18, 1, distinct=True).ragged([2, 1], [6, 0, 12]), ROW=f32(3, 1).ragged([1, 2], [2, 0, 1]), COLUMN=f32(16, 5).ragged([3], [3, 1, 12]),
               topks=[2, 5], channel_num=1),
        sample(X=f32(0, 1).ragged([]), ROW=f32(0, 2).ragged([]), COLUMN=f32(0, 2).ragged([]), topks=[2], channel_num=3),
        sample(X=f32(0, 1).ragged([0]), ROW=f32(3, 2).ragged([3]), COLUMN=f32(0, 2).ragged([0]), topks=[2], channel_num=3),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([1, 1]), COLUMN=f32(3, 1).ragged([3]), topks=[1], channel_num=1, says="as many sequences"),
        reject(X=f32(6, 2).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[1], channel_num=1, says="a column"),
        reject(X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[3, 1], channel_num=1, says="rising", error=SchemaError),
        reject(X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[], channel_num=1, says="rising", error=SchemaError),
    ]
