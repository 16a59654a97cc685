"""Parts of a tensor with bounded norms."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import axis_of, require
from foreshape.operator.samples import f32, reject, sample
from foreshape.spec import FP32, FP64, Spec
from foreshape.values.torch_proxy import Tensor, aten, torch

_BESIDE = 1e-7
"""The term added to a norm used as a divisor."""


class Renorm(Operator):
    """Out = X, with each part along ``axis`` of a p-norm above ``max_norm`` multiplied by max_norm / (norm + 1e-7)."""

    type = "renorm"
    X = operand((FP32, FP64), doc="at least 2 dims")
    Out = result(layout="row", doc="as X")
    p = attribute(AttrType.FLOAT, doc="more than 0")
    axis = attribute(AttrType.INT)
    max_norm = attribute(AttrType.FLOAT, low=0.0)

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        require(self.p > 0.0, f"p must be more than 0, not {self.p}", X=None)
        axis_of(self.axis, X.rank, X=None)
        return X.like()

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes

    def kernel(self, X: Tensor) -> Tensor:
        _, _, factors = self._factors(X)
        return (X * factors).contiguous()

    def _factors(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return for each part the norm, the mask of too large norms, and the factor; they broadcast to x."""
        others = [a for a in range(x.dim()) if a != self.axis % x.dim()]
        norms: Tensor = aten.linalg_vector_norm(x, self.p, others, True)
        large: Tensor = norms > self.max_norm
        return norms, large, torch.where(large, self.max_norm / (norms + _BESIDE), torch.ones_like(norms))

    def _gradient_workspace(self, X: Spec, d_out: Spec) -> Size:
        return 8 * X.nbytes

    @gradient("X", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace, layout={"X@GRAD": "row"})
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        others = [a for a in range(X.dim()) if a != self.axis % X.dim()]
        norms, large, factors = self._factors(X)
        slope = -self.max_norm / (norms + _BESIDE).square_() * (d_out * X).sum(others, keepdim=True)
        slope = torch.where(large, slope * norms.pow(1.0 - self.p), torch.zeros_like(norms))
        return (d_out * factors).addcmul_(X.sign() * X.abs().pow_(self.p - 1.0), slope).contiguous()

    samples = [
        sample(X=f32(3, 4), p=2.0, axis=0, max_norm=0.5),
        sample(X=f32(2, 3, 4), p=3.0, axis=2, max_norm=2.0),
        sample(X=f32(2, 3, 4), p=1.5, axis=1, max_norm=100.0),
    ]
    rejects = [
        reject(X=f32(3), p=2.0, axis=0, max_norm=0.5, says="at least 2 dims"),
        reject(X=f32(3, 4), p=0.0, axis=0, max_norm=0.5, says="p must be more than 0"),
        reject(X=f32(3, 4), p=2.0, axis=2, max_norm=0.5, says="axis must be in"),
        reject(X=f32(3, 4), p=2.0, axis=1, max_norm=-1.0, says="at least 0", error=SchemaError),
    ]
