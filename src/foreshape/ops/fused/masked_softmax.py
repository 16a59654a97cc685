"""Softmax of masked scores, as attention has it, in one operator."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.operator import Operator, gradient, operand, result
from foreshape.operator.composition import Composition
from foreshape.operator.require import require_equal, require_rank
from foreshape.operator.samples import f32, reject, sample
from foreshape.spec import FLOATING, Spec
from foreshape.values.torch_private import private
from foreshape.values.torch_proxy import Tensor, torch


class FusedSoftmaxMask(Operator):
    """Out = softmax(X + Mask) along the last axis. Mask has no gradient."""

    type = "fused_softmax_mask"
    X = operand(FLOATING, doc="[batch, heads, queries, keys]")
    Mask = operand(FLOATING, same_type_as="X", doc="[batch, 1, queries, keys]")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec, Mask: Spec) -> Spec:
        require_rank(4, X, "X")
        require_rank(4, Mask, "Mask")
        require_equal(Mask.known_dims[1], 1, "dim 1 of Mask must be 1", Mask=1)
        for at in (0, 2, 3):
            require_equal(X.known_dims[at], Mask.known_dims[at], "Mask must have the dims of X, but 1 for the heads", X=at, Mask=at)
        return X.like()

    def expand(self, of: Composition, X: Any, Mask: Any) -> Any:
        return of("softmax", {"axis": -1}, X=of("elementwise_add", X=X, Y=Mask))

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out"}, called={"Out": "Softmax"})
    def backward(self, of: Composition, Out: Any, d_out: Any) -> Any:
        return of("softmax_grad", {"axis": -1}, **{"Out": Out, "Out@GRAD": d_out})

    samples = [sample(X=f32(2, 3, 4, 5), Mask=f32(2, 1, 4, 5)), sample(X=f32(1, 2, 8, 8), Mask=f32(1, 1, 8, 8))]
    rejects = [
        reject(X=f32(2, 3, 4, 5), Mask=f32(2, 3, 4, 5), says="dim 1 of Mask must be 1"),
        reject(X=f32(2, 3, 4, 5), Mask=f32(2, 1, 4, 6), says="Mask must have the dims of X"),
    ]


class FusedSoftmaxMaskUpperTriangle(Operator):
    """Out = softmax along the last axis over the lower triangle of X's last two dims, with the diagonal; 0 above it."""

    type = "fused_softmax_mask_upper_triangle"
    X = operand(FLOATING, doc="[batch, heads, steps, steps]")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec) -> Spec:
        require_rank(4, X, "X")
        require_equal(X.known_dims[2], X.known_dims[3], "the last two dims of X must be equal", X=3)
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return X.nbytes + 2 * X.known_dims[3] * X.known_dims[3]

    def kernel(self, X: Tensor) -> Tensor:
        above = torch.ones(X.shape[2:], dtype=torch.bool, device=X.device).triu_(1)
        return torch.softmax(X.masked_fill(above, -torch.inf), -1)

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out"})
    def backward(self, Out: Tensor, d_out: Tensor) -> Any:
        return private.softmax_gradient(d_out, Out, -1, Out.dtype)

    samples = [sample(X=f32(2, 3, 4, 4)), sample(X=f32(1, 2, 1, 1))]
    rejects = [reject(X=f32(2, 3, 4, 5), says="the last two dims of X must be equal"), reject(X=f32(3, 4, 4), says="X must have 4 dims")]
