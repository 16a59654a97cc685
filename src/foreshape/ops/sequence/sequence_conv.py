"""sequence_conv: a product with each row's neighbours in its sequence."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import fail, require_equal, require_rank
from foreshape.operator.samples import f32, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.ops.rules.ragged_rules import ragged
from foreshape.spec import FLOATING, Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor, aten, torch

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
            before, after = self._outside()
            words = f"the rows of PaddingData must be those before and after a sequence, {before} + {after}"
            require_equal(PaddingData.known_dims[0], before + after, words, PaddingData=0)
            require_equal(PaddingData.known_dims[1], width, "the columns of PaddingData must be those of X", PaddingData=1, X=1)
        return X.with_dims((X.known_dims[0], Filter.known_dims[1]))

    def work(self, X: Spec, PaddingData: Spec | None, Filter: Spec) -> Size:
        return X.known_dims[0] * Filter.elements

    def _context(self, X: Tensor, PaddingData: Tensor | None, where: Offsets) -> tuple[Tensor, Tensor, int]:
        """Return each row with its context, ``[rows, contextLength * width]``, the row numbers of its parts, and the number of rows outside.

        A part outside of a sequence has the number of its padding row, after the rows of X.
        """
        start, length = self.contextStart, self.contextLength
        before, after = self._outside()
        trained = self.paddingTrainable and before + after > 0

        def make() -> Tensor:
            rows = where.rows
            at = where.positions.unsqueeze(1) + torch.arange(start, start + length, device=X.device)
            lengths = where.lengths.index_select(0, where.segments).unsqueeze(1)
            inside = at + (where.last[:-1].index_select(0, where.segments)).unsqueeze(1)
            if not trained:
                return torch.where((at >= 0) & (at < lengths), inside, rows).view(-1)
            outside = torch.where(at < 0, at + (rows + before), at - lengths + (rows + before))
            return torch.where((at >= 0) & (at < lengths), inside, outside).view(-1)

        index = where.kept(("context", start, length, trained), make)
        outside = PaddingData if trained and PaddingData is not None else X.new_zeros((1, X.shape[1]))
        around = torch.cat((X, outside)).index_select(0, index)
        return around.view(X.shape[0], length * X.shape[1]), index, outside.shape[0]

    def _gathered(self, X: Spec, PaddingData: Spec | None, made: Size) -> Size:
        """Return the bytes of each row with its context. X with its padding rows is there before the results of ``made`` numbers a row."""
        width = X.known_dims[1]
        before = 0 if isinstance(made, int) and isinstance(width, int) and made >= width else X.nbytes
        outside = width * X.known_dtype.itemsize + (0 if PaddingData is None else PaddingData.nbytes)
        return X.nbytes * self.contextLength + before + 2 * outside

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
        reject(X=f32(9, 2), Filter=f32(6, 7), contextLength=3, says="X must be ragged", error=TypeMismatchError),
        reject(X=f32(9, 2).ragged([9]), Filter=f32(5, 7), contextLength=3, says="the rows of Filter must be contextLength times"),
        reject(X=f32(9, 2).ragged([9]), Filter=f32(6), contextLength=3, says="Filter must have 2 dims"),
        reject(X=f32(9, 2).ragged([9]), Filter=f32(0, 7), contextLength=0, says="contextLength must be at least 1", error=SchemaError),
        reject(X=f32(9, 2).ragged([9]), Filter=f32(6, 7), contextLength=3, contextStride=2, says="contextStride must be one of 1", error=SchemaError),
        reject(X=f32(9, 2).ragged([9]), Filter=f32(6, 7), contextLength=3, paddingTrainable=True, says="PaddingData is missing", error=SchemaError),
        reject(X=f32(9, 2).ragged([9]), PaddingData=f32(3, 2), Filter=f32(6, 7), contextLength=3, paddingTrainable=True, says="0 + 2"),
        reject(X=f32(9, 2).ragged([9]), PaddingData=f32(2, 3), Filter=f32(6, 7), contextLength=3, paddingTrainable=True, says="the columns of PaddingData"),
    ]
