"""spectral_norm: a weight divided by its largest singular value, approximated step by step."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size, product
from foreshape.errors import SchemaError
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.require import require, require_at_most, require_equal
from foreshape.operator.samples import f32, reject, sample
from foreshape.operator.temporaries import copies
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.spec import FLOATING, Spec
from foreshape.values.torch_proxy import Tensor, torch


class SpectralNorm(Operator):
    """Out = Weight / sigma with sigma = U^T W V, where W is Weight as a matrix with the rows ``dim`` (Miyato et al., 2018).

    U and V approach the first singular vectors in ``power_iters`` steps, V = W^T U / (|W^T U| + eps) and U = W V / (|W V| + eps); the new vectors are not kept.
    The gradient takes them as constants. (PaddlePaddle's CPU kernel gives ``(d - d * U V^T * sum(W) / sigma) / sigma`` as the gradient, elementwise; it is not
    the gradient of the result.)
    """

    type = "spectral_norm"
    Weight = operand(FLOATING, doc="2 to 5 dims")
    U = operand(FLOATING, same_type_as="Weight", doc="[rows]: the size of dim")
    V = operand(FLOATING, same_type_as="Weight", doc="[columns]: the product of the other dims")
    Out = result(doc="as Weight", layout="row")
    dim = attribute(AttrType.INT, 0, doc="0 or 1")
    power_iters = attribute(AttrType.INT, 1, low=0, high=1000, doc="steps of the power iteration; it converges long before the maximum")
    eps = attribute(AttrType.FLOAT, 1e-12, low=0.0)

    def infer_shape(self, Weight: Spec, U: Spec, V: Spec) -> Spec:
        require(2 <= Weight.rank <= 5, f"Weight must have 2 to 5 dims, not {Weight.rank}", Weight=None)
        require(self.dim in (0, 1), f"dim must be 0 or 1; seen {self.dim}", Weight=None)
        dims = Weight.known_dims
        for at, size in enumerate(dims):
            require_at_most(1, size, "Weight must not be empty", Weight=at)
        row: int = self.dim
        rows, columns = dims[row], product([d for at, d in enumerate(dims) if at != row])
        for slot, spec, size, what in (("U", U, rows, "row"), ("V", V, columns, "column")):
            require(spec.rank == 1, f"{slot} must have 1 dim, not {spec.rank}", **{slot: None})
            require_equal(spec.known_dims[0], size, f"{slot} must have one number for each {what} of Weight as a matrix, {size}", **{slot: 0, "Weight": None})
        return Weight.like()

    def _found(self, Weight: Tensor, U: Tensor, V: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """Return the matrix, U and V as the steps leave them, and sigma."""
        row: int = self.dim
        matrix = Weight.movedim(row, 0).reshape(Weight.shape[row], -1)
        u, v = U, V
        for _ in range(self.power_iters):
            v = matrix.t() @ u
            v = v / ((v * v).sum().sqrt_() + self.eps)
            u = matrix @ v
            u = u / ((u * u).sum().sqrt_() + self.eps)
        return matrix, u, v, u @ (matrix @ v)

    def kernel(self, Weight: Tensor, U: Tensor, V: Tensor) -> Tensor:
        return Weight.contiguous() / self._found(Weight, U, V)[3]

    def workspace(self, Weight: Spec, U: Spec, V: Spec, *, strided: frozenset[str]) -> Size:
        return 2 * Weight.nbytes + 4 * (U.nbytes + V.nbytes) + 16384 + copies(strided, Weight=Weight, U=U, V=V)

    def _infer_gradient(self, Weight: Spec, U: Spec, V: Spec, d_out: Spec) -> Any:
        check_made(Out_GRAD=(d_out, SpectralNorm.infer_shape(self, Weight, U, V)))
        return Weight.like()

    def _gradient_workspace(self, Weight: Spec, U: Spec, V: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 5 * Weight.nbytes + 4 * (U.nbytes + V.nbytes) + 16384 + copies(strided, Weight=Weight, U=U, V=V, Out_GRAD=d_out)

    @gradient("Weight", "U", "V", "Out@GRAD", gives="Weight@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout={"Weight@GRAD": "row"})
    def backward(self, Weight: Tensor, U: Tensor, V: Tensor, d_out: Tensor) -> Tensor:
        matrix, u, v, sigma = self._found(Weight, U, V)
        d = d_out.movedim(self.dim, 0).reshape(matrix.shape)
        along = (d * matrix).sum() / sigma
        out = (d - torch.outer(u, v) * along) / sigma
        dims: list[int] = [Weight.shape[self.dim], *(n for at, n in enumerate(Weight.shape) if at != self.dim)]
        return out.view(dims).movedim(0, self.dim).clone(memory_format=torch.contiguous_format)

    samples = [
        sample(Weight=f32(4, 5, 3), U=f32(4, low=0.5), V=f32(15, low=0.5), power_iters=2, eps=1e-5, differentiate=False),
        sample(Weight=f32(4, 5, 3), U=f32(5, low=0.5), V=f32(12, low=0.5), dim=1, differentiate=False),
        sample(Weight=f32(4, 5, low=0.5), U=f32(4, low=0.5), V=f32(5, low=0.5), power_iters=0),
        sample(Weight=f32(4, 3, 2, low=0.5), U=f32(3, low=0.5), V=f32(8, low=0.5), dim=1, power_iters=0),
    ]
    rejects = [
        reject(Weight=f32(4, 5), U=f32(4), V=f32(5), power_iters=2**31 - 1, says="at most 1000", error=SchemaError),
        reject(Weight=f32(4), U=f32(4), V=f32(1), says="Weight must have 2 to 5 dims"),
        reject(Weight=f32(4, 5), U=f32(5), V=f32(5), says="U must have one number for each row"),
        reject(Weight=f32(4, 5), U=f32(4), V=f32(4), says="V must have one number for each column"),
        reject(Weight=f32(4, 5), U=f32(4, 1), V=f32(5), says="U must have 1 dim"),
        reject(Weight=f32(4, 5), U=f32(4), V=f32(5), dim=2, says="dim must be 0 or 1"),
        reject(Weight=f32(4, 0), U=f32(4), V=f32(0), says="must not be empty"),
    ]
