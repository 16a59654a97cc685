"""Solutions of systems of more, or fewer, equations than unknowns: lstsq."""

from __future__ import annotations

from typing import Any

from foreshape.dims import Size, less_equal, minimum
from foreshape.errors import ExecutionError, SchemaError, TypeMismatchError
from foreshape.kernels.products import matmul
from foreshape.operator import NOT_WRITTEN, AttrType, Operator, attribute, operand, result
from foreshape.operator.require import fail, require_at_most, require_equal, require_rank, unknown_size
from foreshape.operator.samples import f32, f64, reject, sample
from foreshape.ops.math.decompositions import TALL, WIDE, matrices
from foreshape.ops.math.linear_algebra import REAL
from foreshape.spec import INT32, Spec
from foreshape.values.torch_proxy import Tensor, aten, torch

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
        for at, (a, b) in enumerate(zip(batch, Y.known_dims, strict=False)):
            require_equal(a, b, "X and Y must have the same dims before those of the matrices", X=at, Y=at)
        require_equal(m, Y.known_dims[-2], "the matrices of Y must have as many rows as those of X", X=X.rank - 2, Y=X.rank - 2)
        require_at_most(1, m, "the matrices of X must have rows and columns", X=X.rank - 2)
        require_at_most(1, n, "the matrices of X must have rows and columns", X=X.rank - 1)
        made = X.with_dims if batch else X.dense
        k, over = Y.known_dims[-1], less_equal(n + 1, m)
        if over is None and batch:
            fail("whether the matrices of X have more rows than columns must be known, since Residuals have other dims then", X=None)
        residuals = X.dense((unknown_size("residuals"),)) if over is None else made((*batch, k)) if over else X.dense((0,))
        rank = None if self.driver == "gels" else made(batch).with_dtype(INT32)
        values = made((*batch, minimum(m, n))) if self.driver in ("gelsd", "gelss") else None
        return made((*batch, n, k)), residuals, rank, values

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
            found, _, rank, values = aten.linalg_lstsq(X, columns, rcond, driver=self.driver)
        except RuntimeError as error:  # LAPACK's, of numbers
            hint = "; gels takes it that the columns (or rows) of X are independent: gelsy, gelsd and gelss do not" if self.driver == "gels" else ""
            raise ExecutionError(f"lstsq: {str(error).partition(chr(10))[0]}{hint}") from error
        solution = found[..., : Y.shape[-1]].clone(memory_format=torch.contiguous_format)
        residuals = None
        if requested[1]:
            more = X.shape[-2] > X.shape[-1]
            residuals = matmul(X, solution).sub_(Y).square_().sum(-2) if more else X.new_empty(0)
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
        reject(X=f32(4), Y=f32(4), says="X must have at least 2 dims"),
        reject(X=f32(4, 2), Y=f32(4), says="Y must have 2 dims"),
        reject(X=f32(4, 2), Y=f32(3, 5), says="as many rows as those of X"),
        reject(X=f32(3, 4, 2), Y=f32(2, 4, 5), says="the same dims before those of the matrices"),
        reject(X=f32(0, 2), Y=f32(0, 5), says="must have rows and columns"),
        reject(X=f32(4, 2), Y=f64(4, 5), says="Y must have the element type of X", error=TypeMismatchError),
        reject(X=f32(4, 2), Y=f32(4, 5), driver="qr", says="one of", error=SchemaError),
    ]
