"""Symmetric matrices in the last two dims: eigenvalues and eigenvectors."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size
from foreshape.errors import SchemaError
from foreshape.kernels.products import matmul
from foreshape.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.operator.samples import f32, reject, sample
from foreshape.ops.math.linear_algebra import REAL, square
from foreshape.ops.rules.gradient_dims import check_made
from foreshape.spec import Spec
from foreshape.values.torch_proxy import Tensor, aten, torch

_SYMMETRIC = f32(3, 2, 2, data=[[[2.0, 0.5], [0.5, 3.0]], [[4.0, -1.0], [-1.0, 0.7]], [[1.0, 0.2], [0.2, -1.0]]])
_THREE = f32(3, 3, data=[[1.0, 0.3, -0.5], [0.3, 2.0, 0.1], [-0.5, 0.1, -1.0]])
_ROW: dict[str, Any] = {"X@GRAD": "row"}


class Symmetric(Operator):
    """The base of both: their operand and the time they take."""

    abstract = True
    X = operand(REAL, doc="[..., n, n]")
    Eigenvalues = result(layout="row", doc="[..., n], the least first")
    Eigenvectors = result(layout="row", doc="[..., n, n], a column for each")
    UPLO = attribute(AttrType.STRING, "L", choices=("L", "U"), doc="the triangle of X that is read, lower or upper")

    def infer_shape(self, X: Spec) -> Any:
        n = square(X, "X")
        return X.with_dims((*X.known_dims[:-2], n)), X.like()

    def work(self, X: Spec) -> Size:
        return 9 * X.elements * X.known_dims[-1]

    def _bytes(self, X: Spec) -> Size:
        n = X.known_dims[-1]
        return 8 * X.nbytes + 64 * X.known_dtype.itemsize * (n + 64) + 4 * X.known_dtype.itemsize * n * n

    def workspace(self, X: Spec) -> Size:
        return self._bytes(X)

    def _parts(self, X: Tensor) -> Any:
        values, vectors = aten.linalg_eigh(X, self.UPLO)
        return values.contiguous(), vectors.contiguous()


class Eigh(Symmetric):
    """X = V diag(Eigenvalues) V^T, with the Eigenvectors V, of symmetric matrices; one triangle is read.

    The gradient holds for distinct eigenvalues, over all of X, as if both triangles were read.
    """

    type = "eigh"

    def kernel(self, X: Tensor) -> Any:
        return self._parts(X)

    def _infer_gradient(self, Eigenvalues: Spec, Eigenvectors: Spec, d_values: Spec, d_vectors: Spec) -> Spec:
        square(Eigenvectors, "Eigenvectors")
        check_made(
            Eigenvalues=(Eigenvalues, Eigenvectors.with_dims(Eigenvectors.known_dims[:-1])),
            Eigenvalues_GRAD=(d_values, Eigenvectors.with_dims(Eigenvectors.known_dims[:-1])),
            Eigenvectors_GRAD=(d_vectors, Eigenvectors),
        )
        return Eigenvectors.like()

    def _gradient_workspace(self, Eigenvalues: Spec, Eigenvectors: Spec, d_values: Spec, d_vectors: Spec) -> Size:
        return 2 * self._bytes(Eigenvectors)

    @gradient("Eigenvalues", "Eigenvectors", "Eigenvalues@GRAD", "Eigenvectors@GRAD", gives="X@GRAD", infer=_infer_gradient,
              workspace=_gradient_workspace, layout=_ROW)  # fmt: skip
    def backward(self, Eigenvalues: Tensor, Eigenvectors: Tensor, d_values: Tensor, d_vectors: Tensor) -> Tensor:
        turned = matmul(Eigenvectors.mT, d_vectors)
        apart = Eigenvalues.unsqueeze(-2) - Eigenvalues.unsqueeze(-1)
        apart.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        inner = turned.div_(apart)
        inner.diagonal(dim1=-2, dim2=-1).copy_(d_values)
        return matmul(matmul(Eigenvectors, inner), Eigenvectors.mT)

    samples = [
        sample(X=_SYMMETRIC, differentiate=False),  # one half of a symmetric matrix does not change alone
        sample(X=_THREE, UPLO="U", differentiate=False),
        sample(X=f32(1, 1, low=0.5)),
        sample(X=f32(0, 3, 3), differentiate=False),
    ]
    rejects = [
        reject(X=f32(2, 3), says="square matrices"),
        reject(X=f32(3), says="at least 2 dims"),
        reject(X=f32(2, 2), UPLO="D", says="one of", error=SchemaError),
    ]


class Eigvalsh(Symmetric):
    """Eigenvalues of symmetric matrices; one triangle is read. Eigenvectors are for the gradient, and zeros with ``is_test``."""

    type = "eigvalsh"
    Eigenvectors = result(layout="row", doc="[..., n, n], a column for each; zeros with is_test")
    is_test = attribute(AttrType.BOOLEAN, False)

    def kernel(self, X: Tensor, *, requested: tuple[bool, ...]) -> Any:
        if self.is_test:
            return aten.linalg_eigvalsh(X, self.UPLO).contiguous(), X.new_zeros(X.shape) if requested[1] else None
        return self._parts(X)

    def _infer_gradient(self, Eigenvectors: Spec, d_values: Spec) -> Spec:
        square(Eigenvectors, "Eigenvectors")
        check_made(Eigenvalues_GRAD=(d_values, Eigenvectors.with_dims(Eigenvectors.known_dims[:-1])))
        return Eigenvectors.like()

    def _gradient_workspace(self, Eigenvectors: Spec, d_values: Spec) -> Size:
        return self._bytes(Eigenvectors)

    @gradient("Eigenvectors", "Eigenvalues@GRAD", gives="X@GRAD", infer=_infer_gradient, workspace=_gradient_workspace, layout=_ROW)
    def backward(self, Eigenvectors: Tensor, d_values: Tensor) -> Tensor:
        return matmul(Eigenvectors * d_values.unsqueeze(-2), Eigenvectors.mT)

    samples = [
        sample(X=_SYMMETRIC, differentiate=False),
        sample(X=_THREE, UPLO="U", differentiate=False),
        sample(X=_THREE, is_test=True, differentiate=False),
        sample(X=f32(1, 1, low=0.5)),
    ]
    rejects = [reject(X=f32(2, 3), says="square matrices"), reject(X=f32(3), says="at least 2 dims")]
