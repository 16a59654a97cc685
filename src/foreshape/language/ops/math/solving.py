"""Systems of linear equations, with matrices in the last two dims; the dims before are batches, and broadcast. With more or fewer equations: lstsq."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, equal, less_equal, minimum
from foreshape.core.spec import INT32, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import NOT_WRITTEN, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_at_most, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.ops.math.decompositions import TALL, WIDE, matrices
from foreshape.language.ops.math.extremes import GIVES
from foreshape.language.ops.math.linear_algebra import REAL, refuse_failed, square
from foreshape.language.ops.rules.broadcast import broadcast_dims, broadcast_lod, sum_to
from foreshape.machine.kernels.products import matmul

_MATRIX = f32(2, 2, data=[[2.0, 0.5], [-1.0, 3.0]])
_MATRICES = f32(3, 2, 2, data=[[[2.0, 0.5], [-1.0, 3.0]], [[-1.0, 4.0], [2.0, 0.3]], [[1.0, 0.2], [0.4, 1.0]]])
_ONE_OF_A_BATCH = f32(1, 2, 2, data=[[[2.0, 0.5], [-1.0, 3.0]]])
_ROWS: dict[str, Any] = {"X@GRAD": "row", "Y@GRAD": "row"}


def solution_dims(matrices: Spec, right: Spec, slots: tuple[str, str]) -> tuple[Size, ...]:
    """Return the dims of the solutions of matrices ``[..., n, n]`` for right sides ``[..., n, k]``."""
    n = square(matrices, slots[0])
    require(right.rank >= 2, f"{slots[1]} must have at least 2 dims, not {right.rank}", **{slots[1]: None})
    requirement = f"the matrices of {slots[1]} must have as many rows as those of {slots[0]}"
    require_equal(n, right.known_dims[-2], requirement, **{slots[0]: matrices.rank - 1, slots[1]: right.rank - 2})
    return (*broadcast_dims(matrices.known_dims[:-2], right.known_dims[:-2], -1, slots), n, right.known_dims[-1])


def solutions(matrices: Spec, right: Spec, slots: tuple[str, str]) -> Spec:
    """Return `solution_dims` as a spec: the sequences of a ragged batch stay."""
    dims = solution_dims(matrices, right, slots)
    return Spec(right.kind, right.dtype, dims, broadcast_lod(matrices, right, dims))


def _summed(d: Tensor, target: Tensor) -> Tensor:
    """Return a gradient summed over the broadcast batch dims of ``target``."""
    return (d if d.shape == target.shape else sum_to(d, target, d, -1)).contiguous()


class TriangularSolve(Operator):
    """Out = the solutions of X Out = Y, or X^T Out = Y with ``transpose``; only one triangle of X is read.

    It is the upper one with ``upper``, else the lower one; with ``unitriangular`` its diagonal is taken as ones.
    """

    type = "triangular_solve"
    X = operand(REAL, doc="[..., n, n]")
    Y = operand(REAL, same_type_as="X", doc="[..., n, k]")
    Out = result(layout="row", doc="[..., n, k]")
    upper = attribute(AttrType.BOOLEAN, True)
    transpose = attribute(AttrType.BOOLEAN, False)
    unitriangular = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        return solutions(X, Y, ("X", "Y"))

    def work(self, X: Spec, Y: Spec) -> Size:
        return self.infer_shape(X, Y).elements * X.known_dims[-1]

    def _bytes(self, X: Spec, Y: Spec) -> Size:
        out = Y.dense(solution_dims(X, Y, ("X", "Y")))
        return 3 * out.nbytes + 3 * X.with_dims((*out.known_dims[:-2], *X.known_dims[-2:])).nbytes

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return self._bytes(X, Y)

    def _solved(self, x: Tensor, y: Tensor, transpose: bool) -> Tensor:
        a, upper = (x.mT, not self.upper) if transpose else (x, self.upper)
        return aten.linalg_solve_triangular(a, y, upper=upper, unitriangular=self.unitriangular)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return self._solved(X, Y, self.transpose).contiguous()

    def _gradient_workspace(self, X: Spec, Y: Spec, Out: Spec, d_out: Spec) -> Size:
        return 2 * self._bytes(X, Y)

    @gradient("X", "Y", "Out", "Out@GRAD", gives=GIVES, layout=_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Out: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_y = self._solved(X, d_out, not self.transpose)
        d_x = None
        if requested[0]:
            d = matmul(Out, d_y.mT) if self.transpose else matmul(d_y, Out.mT)
            beside = int(self.unitriangular)  # an unread diagonal has no gradient
            d_x = _summed(d.neg_(), X)
            d_x = d_x.triu_(beside) if self.upper else d_x.tril_(-beside)
        return d_x, _summed(d_y, Y) if requested[1] else None

    samples = [
        *(
            sample(X=_MATRICES, Y=f32(3, 2, 5), upper=upper, transpose=transpose, unitriangular=unit)
            for upper in (False, True)
            for transpose in (False, True)
            for unit in (False, True)
        ),
        sample(X=_MATRIX, Y=f32(2, 5)),
        sample(X=_MATRIX, Y=f32(3, 2, 5)),
        sample(X=_MATRICES, Y=f32(2, 5), upper=False),
        sample(X=_MATRICES, Y=f32(1, 2, 5), transpose=True),
        sample(X=f32(0, 3, 3), Y=f32(0, 3, 2)),
    ]
    rejects = [reject(X=f32(2, 3, 3), Y=f32(5, 3, 1), says="equal or 1")]


class Solve(Operator):
    """Out = the solutions of X Out = Y. Y holds vectors if it has one dim, or the dims of X but the last; otherwise matrices.

    A matrix without an inverse is an error of the run.
    """

    type = "solve"
    X = operand(REAL, doc="[..., n, n]")
    Y = operand(REAL, same_type_as="X", doc="[..., n, k] or [..., n]")
    Out = result(layout="row", doc="[..., n, k] or [..., n]")

    def _is_of_vectors(self, x: Sequence[Size], y: Sequence[Size]) -> bool:
        if len(y) == 1 or len(y) != len(x) - 1:
            return len(y) == 1
        answers = [equal(a, b) for a, b in zip(x[:-1], y, strict=True)]
        if False in answers or None not in answers:
            return False not in answers
        fail("whether Y holds vectors, as the dims of X but the last tell, must be known before the run", X=None, Y=None)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        n = square(X, "X")
        if not self._is_of_vectors(X.known_dims, Y.known_dims):
            return solutions(X, Y, ("X", "Y"))
        require_equal(n, Y.known_dims[-1], "the vectors of Y must have as many numbers as the matrices of X rows", X=X.rank - 1, Y=Y.rank - 1)
        dims = (*X.known_dims[:-2], n)
        return Spec(Y.kind, Y.dtype, dims, X.lod if X.lod is not None and X.rank > 2 else broadcast_lod(Y, Y, dims))

    def work(self, X: Spec, Y: Spec) -> Size:
        return X.elements * X.known_dims[-1]

    def _bytes(self, X: Spec, Y: Spec) -> Size:
        out = Solve.infer_shape(self, X, Y)
        repeated = X.with_dims((*broadcast_dims(X.known_dims[:-2], out.known_dims[:-2]), *X.known_dims[-2:])) if out.rank >= X.rank else X
        return 3 * out.nbytes + 3 * repeated.nbytes + 8 * repeated.elements

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return self._bytes(X, Y)

    def _solved(self, x: Tensor, y: Tensor, operation: str) -> Tensor:
        out, info = aten.linalg_solve_ex(x, y)
        refuse_failed(info, f"{operation}: a matrix of X has no inverse")
        return out

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        if self._is_of_vectors(X.shape, Y.shape):
            return self._solved(X, Y.unsqueeze(-1), "solve").squeeze(-1).contiguous()
        return self._solved(X, Y, "solve").contiguous()

    def _gradient_workspace(self, X: Spec, Y: Spec, Out: Spec, d_out: Spec) -> Size:
        return 2 * self._bytes(X, Y) + 2 * X.with_dims((*Out.known_dims, X.known_dims[-1])).nbytes

    @gradient("X", "Y", "Out", "Out@GRAD", gives=GIVES, layout=_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Out: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        vectors = self._is_of_vectors(X.shape, Y.shape)
        out, d, y = (Out.unsqueeze(-1), d_out.unsqueeze(-1), Y.unsqueeze(-1)) if vectors else (Out, d_out, Y)
        d_y = self._solved(X.mT, d, "solve_grad")
        d_x = _summed(matmul(d_y, out.mT).neg_(), X) if requested[0] else None
        return d_x, _summed(d_y, y).reshape(Y.shape) if requested[1] else None

    samples = [
        sample(X=_MATRIX, Y=f32(2, 5)),
        sample(X=_MATRIX, Y=f32(2)),
        sample(X=f32(5, 5), Y=f32(5, 3), differentiate=False),
        sample(X=_MATRICES, Y=f32(3, 2, 5)),
        sample(X=_MATRICES, Y=f32(3, 2)),
        sample(X=_MATRICES, Y=f32(2)),
        sample(X=_MATRICES, Y=f32(2, 5)),
        sample(X=_MATRIX, Y=f32(3, 2, 5)),
        sample(X=_ONE_OF_A_BATCH, Y=f32(4, 2, 5)),
        sample(X=f32(0, 3, 3), Y=f32(0, 3, 2)),
    ]
    rejects = [
        reject(X=f32(3, 3), Y=f32(2, 5), says="as many rows"),
        reject(X=f32(3, 3), Y=f32(2), says="as many numbers"),
        reject(X=f32(2, 3, 3), Y=f32(5, 3, 2), says="equal or 1"),
    ]


class CholeskySolve(Operator):
    """Out = the solutions of A Out = X, where Y is Cholesky's factor of A: lower triangular, or upper with ``upper``."""

    type = "cholesky_solve"
    X = operand(REAL, doc="[..., n, k]")
    Y = operand(REAL, same_type_as="X", doc="[..., n, n]")
    Out = result(layout="row", doc="[..., n, k]")
    upper = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        return solutions(Y, X, ("Y", "X"))

    def work(self, X: Spec, Y: Spec) -> Size:
        return 2 * self.infer_shape(X, Y).elements * Y.known_dims[-1]

    def _bytes(self, X: Spec, Y: Spec) -> Size:
        out = X.dense(solution_dims(Y, X, ("Y", "X")))
        return 3 * out.nbytes + 3 * Y.with_dims((*out.known_dims[:-2], *Y.known_dims[-2:])).nbytes

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return self._bytes(X, Y)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.cholesky_solve(X, Y, self.upper).contiguous()

    def _gradient_workspace(self, X: Spec, Y: Spec, Out: Spec, d_out: Spec) -> Size:
        return 3 * self._bytes(X, Y)

    @gradient("X", "Y", "Out", "Out@GRAD", gives=GIVES, layout=_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Out: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_x = torch.cholesky_solve(d_out, Y, self.upper)
        d_y = None
        if requested[1]:
            d = matmul(d_x, Out.mT)
            d = torch.add(d, d.mT).neg_()
            factor = Y.triu() if self.upper else Y.tril()
            d_y = _summed(matmul(factor, d) if self.upper else matmul(d, factor), Y)
            d_y = d_y.triu_() if self.upper else d_y.tril_()
        return _summed(d_x, X) if requested[0] else None, d_y

    samples = [
        sample(X=f32(2, 5), Y=_MATRIX),
        sample(X=f32(2, 5), Y=_MATRIX, upper=True),
        sample(X=f32(3, 2, 5), Y=_MATRIX),
        sample(X=f32(2, 5), Y=_MATRICES, upper=True),
        sample(X=f32(0, 3, 2), Y=f32(0, 3, 3)),
    ]


_ALIKE = f32(4, 2, data=[[1.0, 2.0], [-0.5, -1.0], [0.75, 1.5], [1.5, 3.0]])
"""Columns of rank 1: multiples of one."""


class Lstsq(Operator):
    """Solution = the Z with the least sum of squares of X Z - Y; among several, the one of the least norm.

    ``driver`` is LAPACK's: gels takes the columns (or rows, if fewer) of X as independent. The drivers gelsy, gelsd and gelss find their rank: singular values
    above ``rcond`` times the largest (Golub and Van Loan, "Matrix Computations", section 5.5). Residuals are the sums of squares of each column of Y, if X has
    more rows than columns, and else [0]. All but gels make Rank; gelsd and gelss make SingularValues, from the largest on. (In PaddlePaddle the solution of a
    batch of one matrix loses the dims of the batch.)
    """

    type = "lstsq"
    gradient = NOT_WRITTEN
    X = operand(REAL, doc="[..., m, n]")
    Y = operand(REAL, same_type_as="X", doc="[..., m, k]")
    Solution = result(layout="row", doc="[..., n, k]")
    Residuals = result(optional=True, layout="row", doc="[..., k], or [0]")
    Rank = result(optional=True, doc="int32 [...]")
    SingularValues = result(optional=True, layout="row", doc="[..., min(m, n)]")
    rcond = attribute(AttrType.FLOAT, 0.0)
    driver = attribute(AttrType.STRING, "gels", choices=("gels", "gelsy", "gelsd", "gelss"))

    def infer_shape(self, X: Spec, Y: Spec) -> Any:
        batch, m, n = matrices(X, "X")
        require_rank(X.rank, Y, "Y")
        for axis, (a, b) in enumerate(zip(batch, Y.known_dims, strict=False)):
            require_equal(a, b, "X and Y must have the same dims before those of the matrices", X=axis, Y=axis)
        require_equal(m, Y.known_dims[-2], "the matrices of Y must have as many rows as those of X", X=X.rank - 2, Y=X.rank - 2)
        require_at_most(1, m, "the matrices of X must have rows and columns", X=X.rank - 2)
        require_at_most(1, n, "the matrices of X must have rows and columns", X=X.rank - 1)
        shaped = X.with_dims if batch else X.dense
        k, tall = Y.known_dims[-1], less_equal(n + 1, m)
        if tall is None and batch:
            fail("whether the matrices of X have more rows than columns must be known, since Residuals have other dims then", X=None)
        residuals = X.dense((unknown_size("residuals"),)) if tall is None else shaped((*batch, k)) if tall else X.dense((0,))
        rank = None if self.driver == "gels" else shaped(batch).with_dtype(INT32)
        values = shaped((*batch, minimum(m, n))) if self.driver in ("gelsd", "gelss") else None
        return shaped((*batch, n, k)), residuals, rank, values

    def work(self, X: Spec, Y: Spec) -> Size:
        return 8 * X.elements * minimum(*X.known_dims[-2:])

    def workspace(self, X: Spec, Y: Spec) -> Size:
        _, m, n = matrices(X, "X")
        item = X.known_dtype.itemsize
        return 4 * X.nbytes + 8 * Y.nbytes + 4 * self.infer_shape(X, Y)[0].nbytes + 64 * item * (m + n + Y.known_dims[-1] + 64) + 16 * X.elements

    def kernel(self, X: Tensor, Y: Tensor, *, requested: tuple[bool, ...]) -> Any:
        rcond = None if self.driver == "gels" else self.rcond
        columns = Y if Y.shape[-1] else Y.new_zeros((*Y.shape[:-1], 1))  # torch's kernel crashes the process without any
        try:
            if self.driver == "gels" or not X.is_cuda:
                solved, _, rank, values = aten.linalg_lstsq(X, columns, rcond, driver=self.driver)
            else:  # a GPU has gels alone
                solved, _, rank, values = (t.to(X.device) for t in aten.linalg_lstsq(X.cpu(), columns.cpu(), rcond, driver=self.driver))
        except RuntimeError as error:  # LAPACK's, of numbers
            hint = "; gels takes it that the columns (or rows) of X are independent: gelsy, gelsd and gelss do not" if self.driver == "gels" else ""
            raise ExecutionError(f"lstsq: {str(error).partition(chr(10))[0]}{hint}") from error
        solution = solved[..., : Y.shape[-1]].clone(memory_format=torch.contiguous_format)
        residuals = None
        if requested[1]:
            tall = X.shape[-2] > X.shape[-1]
            residuals = matmul(X, solution).sub_(Y).square_().sum(-2) if tall else X.new_empty(0)
        return solution, residuals, None if rcond is None else rank.to(torch.int32), values.contiguous() if self.driver in ("gelsd", "gelss") else None

    samples = [
        sample(X=TALL, Y=f32(4, 3)),
        sample(X=WIDE, Y=f32(2, 4)),
        *(sample(X=TALL, Y=f32(4, 3), driver=driver, rcond=1e-6) for driver in ("gelsy", "gelsd", "gelss")),
        *(sample(X=_ALIKE, Y=f32(4, 3), driver=driver, rcond=1e-5) for driver in ("gelsy", "gelsd", "gelss")),
        sample(X=f32(3, 5, 2), Y=f32(3, 5, 4), driver="gelsd", rcond=1e-6),
        sample(X=f32(3, 2, 5), Y=f32(3, 2, 4), driver="gelsy", rcond=1e-6),
        *(sample(X=TALL, Y=f32(4, 0), driver=driver, rcond=1e-6) for driver in ("gels", "gelss")),
    ]
    rejects = [
        reject(X=f32(3, 4, 2), Y=f32(2, 4, 5), says="the same dims before those of the matrices"),
        reject(X=f32(0, 2), Y=f32(0, 5), says="must have rows and columns"),
    ]
