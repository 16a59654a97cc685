"""Operators on rows of sequences with their following rows, and with their positions."""

from __future__ import annotations

import math
from typing import Any

from foreshape.dims import Size
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require_at_most, require_divides, require_equal, require_rank
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.rules.ragged_rules import ragged
from foreshape.spec import FLOATING, Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor, torch


class RowConv(Operator):
    """Out[t] = the sum over w of X[t + w] * Filter[w], for each column; rows behind the end of a sequence count as 0.

    Formula: Amodei et al., "Deep Speech 2", ICML 2016.
    """

    type = "row_conv"
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
            self._before(out, w).add_(self._after(X, w, offsets[0]) * Filter[w])
        return out

    @staticmethod
    def _before(x: Tensor, w: int) -> Tensor:
        """Return the rows with another one w further."""
        return x[..., : x.shape[-2] - w, :]

    @staticmethod
    def _after(x: Tensor, w: int, of: Offsets | None) -> Tensor:
        """Return the rows w further, with zeros where they belong to another sequence."""
        moved = x[..., w:, :]
        if of is None or not w:
            return moved
        segments = of.in_rows(-1).segments
        return moved * (segments[w:] == segments[: len(segments) - w]).unsqueeze(1)

    def _gradient_workspace(self, X: Spec, Filter: Spec, d_out: Spec) -> Size:
        return 4 * X.nbytes + 24 * X.elements

    @gradient("X", "Filter", "Out@GRAD", gives=("X@GRAD", "Filter@GRAD"), workspace=_gradient_workspace)
    def backward(self, X: Tensor, Filter: Tensor, d_out: Tensor, *, requested: tuple[bool, ...], offsets: list[Offsets | None]) -> Any:
        d_x = torch.zeros_like(X, memory_format=torch.contiguous_format) if requested[0] else None
        d_filter = torch.zeros_like(Filter) if requested[1] else None
        for w in range(min(len(Filter), X.shape[-2])):
            d = self._before(d_out, w)
            if d_filter is not None:
                d_filter[w] = (d * self._after(X, w, offsets[0])).flatten(0, -2).sum(0)
            if d_x is not None:
                one = torch.ones_like(X[..., :1])
                d_x[..., w:, :] += d * self._after(one, w, offsets[0]) * Filter[w]
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
