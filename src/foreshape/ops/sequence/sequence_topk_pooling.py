"""sequence_topk_avg_pooling: averages of the largest numbers in the rows of ragged matrices."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import fail, require, require_equal, require_rank
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.rules.ragged_rules import ragged, rows, same_sequences
from foreshape.spec import FLOATING, INT32, Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor, torch


class SequenceTopkAvgPooling(Operator):
    """Averages of the k largest numbers of matrix rows. Innermost sequence i of X holds ``channel_num`` matrices of r x c numbers.

    Here r and c are the lengths of the sequences i of ROW and COLUMN. Out = for each row of each matrix, for each k of ``topks``, the sum of its k largest
    numbers (of all, if it has fewer), divided by k.

    pos = the columns of the ``topks[-1]`` largest numbers, the largest first; -1 if there are fewer.
    """

    type = "sequence_topk_avg_pooling"
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

    def _lines(self, at: Offsets, row: Offsets, column: Offsets) -> tuple[Tensor, Tensor]:
        """Return the first element in X of each row of each matrix, and its length.

        They are in the order of Out: row after row, in each all channels.
        """

        def make() -> tuple[Tensor, Tensor]:
            width = column.lengths
            if not torch.equal(at.lengths, self.channel_num * row.lengths * width):
                raise ExecutionError(
                    "sequence_topk_avg_pooling: each sequence of X must have channel_num * rows * columns numbers; seen "
                    f"{at.host_lengths[:20]}, {row.host_lengths[:20]} and {column.host_lengths[:20]}"
                )
            of = row.segments
            first = (at.last[:-1][of] + row.positions * width[of]).unsqueeze(1)
            channel = (row.lengths * width)[of].unsqueeze(1) * torch.arange(self.channel_num, device=of.device)
            return (first + channel).reshape(-1), width[of].repeat_interleave(self.channel_num)

        return at.kept(("matrix rows", row, column, self.channel_num), make)

    def _shares(self, like: Tensor) -> Tensor:
        """Return the weight of the k-th largest number in each average, ``[len(topks), topks[-1]]``."""
        sizes = torch.tensor(self.topks, device=like.device).unsqueeze(1)
        counted = torch.arange(self.topks[-1], device=like.device) < sizes
        return counted.to(like.dtype) / sizes

    def workspace(self, X: Spec, ROW: Spec, COLUMN: Spec) -> Size:
        return 64 * X.elements + 32 * self._kept(ROW)

    def _kept(self, ROW: Spec) -> Size:
        """Return the count of numbers kept of all matrix rows."""
        return ROW.known_dims[0] * self.channel_num * self.topks[-1]

    def kernel(self, X: Tensor, ROW: Tensor, COLUMN: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Tensor]:
        if not len(X) and not len(ROW):
            return X.new_empty((0, self.channel_num * len(self.topks))), X.new_empty(0, dtype=torch.int32)
        begin, length = self._lines(*offsets)
        count, most = len(begin), self.topks[-1]
        values = X.reshape(-1)
        # all numbers by line, and in a line by falling value, without padding: a line may be very much longer than the others
        line = torch.empty(len(values), dtype=torch.int64, device=X.device)
        within = Offsets.of_lengths(length)
        element = begin[within.segments] + within.positions
        line[element] = within.segments
        falling = torch.argsort(values, descending=True, stable=True)
        order = falling[torch.argsort(line[falling], stable=True)]
        rank = torch.arange(most, device=X.device)
        there = rank < length.unsqueeze(1)
        chosen = (within.last[:-1].unsqueeze(1) + rank).masked_fill_(~there, 0)
        chosen = order[chosen] if len(values) else chosen
        largest = values[chosen].masked_fill_(~there, 0) if len(values) else X.new_zeros(count, most)
        pos = (chosen - begin.unsqueeze(1)).masked_fill_(~there, -1)
        out = largest @ self._shares(X).T
        return out.view(ROW.shape[0], self.channel_num * len(self.topks)), pos.view(-1).to(torch.int32)

    def _gradient_workspace(self, X: Spec, ROW: Spec, COLUMN: Spec, pos: Spec, d_out: Spec) -> Size:
        return 32 * self._kept(ROW)

    @gradient("X", "ROW", "COLUMN", "pos", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, ROW: Tensor, COLUMN: Tensor, pos: Tensor, d_out: Tensor, *, offsets: list[Any]) -> Tensor:
        if not len(X):
            return X.new_zeros(X.shape)
        begin, _ = self._lines(*offsets[:3])
        shares = d_out.reshape(len(begin), len(self.topks)) @ self._shares(X)
        column = pos.view(len(begin), self.topks[-1])
        there = column >= 0
        place = (begin.unsqueeze(1) + column)[there]
        return X.new_zeros(X.shape[0]).index_copy_(0, place, shares[there]).view(X.shape)

    samples = [
        sample(X=f32(22, 1, distinct=True).ragged([12, 0, 10]), ROW=f32(8, 2).ragged([3, 0, 5]), COLUMN=f32(4, 3).ragged([2, 1, 1]), topks=[1, 3],
               channel_num=2),
        sample(X=f32(18, 1, distinct=True).ragged([2, 1], [6, 0, 12]), ROW=f32(3, 1).ragged([1, 2], [2, 0, 1]), COLUMN=f32(16, 5).ragged([3], [3, 1, 12]),
               topks=[2, 5], channel_num=1),
        sample(X=f32(0, 1).ragged([]), ROW=f32(0, 2).ragged([]), COLUMN=f32(0, 2).ragged([]), topks=[2], channel_num=3),
        sample(X=f32(0, 1).ragged([0]), ROW=f32(3, 2).ragged([3]), COLUMN=f32(0, 2).ragged([0]), topks=[2], channel_num=3),
    ]  # fmt: skip
    rejects = [
        reject(
            X=f32(6, 1), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[1], channel_num=1, says="X must be ragged", error=TypeMismatchError
        ),
        reject(X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([1, 1]), COLUMN=f32(3, 1).ragged([3]), topks=[1], channel_num=1, says="as many sequences"),
        reject(X=f32(6, 2).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[1], channel_num=1, says="a column"),
        reject(X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[3, 1], channel_num=1, says="rising", error=SchemaError),
        reject(X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[], channel_num=1, says="rising", error=SchemaError),
        reject(
            X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[0], channel_num=1, says="at least 1", error=SchemaError
        ),
        reject(
            X=f32(6, 1).ragged([6]), ROW=f32(2, 1).ragged([2]), COLUMN=f32(3, 1).ragged([3]), topks=[1], channel_num=0, says="at least 1", error=SchemaError
        ),
    ]
