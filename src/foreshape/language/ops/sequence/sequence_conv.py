"""Products with each row's neighbours in its sequence, with the following rows, and sums with their positions."""

from __future__ import annotations

import math
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import SchemaError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require_at_most, require_divides, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import ragged

MAX_CONTEXT = 1 << 20
"""The longest context, and its farthest beginning from a row."""


def _infer_gradient(self: SequenceConv, X: Spec, PaddingData: Spec | None, Filter: Spec, d_out: Spec) -> tuple[Spec, Spec | None, Spec]:
    check_made(Out_GRAD=(d_out, SequenceConv.infer_shape(self, X, PaddingData, Filter)))
    return X.like(), None if PaddingData is None else PaddingData.like(), Filter.like()


class SequenceConv(Operator):
    """Out[p] = (X[p + contextStart], ..., X[p + contextStart + contextLength - 1]) Filter, of rows of one innermost sequence.

    Outside of the sequence there are zeros or, with paddingTrainable, rows of PaddingData. Its first max(0, -contextStart) stand before the first row of every
    sequence, the others after the last.
    """

    type = "sequence_conv"
    examples = ("X",)
    X = operand(FLOATING, doc="ragged rows [rows, width]")
    PaddingData = operand(FLOATING, optional=True, same_type_as="X", doc="[rows before + rows after, width]")
    Filter = operand(FLOATING, same_type_as="X", doc="[contextLength * width, out]")
    Out = result(doc="[rows, out], with the offsets of X")
    paddingTrainable = attribute(AttrType.BOOLEAN, False, doc="the rows outside of a sequence are PaddingData")
    contextLength = attribute(AttrType.INT, low=1, high=MAX_CONTEXT, doc="the number of rows multiplied together")
    contextStart = attribute(AttrType.INT, 0, low=-MAX_CONTEXT, high=MAX_CONTEXT, doc="the first of these rows, from the row itself")
    contextStride = attribute(AttrType.INT, 1, choices=(1,), doc="1")

    def _outside(self) -> tuple[int, int]:
        """Return the rows of PaddingData before and after."""
        return max(0, -self.contextStart), max(0, self.contextStart + self.contextLength - 1)

    def infer_shape(self, X: Spec, PaddingData: Spec | None, Filter: Spec) -> Spec:
        ragged(X, "X")
        require_rank(2, X, "X")
        require_rank(2, Filter, "Filter")
        width: Size = X.known_dims[1]
        require_equal(Filter.known_dims[0], self.contextLength * width, "the rows of Filter must be contextLength times the columns of X", Filter=0, X=1)
        if self.paddingTrainable:
            if PaddingData is None:
                fail("the input PaddingData is missing, and paddingTrainable is True", SchemaError)
            require_rank(2, PaddingData, "PaddingData")
            front, back = self._outside()
            words = f"the rows of PaddingData must be those before and after a sequence, {front} + {back}"
            require_equal(PaddingData.known_dims[0], front + back, words, PaddingData=0)
            require_equal(PaddingData.known_dims[1], width, "the columns of PaddingData must be those of X", PaddingData=1, X=1)
        return X.with_dims((X.known_dims[0], Filter.known_dims[1]))

    def work(self, X: Spec, PaddingData: Spec | None, Filter: Spec) -> Size:
        return X.known_dims[0] * Filter.elements

    def _context(self, X: Tensor, PaddingData: Tensor | None, sequences: Offsets) -> tuple[Tensor, Tensor, int]:
        """Return each row with its context, ``[rows, contextLength * width]``, the row numbers of its parts, and the number of rows outside.

        A part outside of a sequence has the number of its padding row, after the rows of X.
        """
        start, length = self.contextStart, self.contextLength
        front, back = self._outside()
        trained = self.paddingTrainable and front + back > 0

        def make() -> Tensor:
            rows = sequences.rows
            positions = sequences.positions.unsqueeze(1) + torch.arange(start, start + length, device=X.device)
            lengths = sequences.lengths.index_select(0, sequences.segments).unsqueeze(1)
            inside = positions + (sequences.last[:-1].index_select(0, sequences.segments)).unsqueeze(1)
            if not trained:
                return torch.where((positions >= 0) & (positions < lengths), inside, rows).view(-1)
            outside = torch.where(positions < 0, positions + (rows + front), positions - lengths + (rows + front))
            return torch.where((positions >= 0) & (positions < lengths), inside, outside).view(-1)

        index = sequences.kept(("context", start, length, trained), make)
        outside = PaddingData if trained and PaddingData is not None else X.new_zeros((1, X.shape[1]))
        around = torch.cat((X, outside)).index_select(0, index)
        return around.view(X.shape[0], length * X.shape[1]), index, outside.shape[0]

    def _gathered(self, X: Spec, PaddingData: Spec | None, columns: Size) -> Size:
        """Return the bytes of each row with its context. X with its padding rows is there before the results of ``columns`` numbers a row."""
        width = X.known_dims[1]
        copied = 0 if isinstance(columns, int) and isinstance(width, int) and columns >= width else X.nbytes
        outside = width * X.known_dtype.itemsize + (0 if PaddingData is None else PaddingData.nbytes)
        return X.nbytes * self.contextLength + copied + 2 * outside

    def workspace(self, X: Spec, PaddingData: Spec | None, Filter: Spec) -> Size:
        return self._gathered(X, PaddingData, Filter.known_dims[1])

    def kernel(self, X: Tensor, PaddingData: Tensor | None, Filter: Tensor, *, offsets: list[Offsets]) -> Tensor:
        around, _, _ = self._context(X, PaddingData, offsets[0])
        return around @ Filter

    def _gradient_workspace(self, X: Spec, PaddingData: Spec | None, Filter: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return self._gathered(X, PaddingData, X.known_dims[1]) + copies(strided, Filter=Filter, Out_GRAD=d_out)

    @gradient(
        "X", "PaddingData", "Filter", "Out@GRAD", gives=("X@GRAD", "PaddingData@GRAD", "Filter@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace
    )
    def backward(
        self, X: Tensor, PaddingData: Tensor | None, Filter: Tensor, d_out: Tensor, *, offsets: list[Offsets], requested: tuple[bool, bool, bool]
    ) -> tuple[Any, Any, Any]:
        around, index, outside = self._context(X, PaddingData, offsets[0])
        d_filter = around.t() @ d_out if requested[2] else None
        if not requested[0] and not requested[1]:
            return None, None, d_filter
        del around
        d_around = (d_out @ Filter.t()).view(-1, X.shape[1])
        count = X.shape[0]
        if PaddingData is None or not self.paddingTrainable or not len(PaddingData):
            d_padding = torch.zeros_like(PaddingData) if PaddingData is not None else None
            return aten.embedding_dense_backward(d_around, index, count, count, False), d_padding, d_filter  # nothing for rows outside
        d_rows = X.new_zeros((count + outside, X.shape[1])).index_add_(0, index, d_around)
        del d_around
        return d_rows[:count].clone(), d_rows[count:].clone(), d_filter

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), Filter=f32(6, 7), contextLength=3, contextStart=-1),
        sample(X=f32(9, 2).ragged([4, 0, 5]), Filter=f32(10, 3), contextLength=5, contextStart=-4),
        sample(X=f32(6, 3).ragged([2, 1], [1, 0, 5]), Filter=f32(6, 4), contextLength=2, contextStart=1),
        sample(X=f32(6, 3).ragged([2, 1], [1, 0, 5]), Filter=f32(6, 4), contextLength=2, contextStart=-5),
        sample(X=f32(8, 2).ragged([4, 1, 3]), PaddingData=f32(5, 2), Filter=f32(12, 3), contextLength=6, contextStart=-3, paddingTrainable=True),
        sample(X=f32(8, 2).ragged([4, 0, 1, 3]), PaddingData=f32(3, 2), Filter=f32(4, 3), contextLength=2, contextStart=2, paddingTrainable=True),
        sample(X=f32(5, 2).ragged([4, 1]), PaddingData=f32(0, 2), Filter=f32(2, 3), contextLength=1, paddingTrainable=True),
        sample(X=f32(5, 2).ragged([4, 1]), PaddingData=f32(2, 2), Filter=f32(6, 3), contextLength=3, contextStart=-1),
        sample(X=f32(0, 2).ragged([]), Filter=f32(6, 7), contextLength=3, contextStart=-1),
    ]
    rejects = [
        reject(X=f32(9, 2).ragged([9]), Filter=f32(5, 7), contextLength=3, says="the rows of Filter must be contextLength times"),
        reject(X=f32(9, 2).ragged([9]), Filter=f32(6), contextLength=3, says="Filter must have 2 dims"),
        reject(X=f32(9, 2).ragged([9]), Filter=f32(6, 7), contextLength=3, paddingTrainable=True, says="PaddingData is missing", error=SchemaError),
        reject(X=f32(9, 2).ragged([9]), PaddingData=f32(3, 2), Filter=f32(6, 7), contextLength=3, paddingTrainable=True, says="0 + 2"),
    ]


class RowConv(Operator):
    """Out[t] = the sum over w of X[t + w] * Filter[w], for each column; rows behind the end of a sequence count as 0.

    Formula: Amodei et al., "Deep Speech 2", ICML 2016.
    """

    type = "row_conv"
    examples = ("X",)
    X = operand(FLOATING, doc="ragged [rows, width]; or [sequences, steps, width]")
    Filter = operand(FLOATING, same_type_as="X", doc="[a row and the following ones, width]")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec, Filter: Spec) -> Spec:
        if X.rank != 3:
            ragged(X, "X")
            require_rank(2, X, "X")
        require_rank(2, Filter, "Filter")
        require_at_most(1, Filter.known_dims[0], "Filter must have a row", Filter=0)
        require_equal(X.known_dims[-1], Filter.known_dims[1], "Filter must be as wide as X", X=X.rank - 1, Filter=1)
        return X.like()

    def workspace(self, X: Spec, Filter: Spec) -> Size:
        return 3 * X.nbytes + 24 * X.elements

    def kernel(self, X: Tensor, Filter: Tensor, *, offsets: list[Offsets | None]) -> Tensor:
        out = torch.zeros_like(X, memory_format=torch.contiguous_format)
        for w in range(min(len(Filter), X.shape[-2])):
            self._leading_rows(out, w).add_(self._following_rows(X, w, offsets[0]) * Filter[w])
        return out

    @staticmethod
    def _leading_rows(x: Tensor, w: int) -> Tensor:
        """Return the rows with another one w further."""
        return x[..., : x.shape[-2] - w, :]

    @staticmethod
    def _following_rows(x: Tensor, w: int, sequences: Offsets | None) -> Tensor:
        """Return the rows w further, with zeros where they belong to another sequence."""
        shifted = x[..., w:, :]
        if sequences is None or not w:
            return shifted
        segments = sequences.in_rows(-1).segments
        return shifted * (segments[w:] == segments[: len(segments) - w]).unsqueeze(1)

    def _gradient_workspace(self, X: Spec, Filter: Spec, d_out: Spec) -> Size:
        return 4 * X.nbytes + 24 * X.elements

    @gradient("X", "Filter", "Out@GRAD", gives=("X@GRAD", "Filter@GRAD"), workspace=_gradient_workspace)
    def backward(self, X: Tensor, Filter: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], offsets: list[Offsets | None]) -> Any:
        d_x = torch.zeros_like(X, memory_format=torch.contiguous_format) if requested[0] else None
        d_filter = torch.zeros_like(Filter) if requested[1] else None
        for w in range(min(len(Filter), X.shape[-2])):
            d = self._leading_rows(d_out, w)
            if d_filter is not None:
                d_filter[w] = (d * self._following_rows(X, w, offsets[0])).flatten(0, -2).sum(0)
            if d_x is not None:
                ones = torch.ones_like(X[..., :1])
                d_x[..., w:, :] += d * self._following_rows(ones, w, offsets[0]) * Filter[w]
        return d_x, d_filter

    samples = [
        sample(X=f32(9, 3).ragged([4, 5]), Filter=f32(3, 3)),
        sample(X=f32(2, 5, 4), Filter=f32(2, 4)),
        sample(X=f32(3, 2).ragged([1, 2]), Filter=f32(5, 2)),
    ]
    rejects = [
        reject(X=f32(2, 5, 4), Filter=f32(2, 3), says="as wide as X"),
        reject(X=f32(2, 5, 4), Filter=f32(0, 4), says="Filter must have a row"),
    ]


class AddPositionEncoding(Operator):
    """Out = alpha * X + beta * the code of the position: sin(t / r) in the first half of the columns, cos(t / r) in the second.

    t is the row in its sequence, and r = 10000^(k / (half - 1)) in column k of a half; 10000 if a half is one column.
    """

    type = "add_position_encoding"
    examples = ("X",)
    X = operand(FLOATING, doc="ragged [rows, width]; or [sequences, steps, width]")
    Out = result(doc="as X")
    alpha = attribute(AttrType.FLOAT, 1.0)
    beta = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, X: Spec) -> Spec:
        if X.rank != 3:
            ragged(X, "X")
            require_rank(2, X, "X")
        require_divides(2, X.known_dims[-1], "the columns of X must be two halves", X=X.rank - 1)
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes + 32 * X.elements

    def kernel(self, X: Tensor, *, offsets: list[Offsets | None]) -> Tensor:
        half = X.shape[-1] // 2
        row = torch.arange(X.shape[-2], device=X.device) if offsets[0] is None else offsets[0].in_rows(-1).positions
        power = torch.arange(half, device=X.device).double() / (half - 1) if half > 1 else torch.ones(half, device=X.device).double()
        angle = row.unsqueeze(1) / torch.exp(power * math.log(10000.0))
        return X * self.alpha + torch.cat([angle.sin(), angle.cos()], 1).to(X.dtype) * self.beta

    @gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"})
    def backward(self, d_out: Tensor) -> Tensor:
        return d_out * self.alpha

    samples = [sample(X=f32(2, 5, 6), alpha=0.5, beta=2.0), sample(X=f32(9, 4).ragged([4, 5])), sample(X=f32(2, 3, 2))]
    rejects = [reject(X=f32(2, 5, 3), says="two halves")]
