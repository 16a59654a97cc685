"""Square matrices, alone or in batches: inverse, determinants, powers, Cholesky's factor, traces."""

from __future__ import annotations

from foreshape.core.dims import Size
from foreshape.core.spec import FP32, FP64, NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import axis_of, require, require_equal
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.traits import ShardingRule, rule_along
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.machine.kernels.products import matmul, side_by_side

REAL = (FP32, FP64)
"""The element types of decompositions."""

_MATRICES = f32(3, 2, 2, data=[[[2.0, 0.5], [-1.0, 3.0]], [[-1.0, 4.0], [2.0, 0.3]], [[1.0, 0.0], [0.2, 1.0]]])
_POSITIVE = f32(3, 2, 2, data=[[[2.0, 0.5], [0.5, 3.0]], [[4.0, -1.0], [-1.0, 0.7]], [[1.0, 0.2], [0.2, 1.0]]])


def square(spec: Spec, slot: str) -> Size:
    """Return the number of rows of the square matrices in the last two dims."""
    require(spec.rank >= 2, f"{slot} must have at least 2 dims, not {spec.rank}", **{slot: None})
    rows, columns = spec.known_dims[-2:]
    return require_equal(rows, columns, f"{slot} must hold square matrices", **{slot: spec.rank - 1})


def refuse_failed(info: Tensor, message: str) -> None:
    """Raise `ExecutionError` if a factorization failed: ``info`` is 0 for each matrix with a result."""
    failed = info.reshape(-1).nonzero()
    if failed.numel():
        raise ExecutionError(f"{message}: matrix {int(failed[0])} of {info.numel()}")


def inverse_of(x: Tensor, operation: str) -> Tensor:
    out, info = aten.linalg_inv_ex(x)
    refuse_failed(info, f"{operation}: a matrix has no inverse")
    return out


class Inverse(Operator):
    """Output = the inverse of each square matrix. A matrix without one is an error of the run."""

    type = "inverse"
    Input = operand(REAL, doc="[..., n, n]")
    Output = result(layout="row", doc="as Input")

    def infer_shape(self, Input: Spec) -> Spec:
        square(Input, "Input")
        return Input.like()

    def sharding_rule(self, Input: Spec) -> ShardingRule | None:
        return rule_along({"Input": Input}, ["Output"], (-2, -1))

    def work(self, Input: Spec) -> Size:
        return 2 * Input.elements * Input.known_dims[-1]

    def workspace(self, Input: Spec) -> Size:
        return 4 * Input.nbytes + 64 * Input.elements

    def kernel(self, Input: Tensor) -> Tensor:
        return inverse_of(Input, "inverse").contiguous()

    def _gradient_workspace(self, Output: Spec, d_out: Spec) -> Size:
        return 4 * Output.nbytes

    @gradient("Output", "Output@GRAD", gives="Input@GRAD", like={"Input@GRAD": "Output"}, layout={"Input@GRAD": "row"}, workspace=_gradient_workspace)
    def backward(self, Output: Tensor, d_out: Tensor) -> Tensor:
        return matmul(matmul(Output.mT, d_out), Output.mT).neg_()

    samples = [
        sample(Input=f32(2, 2, data=[[2.0, 0.5], [-1.0, 3.0]])),
        sample(Input=_MATRICES),
        sample(Input=f32(5, 5), differentiate=False),
        sample(Input=f32(1, 1, low=0.5)),
        sample(Input=f32(0, 3, 3)),
    ]


class Determinant(Operator):
    """Out = the determinant of each square matrix. The gradient of a matrix without an inverse is 0."""

    type = "determinant"
    layer_function = "det"
    Input = operand(REAL, doc="[..., n, n]")
    Out = result(doc="[...]")

    def infer_shape(self, Input: Spec) -> Spec:
        square(Input, "Input")
        out = Input.known_dims[:-2]
        return Input.with_dims(out) if out else Input.dense(())

    def work(self, Input: Spec) -> Size:
        return Input.elements * Input.known_dims[-1]

    def workspace(self, Input: Spec) -> Size:
        return 2 * Input.nbytes + 64 * Input.elements

    def kernel(self, Input: Tensor) -> Tensor:
        return aten.linalg_det(Input)

    def _gradient_workspace(self, Input: Spec, Out: Spec, d_out: Spec) -> Size:
        return 4 * Input.nbytes + 64 * Input.elements

    @gradient("Input", "Out", "Out@GRAD", gives="Input@GRAD", workspace=_gradient_workspace)
    def backward(self, Input: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        inverse, info = aten.linalg_inv_ex(Input)
        without = (info.reshape(Out.shape) != 0).logical_or_(Out == 0)
        return torch.mul(inverse.mT, (Out * d_out)[..., None, None]).masked_fill_(without[..., None, None], 0.0).contiguous()

    samples = [
        sample(Input=f32(2, 2, data=[[2.0, 0.5], [-1.0, 3.0]])),
        sample(Input=_MATRICES),
        sample(Input=f32(5, 5), differentiate=False),
        sample(Input=f32(1, 2, 2, data=[[[1.0, 1.0], [1.0, 1.0]]]), differentiate=False),
        sample(Input=f32(0, 3, 3)),
    ]


class Slogdeterminant(Operator):
    """Out = the signs of the determinants, and the logarithms of their absolute values, one after the other: [2, ...].

    A matrix without an inverse has sign 0 and logarithm -infinity. The signs have no gradient.
    """

    type = "slogdeterminant"
    layer_function = "slogdet"
    Input = operand(REAL, doc="[..., n, n]")
    Out = result(layout="row", doc="[2, ...]")

    def infer_shape(self, Input: Spec) -> Spec:
        square(Input, "Input")
        return Input.dense((2, *Input.known_dims[:-2]))

    def work(self, Input: Spec) -> Size:
        return Input.elements * Input.known_dims[-1]

    def workspace(self, Input: Spec) -> Size:
        return 3 * Input.nbytes + 64 * Input.elements

    def kernel(self, Input: Tensor) -> Tensor:
        return torch.stack(aten.linalg_slogdet(Input))

    def _gradient_specs(self, Input: Spec, Out: Spec, d_out: Spec) -> Spec:
        out = Slogdeterminant.infer_shape(self, Input)  # pyright: ignore[reportArgumentType]
        check_made(Out=(Out, out), Out_GRAD=(d_out, out))
        return Input.like()

    def _gradient_workspace(self, Input: Spec, Out: Spec, d_out: Spec) -> Size:
        return 4 * Input.nbytes + 64 * Input.elements

    @gradient("Input", "Out", "Out@GRAD", gives="Input@GRAD", infer=_gradient_specs, workspace=_gradient_workspace)
    def backward(self, Input: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        inverse, info = aten.linalg_inv_ex(Input)
        without = (info.reshape(Out.shape[1:]) != 0)[..., None, None]
        return torch.mul(inverse.mT, d_out[1][..., None, None]).masked_fill_(without, float("nan")).contiguous()

    samples = [
        sample(Input=f32(2, 2, data=[[2.0, 0.5], [-1.0, 3.0]])),
        sample(Input=_MATRICES),
        sample(Input=f32(5, 5), differentiate=False),
        sample(Input=f32(0, 3, 3)),
    ]


class MatrixPower(Operator):
    """Out = each square matrix to the power ``n``: the product of n copies, the identity for 0, and of the inverse for a negative n."""

    type = "matrix_power"
    X = operand(REAL, doc="[..., rows, rows]")
    Out = result(layout="row", doc="as X")
    n = attribute(AttrType.INT)

    def infer_shape(self, X: Spec) -> Spec:
        square(X, "X")
        return X.like()

    def work(self, X: Spec) -> Size:
        return X.elements * X.known_dims[-1] * max(2 * abs(self.n).bit_length(), 1)

    def workspace(self, X: Spec) -> Size:
        return 4 * X.nbytes + (64 * X.elements if self.n < 0 else 0)

    def kernel(self, X: Tensor) -> Tensor:
        x = inverse_of(X, "matrix_power of a negative n") if self.n < 0 else side_by_side(X) if self.n > 1 else X
        out = aten.linalg_matrix_power(x, abs(self.n)).contiguous()
        return out.clone() if out.data_ptr() == X.data_ptr() else out

    def _gradient_workspace(self, X: Spec, Out: Spec, d_out: Spec) -> Size:
        return 24 * X.nbytes + (256 * X.elements if self.n < 0 else 0)

    @gradient("X", "Out", "Out@GRAD", gives="X@GRAD", layout={"X@GRAD": "row"}, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Out: Tensor, d_out: Tensor) -> Tensor:
        # The power of [[A, d], [0, A]] has above the diagonal the derivative of A^n in the direction d (Higham, 2008, theorem 3.6). The gradient is the
        # derivative for the transposed matrix.
        rows = X.shape[-1]
        blocks = X.new_zeros((*X.shape[:-2], 2 * rows, 2 * rows))
        blocks[..., :rows, :rows] = X.mT
        blocks[..., rows:, rows:] = X.mT
        blocks[..., :rows, rows:] = d_out
        power = inverse_of(blocks, "matrix_power of a negative n") if self.n < 0 else blocks
        return aten.linalg_matrix_power(power, abs(self.n))[..., :rows, rows:].clone(memory_format=torch.contiguous_format)

    samples = [
        *(sample(X=_MATRICES, n=n) for n in (0, 1, 2, 3, 5, -1, -3)),
        sample(X=f32(3, 3, low=-0.5, high=0.5), n=7),
        sample(X=f32(0, 3, 3), n=2),
    ]


class Cholesky(Operator):
    """Out = the lower triangular L with L L^T = X, or with ``upper`` the upper triangular U with U^T U = X.

    Only this triangle of X is read, since X is taken to be symmetric; the gradient is symmetric too. A matrix that is not positive definite is an error of the
    run.
    """

    type = "cholesky"
    X = operand(REAL, doc="[..., n, n]")
    Out = result(layout="row", doc="as X")
    upper = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> Spec:
        square(X, "X")
        return X.like()

    def work(self, X: Spec) -> Size:
        return X.elements * X.known_dims[-1]

    def workspace(self, X: Spec) -> Size:
        return 3 * X.nbytes + 8 * X.elements

    def kernel(self, X: Tensor) -> Tensor:
        out, info = aten.linalg_cholesky_ex(X, upper=self.upper)
        refuse_failed(info, "cholesky: a matrix is not positive definite")
        return out.contiguous()

    def _gradient_workspace(self, Out: Spec, d_out: Spec) -> Size:
        return 8 * Out.nbytes

    @gradient("Out", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out"}, layout={"X@GRAD": "row"}, workspace=_gradient_workspace)
    def backward(self, Out: Tensor, d_out: Tensor) -> Tensor:
        # Murray, "Differentiation of the Cholesky decomposition", 2016, equation 10, made symmetric
        factor, d = (Out.mT, d_out.mT) if self.upper else (Out, d_out)
        inner = matmul(factor.mT, d).tril_()
        inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
        half = aten.linalg_solve_triangular(factor.mT, inner, upper=True)
        full = aten.linalg_solve_triangular(factor, half, upper=False, left=False)
        return torch.add(full, full.mT).mul_(0.5).contiguous()

    samples = [
        sample(X=_POSITIVE, differentiate=False),  # one half of a symmetric matrix does not change alone
        sample(X=_POSITIVE, upper=True, differentiate=False),
        sample(X=f32(1, 1, low=0.5)),
        sample(X=f32(0, 3, 3)),
    ]


class Trace(Operator):
    """Out = the sum of the diagonal of the matrices over ``axis1`` and ``axis2``; ``offset`` above it, or below if negative.

    The lower axis has the rows, in either order of the two.
    """

    type = "trace"
    gradient_reads_dims = ("Input",)
    Input = operand(NUMERIC, doc="at least 2 dims")
    Out = result(doc="Input without the two axes")
    offset = attribute(AttrType.INT, 0)
    axis1 = attribute(AttrType.INT, 0, older="dim1")
    axis2 = attribute(AttrType.INT, 1, older="dim2")

    def infer_shape(self, Input: Spec) -> Spec:
        require(Input.rank >= 2, f"Input must have at least 2 dims, not {Input.rank}", Input=None)
        axes = axis_of(self.axis1, Input.rank, "axis1", Input=None), axis_of(self.axis2, Input.rank, "axis2", Input=None)
        require(axes[0] != axes[1], f"axis1 and axis2 must be two axes; seen {self.axis1} and {self.axis2}", Input=None)
        dims = [d for k, d in enumerate(Input.known_dims) if k not in axes]
        return Input.dense(dims) if 0 in axes else Input.with_dims(dims)

    def kernel(self, Input: Tensor) -> Tensor:
        return _diagonal(Input, self.offset, self.axis1, self.axis2).sum(-1, dtype=Input.dtype)

    def _gradient_specs(self, Input: Spec, d_out: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, Trace.infer_shape(self, Input)))  # pyright: ignore[reportArgumentType]
        return Input.like()

    @gradient("Input", "Out@GRAD", gives="Input@GRAD", infer=_gradient_specs)
    def backward(self, Input: Tensor, d_out: Tensor) -> Tensor:
        out = torch.zeros_like(Input, memory_format=torch.contiguous_format)
        _diagonal(out, self.offset, self.axis1, self.axis2).copy_(d_out[..., None])
        return out

    samples = [
        sample(Input=f32(3, 4)),
        sample(Input=f32(2, 3, 4), offset=1, axis1=-1, axis2=0),
        sample(Input=f32(2, 3, 4), offset=-1, axis1=1, axis2=2),
        sample(Input=f32(3, 4), offset=9),
        sample(Input=f32(3, 4), offset=-(2**31)),
        sample(Input=f32(0, 3)),
        sample(Input=i64(3, 4)),
    ]
    rejects = [
        reject(Input=f32(3), says="at least 2 dims"),
        reject(Input=f32(3, 4), axis1=2, says="axis1 must be in [-2, 2)"),
        reject(Input=f32(3, 4), axis1=0, axis2=-2, says="must be two axes"),
    ]


def _diagonal(x: Tensor, offset: int, axis1: int, axis2: int) -> Tensor:
    """Return a diagonal as the last axis of a view; outside of the matrix it is empty."""
    rows, columns = sorted(axis % x.dim() for axis in (axis1, axis2))
    limit = max(x.shape[rows], x.shape[columns])
    return torch.diagonal(x, max(-limit, min(limit, offset)), rows, columns)
