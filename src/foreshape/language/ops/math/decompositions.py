"""Decompositions of matrices in the last two dims: singular values, orthogonal and triangular factors, eigenvalues of symmetric ones."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import INT32, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import SchemaError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_at_most
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.math.linear_algebra import REAL, square
from foreshape.language.ops.rules.broadcast import broadcast_dims, broadcast_lod
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.machine.kernels.products import matmul

TALL = f32(4, 2, data=[[1.0, 0.2], [-0.5, 2.0], [0.7, 0.4], [1.5, -1.0]])
WIDE = f32(2, 3, data=[[1.0, 0.2, -0.6], [-0.5, 2.0, 0.9]])
PAIR = f32(2, 2, 2, data=[[[2.0, 0.5], [-1.0, 3.0]], [[-1.0, 4.0], [2.0, 0.3]]])
"""The matrices of samples of decompositions."""
IN_ROWS: dict[str, Any] = {"X@GRAD": "row"}


def matrices(spec: Spec, slot: str) -> tuple[tuple[Size, ...], Size, Size]:
    """Return the batch dims, the rows and the columns."""
    require(spec.rank >= 2, f"{slot} must have at least 2 dims, not {spec.rank}", **{slot: None})
    *batch, rows, columns = spec.known_dims
    return tuple(batch), rows, columns


def _differences(squares: Tensor) -> Tensor:
    """Return 1 / (squares[j] - squares[i]) at [i, j], and 0 on the diagonal."""
    apart = squares.unsqueeze(-2) - squares.unsqueeze(-1)
    apart.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
    return apart.reciprocal_()


class Svd(Operator):
    """X = U diag(S) VH, with orthogonal columns in U, orthogonal rows in VH, and the singular values S from the largest on.

    U and VH have as many columns and rows as the smaller dim of the matrices, or with ``full_matrices`` are square. The gradient holds for distinct singular
    values (Townsend, "Differentiating the singular value decomposition", 2016); with ``full_matrices`` only S has one. The signs of a pair of vectors depend on
    the library.
    """

    type = "svd"
    X = operand(REAL, doc="[..., m, n]")
    U = result(layout="row", doc="[..., m, min(m, n)], or [..., m, m]")
    S = result(layout="row", doc="[..., min(m, n)]")
    VH = result(layout="row", doc="[..., min(m, n), n], or [..., n, n]")
    full_matrices = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> Any:
        batch, m, n = matrices(X, "X")
        k = minimum(m, n)
        full = self.full_matrices
        return X.with_dims((*batch, m, m if full else k)), X.with_dims((*batch, k)), X.with_dims((*batch, n if full else k, n))

    def work(self, X: Spec) -> Size:
        return 8 * X.elements * minimum(*X.known_dims[-2:])

    def _bytes(self, X: Spec) -> Size:
        _, m, n = matrices(X, "X")
        item = X.known_dtype.itemsize
        return 8 * X.nbytes + sum((s.nbytes for s in Svd.infer_shape(self, X)), 0) + 64 * item * (m + n + 64) + 8 * item * minimum(m, n) * (m + n)

    def workspace(self, X: Spec) -> Size:
        return self._bytes(X)

    def kernel(self, X: Tensor) -> Any:
        u, s, vh = aten.linalg_svd(X, self.full_matrices)
        return u.contiguous(), s.contiguous(), vh.contiguous()

    def _infer_gradient(self, X: Spec, U: Spec, S: Spec, VH: Spec, d_u: Spec | None, d_s: Spec | None, d_vh: Spec | None) -> Spec:
        u, s, vh = Svd.infer_shape(self, X)
        check_made(U=(U, u), S=(S, s), VH=(VH, vh), U_GRAD=(d_u, u), S_GRAD=(d_s, s), VH_GRAD=(d_vh, vh))
        if self.full_matrices and not (d_u is None and d_vh is None):
            fail("there is no gradient with full_matrices, but through S", SchemaError, X=None)
        return X.like()

    def _gradient_workspace(self, X: Spec, *operands: Spec | None) -> Size:
        _, m, n = matrices(X, "X")
        return 3 * self._bytes(X) + 8 * X.known_dtype.itemsize * (m * m + n * n)

    @gradient("X", "U", "S", "VH", "U@GRAD", "S@GRAD", "VH@GRAD", gives="X@GRAD", infer=_infer_gradient, layout=IN_ROWS,
              workspace=_gradient_workspace, absent=("U@GRAD", "S@GRAD", "VH@GRAD"))  # fmt: skip
    def backward(self, X: Tensor, U: Tensor, S: Tensor, VH: Tensor, d_u: Tensor | None, d_s: Tensor | None, d_vh: Tensor | None) -> Tensor:
        k = S.shape[-1]
        u, vh = U[..., :k], VH[..., :k, :]
        inner = torch.diag_embed(torch.zeros_like(S) if d_s is None else d_s)
        beside = torch.zeros_like(X)
        apart = _differences(S.square())
        if d_u is not None:
            projected = matmul(u.mT, d_u)
            inner += apart * (projected - projected.mT) * S.unsqueeze(-2)
            beside += matmul((d_u - matmul(u, projected)) / S.unsqueeze(-2), vh)
        if d_vh is not None:
            projected = matmul(vh, d_vh.mT)
            inner += S.unsqueeze(-1) * apart * (projected - projected.mT)
            beside += matmul(u, (d_vh - matmul(matmul(d_vh, vh.mT), vh)) / S.unsqueeze(-1))
        return matmul(matmul(u, inner), vh).add_(beside)

    samples = [
        sample(X=TALL),
        sample(X=WIDE),
        sample(X=PAIR),
        sample(X=TALL, full_matrices=True, differentiate=False),
        sample(X=WIDE, full_matrices=True, differentiate=False),
        sample(X=f32(0, 3, 2), differentiate=False),
    ]


class Qr(Operator):
    """X = Q R, with orthogonal columns in Q and upper triangular R.

    ``mode`` reduced: Q is [..., m, k], k the smaller dim of the matrices. complete: Q is square. r: R as in reduced, and Q empty, [0]. Reduced has a gradient,
    and complete if m is at most n.
    """

    type = "qr"
    X = operand(REAL, doc="[..., m, n]")
    Q = result(layout="row", doc="[..., m, k], [..., m, m] or [0]")
    R = result(layout="row", doc="[..., k, n] or [..., m, n]")
    mode = attribute(AttrType.STRING, "reduced", choices=("reduced", "complete", "r"))

    def infer_shape(self, X: Spec) -> Any:
        batch, m, n = matrices(X, "X")
        k = m if self.mode == "complete" else minimum(m, n)
        return X.dense((0,)) if self.mode == "r" else X.with_dims((*batch, m, k)), X.with_dims((*batch, k, n))

    def work(self, X: Spec) -> Size:
        return 3 * X.elements * minimum(*X.known_dims[-2:])

    def _bytes(self, X: Spec) -> Size:
        batch, m, n = matrices(X, "X")
        squares = X.with_dims((*batch, m, m)).nbytes + X.nbytes
        return 4 * squares + 64 * X.known_dtype.itemsize * (m + n + 64)

    def workspace(self, X: Spec) -> Size:
        return self._bytes(X)

    def kernel(self, X: Tensor) -> Any:
        q, r = aten.linalg_qr(X, self.mode)
        return q.reshape(0) if self.mode == "r" else q.contiguous(), r.contiguous()

    def _infer_gradient(self, X: Spec, Q: Spec, R: Spec, d_q: Spec, d_r: Spec) -> Spec:
        _, m, n = matrices(X, "X")
        q, r = Qr.infer_shape(self, X)
        check_made(Q=(Q, q), R=(R, r), Q_GRAD=(d_q, q), R_GRAD=(d_r, r))
        if self.mode == "r":
            fail("there is no gradient with mode r, which makes no Q", SchemaError, X=None)
        if self.mode == "complete":
            words = "there is no gradient with mode complete where the matrices have more rows than columns"
            if isinstance(m, int) and isinstance(n, int) and m > n:
                fail(words, SchemaError, X=None)
            require_at_most(m, n, words, X=None)
        return X.like()

    def _gradient_workspace(self, X: Spec, *operands: Spec) -> Size:
        return 3 * self._bytes(X)

    @gradient("X", "Q", "R", "Q@GRAD", "R@GRAD", gives="X@GRAD", infer=_infer_gradient, layout=IN_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Q: Tensor, R: Tensor, d_q: Tensor, d_r: Tensor) -> Tensor:
        k = Q.shape[-1]
        if X.shape[-1] > k:  # the columns after the first k only go into R, as Q^T X
            d_right = d_r[..., k:]
            d_q = d_q + matmul(X[..., k:], d_right.mT)
            return torch.cat((self._undone(Q, R[..., :k], d_q, d_r[..., :k]), matmul(Q, d_right)), -1)
        return self._undone(Q, R, d_q, d_r)

    def _undone(self, q: Tensor, r: Tensor, d_q: Tensor, d_r: Tensor) -> Tensor:
        inner = matmul(r, d_r.mT) - matmul(d_q.mT, q)
        lower = inner.tril(-1)
        inner = lower + lower.mT + torch.diag_embed(inner.diagonal(dim1=-2, dim2=-1))
        return aten.linalg_solve_triangular(r.mT, d_q + matmul(q, inner), upper=False, left=False).contiguous()

    samples = [
        sample(X=TALL),
        sample(X=WIDE),
        sample(X=PAIR),
        sample(X=WIDE, mode="complete"),
        sample(X=TALL, mode="complete", differentiate=False),
        sample(X=TALL, mode="r", differentiate=False),
        sample(X=f32(0, 3, 2), differentiate=False),
    ]


class MatrixRank(Operator):
    """Out = the number of singular values of each matrix above a tolerance; with ``hermitian`` of eigenvalues' magnitudes.

    The tolerance is TolTensor, or else ``tol``. With ``use_default_tol`` it is at least the largest value times the larger dim of the matrices and the epsilon
    of the element type.
    """

    type = "matrix_rank"
    gradient = NOT_DIFFERENTIABLE
    X = operand(REAL, doc="[..., m, n]")
    TolTensor = operand(REAL, optional=True, same_type_as="X", doc="broadcast to the batch dims of X, or they to it")
    Out = result(doc="int32 [...]")
    tol = attribute(AttrType.FLOAT, 0.0)
    hermitian = attribute(AttrType.BOOLEAN, False, doc="the matrices are symmetric; their lower triangles are read")
    use_default_tol = attribute(AttrType.BOOLEAN, True)

    def infer_shape(self, X: Spec, TolTensor: Spec | None) -> Spec:
        batch, _, _ = matrices(X, "X")
        if self.hermitian:
            square(X, "X")
        of_x = X.with_dims(batch) if batch else X.dense(())
        if TolTensor is not None:
            batch = broadcast_dims(batch, TolTensor.known_dims, -1, ("X", "TolTensor"))
            return Spec(X.kind, INT32, batch, broadcast_lod(of_x, TolTensor, batch))
        return of_x.with_dtype(INT32)

    def work(self, X: Spec, TolTensor: Spec | None) -> Size:
        return 4 * X.elements * minimum(*X.known_dims[-2:])

    def workspace(self, X: Spec, TolTensor: Spec | None) -> Size:
        _, m, n = matrices(X, "X")
        item = X.known_dtype.itemsize
        out = MatrixRank.infer_shape(self, X, TolTensor)
        return 8 * X.nbytes + 64 * item * (m + n + 64) + 4 * item * out.elements * (minimum(m, n) + 2)

    def kernel(self, X: Tensor, TolTensor: Tensor | None) -> Tensor:
        spectrum = aten.linalg_eigvalsh(X).abs_() if self.hermitian else aten.linalg_svdvals(X)
        least = X.new_full((), self.tol) if TolTensor is None else TolTensor
        if self.use_default_tol and spectrum.shape[-1]:
            least = torch.maximum(least, spectrum.amax(-1) * (torch.finfo(X.dtype).eps * max(X.shape[-2:])))
        return (spectrum > least.unsqueeze(-1)).sum(-1).to(torch.int32)

    samples = [
        sample(X=TALL),
        sample(X=f32(2, 2, 2, data=[[[1.0, 2.0], [2.0, 4.0]], [[1.0, 0.0], [0.0, 1.0]]])),
        sample(X=f32(2, 2, 2, data=[[[1.0, 2.0], [2.0, 4.0]], [[3.0, 0.0], [0.0, 1.0]]]), hermitian=True),
        sample(X=PAIR, tol=2.5, use_default_tol=False),
        sample(X=PAIR, TolTensor=f32(2, data=[2.5, 0.1]), use_default_tol=False),
        sample(X=PAIR, TolTensor=f32(3, 1, data=[[0.0], [2.5], [9.0]])),
    ]
    rejects = [
        reject(X=f32(2, 3), hermitian=True, says="square matrices"),
        reject(X=f32(4, 2, 2), TolTensor=f32(3), says="equal or 1"),
    ]


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
        projected = matmul(Eigenvectors.mT, d_vectors)
        apart = Eigenvalues.unsqueeze(-2) - Eigenvalues.unsqueeze(-1)
        apart.diagonal(dim1=-2, dim2=-1).fill_(torch.inf)
        inner = projected.div_(apart)
        inner.diagonal(dim1=-2, dim2=-1).copy_(d_values)
        return matmul(matmul(Eigenvectors, inner), Eigenvectors.mT)

    samples = [
        sample(X=_SYMMETRIC, differentiate=False),  # one half of a symmetric matrix does not change alone
        sample(X=_THREE, UPLO="U", differentiate=False),
        sample(X=f32(1, 1, low=0.5)),
        sample(X=f32(0, 3, 3), differentiate=False),
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
