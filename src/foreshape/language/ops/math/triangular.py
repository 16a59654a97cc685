"""Matrices in the last two dims as products of triangular ones, with their rows in another order."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import INT32, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_equal
from foreshape.language.operator.samples import f32, i32, reject, sample
from foreshape.language.ops.math.decompositions import IN_ROWS, PAIR, TALL, WIDE, matrices
from foreshape.language.ops.math.linear_algebra import REAL
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.machine.kernels.products import matmul


class Lu(Operator):
    """Out = L and U in one, where P X = L U: L below the diagonal, with ones on its own, and U from the diagonal on.

    Pivots define P: row i was exchanged with row Pivots[i], counted from 1. Infos, [1] for a single matrix, are 0 for success, else the place of the diagonal's
    first zero, counted from 1.
    """

    type = "lu"
    X = operand(REAL, doc="[..., m, n]")
    Out = result(layout="row", doc="[..., m, n]")
    Pivots = result(layout="row", doc="int32 [..., min(m, n)]")
    Infos = result(layout="row", doc="int32 [...], or [1]")
    pivots = attribute(AttrType.BOOLEAN, True, choices=(True,), doc="exchange rows for the largest pivot; False has no kernel")

    def infer_shape(self, X: Spec) -> Any:
        batch, m, n = matrices(X, "X")
        return X.like(), X.with_dims((*batch, minimum(m, n))).with_dtype(INT32), (X.with_dims(batch) if batch else X.dense((1,))).with_dtype(INT32)

    def work(self, X: Spec) -> Size:
        return X.elements * minimum(*X.known_dims[-2:])

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes + 16 * X.elements

    def kernel(self, X: Tensor) -> Any:
        out, pivots, info = aten.linalg_lu_factor_ex(X)
        return out.contiguous(), pivots, info.reshape(X.shape[:-2] or (1,))

    def _infer_gradient(self, Out: Spec, Pivots: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, Out))
        _check_pivots(Out, Pivots, "Out")
        return Out.like()

    def _gradient_workspace(self, Out: Spec, Pivots: Spec, d_out: Spec) -> Size:
        _, m, n = matrices(Out, "Out")
        return 16 * Out.nbytes + 4 * Out.known_dtype.itemsize * (m * m + n * n) + _squares(Out, 6)

    @gradient("Out", "Pivots", "Out@GRAD", gives="X@GRAD", infer=_infer_gradient, layout=IN_ROWS, workspace=_gradient_workspace)
    def backward(self, Out: Tensor, Pivots: Tensor, d_out: Tensor) -> Tensor:
        k = min(Out.shape[-2:])
        corner, d_lower, d_upper = Out[..., :k, :k], d_out[..., :k, :k].tril(-1), d_out[..., :k, :k].triu()
        lower, upper = corner.tril(-1), corner.triu()
        lower.diagonal(dim1=-2, dim2=-1).fill_(1.0)
        below = right = None
        if Out.shape[-2] > k:  # L2 = X2 U^-1
            below = aten.linalg_solve_triangular(upper.mT, d_out[..., k:, :], upper=False, left=False)
            d_upper = d_upper - matmul(Out[..., k:, :].mT, below).triu_()
        if Out.shape[-1] > k:  # U2 = L^-1 X2
            right = aten.linalg_solve_triangular(lower.mT, d_out[..., k:], upper=True, unitriangular=True)
            d_lower = d_lower - matmul(right, Out[..., k:].mT).tril_(-1)
        inner = matmul(lower.mT, d_lower).tril_(-1) + matmul(d_upper, upper.mT).triu_()
        d = aten.linalg_solve_triangular(lower.mT, inner, upper=True, unitriangular=True)
        d = aten.linalg_solve_triangular(upper.mT, d, upper=False, left=False)
        d = d if below is None else torch.cat((d, below), -2)
        d = d if right is None else torch.cat((d, right), -1)
        _check_numbers(Pivots, Out.shape[-2], "lu_grad")
        return matmul(aten.lu_unpack(Out, Pivots, False, True)[0], d)

    samples = [sample(X=PAIR), sample(X=TALL), sample(X=WIDE), sample(X=f32(0, 2, 2))]


def _squares(spec: Spec, count: int) -> Size:
    """Return the bytes of ``count`` matrices [..., m, m]."""
    batch, m, _ = matrices(spec, "Out")
    return count * spec.with_dims((*batch, m, m)).nbytes


def _check_pivots(packed: Spec, pivots: Spec, slot: str) -> None:
    batch, m, n = matrices(packed, slot)
    require(pivots.rank == packed.rank - 1, f"Pivots must have {packed.rank - 1} dims, not {pivots.rank}", Pivots=None, **{slot: None})
    for axis, (a, b) in enumerate(zip(pivots.known_dims, (*batch, minimum(m, n)), strict=True)):
        require_equal(a, b, "Pivots must have one number for each step of the factorization", Pivots=axis)


def _check_numbers(pivots: Tensor, rows: int, operation: str) -> None:
    """Refuse pivots out of range: the kernel exchanges rows by them, unchecked."""
    if pivots.numel() and (int(pivots.min()) < 1 or int(pivots.max()) > rows):
        raise ExecutionError(f"{operation}: Pivots must be in 1..{rows}; seen {int(pivots.min())}..{int(pivots.max())}")


class LuUnpack(Operator):
    """Pmat, L and U with X' = Pmat L U, where X and Pivots are the results of `lu` of X'. Without ``unpack_pivots`` Pmat is empty, [0]. Without
    ``unpack_ludata`` L and U are."""

    type = "lu_unpack"
    X = operand(REAL, doc="[..., m, n]")
    Pivots = operand((INT32,), doc="[..., min(m, n)]")
    Pmat = result(layout="row", doc="[..., m, m]")
    L = result(layout="row", doc="[..., m, min(m, n)]")
    U = result(layout="row", doc="[..., min(m, n), n]")
    unpack_ludata = attribute(AttrType.BOOLEAN, True)
    unpack_pivots = attribute(AttrType.BOOLEAN, True)

    def infer_shape(self, X: Spec, Pivots: Spec) -> Any:
        batch, m, n = matrices(X, "X")
        k = minimum(m, n)
        _check_pivots(X, Pivots, "X")
        pivots, data, none = self.unpack_pivots, self.unpack_ludata, X.dense((0,))
        dims = (*batch, m, m), (*batch, m, k), (*batch, k, n)
        return tuple(X.with_dims(d) if chosen else none for d, chosen in zip(dims, (pivots, data, data), strict=True))

    def workspace(self, X: Spec, Pivots: Spec) -> Size:
        return 4 * X.nbytes + _squares(X, 2) + 64 * Pivots.elements

    def kernel(self, X: Tensor, Pivots: Tensor) -> Any:
        _check_numbers(Pivots, X.shape[-2], "lu_unpack")
        p, lower, upper = aten.lu_unpack(X, Pivots, self.unpack_ludata, self.unpack_pivots)
        parts = (p, self.unpack_pivots), (lower, self.unpack_ludata), (upper, self.unpack_ludata)
        return tuple(x.contiguous() if chosen else X.new_empty((0,)) for x, chosen in parts)

    def _infer_gradient(self, X: Spec, d_l: Spec, d_u: Spec) -> Spec:
        batch, m, n = matrices(X, "X")
        k = minimum(m, n)
        if not self.unpack_ludata:
            fail("there is no gradient without unpack_ludata", SchemaError, X=None)
        check_made(L_GRAD=(d_l, X.with_dims((*batch, m, k))), U_GRAD=(d_u, X.with_dims((*batch, k, n))))
        return X.like()

    def _gradient_workspace(self, X: Spec, d_l: Spec, d_u: Spec) -> Size:
        return 2 * X.nbytes

    @gradient("X", "L@GRAD", "U@GRAD", gives="X@GRAD", infer=_infer_gradient, layout=IN_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, d_l: Tensor, d_u: Tensor) -> Tensor:
        out = torch.zeros_like(X, memory_format=torch.contiguous_format)
        out[..., : d_l.shape[-1]] += d_l.tril(-1)
        out[..., : d_u.shape[-2], :] += d_u.triu()
        return out

    samples = [
        sample(X=TALL, Pivots=i32(2, data=[2, 4])),
        sample(X=WIDE, Pivots=i32(2, data=[2, 2])),
        sample(X=PAIR, Pivots=i32(2, 2, data=[[1, 2], [2, 2]])),
        sample(X=PAIR, Pivots=i32(2, 2, data=[[1, 2], [2, 2]]), unpack_pivots=False),
    ]
    rejects = [
        reject(X=f32(2, 3), Pivots=i32(3), says="one number for each step"),
        reject(X=f32(2, 2, 3), Pivots=i32(2), says="Pivots must have 2 dims"),
    ]
