"""Matrix products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, no_less, product
from foreshape.core.spec import COMPLEX, FLOATING, FP32, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.fields import Layout
from foreshape.language.operator.require import require, require_broadcast_to, require_equal, require_rank
from foreshape.language.operator.samples import f32, reject, sample
from foreshape.language.operator.temporaries import copies, turned
from foreshape.language.operator.traits import ShardingRule, of_product
from foreshape.language.ops.math.complex_numbers import c64, conjugate, conjugate_bytes
from foreshape.language.ops.rules.broadcast import broadcast_dims, sum_to
from foreshape.machine.kernels.products import bmm, matmul, mm
from foreshape.machine.kernels.products import workspace as product_workspace

_IN_ROWS: dict[str, Layout] = {"X@GRAD": "row", "Y@GRAD": "row"}


def _fp32_workspace(spec: Spec, m: Size, k: Size, n: Size, transposed: bool = False) -> Size:
    return product_workspace(m, k, n, transposed) if spec.dtype is FP32 else 0


class Mul(Operator):
    """Out = X Y, with X and Y as matrices.

    The first ``x_num_col_dims`` dims of X are its rows and the others its columns; likewise Y. The result has the row dims of X and the column dims of Y.
    """

    type = "mul"
    layer_function = "fc"
    multiplies = True
    X = operand(FLOATING, doc="[..., columns]")
    Y = operand(FLOATING, same_type_as="X", doc="[rows, ...]")
    Out = result(layout="row", doc="the row dims of X and the column dims of Y")
    x_num_col_dims = attribute(AttrType.INT, 1, low=1)
    y_num_col_dims = attribute(AttrType.INT, 1, low=1)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        x, y, nx, ny = X.known_dims, Y.known_dims, self.x_num_col_dims, self.y_num_col_dims
        require(len(x) > nx, f"X must have more than x_num_col_dims = {nx} dims, not {len(x)}", X=None)
        require(len(y) > ny, f"Y must have more than y_num_col_dims = {ny} dims, not {len(y)}", Y=None)
        require_equal(product(x[nx:]), product(y[:ny]), "the columns of X must equal the rows of Y", X=nx, Y=0)
        return X.with_dims(x[:nx] + y[ny:])

    def work(self, X: Spec, Y: Spec) -> Size:
        return X.elements * product(Y.known_dims[self.y_num_col_dims :])

    def computes(self) -> computations.FlattenedProduct:
        return computations.FlattenedProduct(self.x_num_col_dims, self.y_num_col_dims)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        if X.dim() == 2 and Y.dim() == 2:
            return mm(X, Y)
        x, y = self._matrices(X, Y)
        return mm(x, y).view(X.shape[: self.x_num_col_dims] + Y.shape[self.y_num_col_dims :])

    def workspace(self, X: Spec, Y: Spec, *, strided: frozenset[str]) -> Size:
        return _fp32_workspace(X, *self._sizes(X, Y)) + copies(strided, X=X, Y=Y)

    def _sizes(self, X: Spec, Y: Spec) -> tuple[Size, Size, Size]:
        x, y = X.known_dims, Y.known_dims
        return product(x[: self.x_num_col_dims]), product(y[: self.y_num_col_dims]), product(y[self.y_num_col_dims :])

    def _matrices(self, X: Tensor, Y: Tensor) -> tuple[Tensor, Tensor]:
        rows, columns = X.shape[: self.x_num_col_dims].numel(), Y.shape[self.y_num_col_dims :].numel()
        inner = Y.shape[: self.y_num_col_dims].numel()
        return X.reshape(rows, inner), Y.reshape(inner, columns)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...], strided: frozenset[str]) -> Size:
        m, k, n = self._sizes(X, Y)
        first = _fp32_workspace(X, m, n, k) if requested[0] else 0
        return no_less(first, _fp32_workspace(X, k, m, n, transposed=True) if requested[1] else 0) + copies(strided, X=X, Y=Y, Out_GRAD=d_out)

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), layout=_IN_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        if X.dim() == 2 and Y.dim() == 2:
            return mm(d_out, Y.t()) if requested[0] else None, mm(X.t(), d_out) if requested[1] else None
        x, y = self._matrices(X, Y)
        d = d_out.reshape(x.shape[0], y.shape[1])
        return mm(d, y.t()).view(X.shape) if requested[0] else None, mm(x.t(), d).view(Y.shape) if requested[1] else None

    samples = [
        sample(X=f32(2, 3), Y=f32(3, 5)),
        sample(X=f32(2, 3, 5), Y=f32(15, 4)),
        sample(X=f32(2, 3, 5), Y=f32(5, 7), x_num_col_dims=2),
        sample(X=f32(2, 6), Y=f32(2, 3, 5), y_num_col_dims=2),
        sample(X=f32(0, 3), Y=f32(3, 5)),
    ]
    rejects = [reject(X=f32(2, 3), Y=f32(4, 5), says="the columns of X must equal the rows of Y")]


class BatchedProduct(Operator):
    """The base of the products of the matrices in the last two dims; ``_transposed`` tells which operands are transposed first."""

    abstract = True
    reads_transposed = True
    X = operand(FLOATING, doc="[..., rows, k], or [k]")
    Y = operand(FLOATING, same_type_as="X", doc="[..., k, columns], or [k]")
    Out = result(layout="row", doc="[..., rows, columns]")

    def _transposed(self) -> tuple[bool, bool]:
        raise NotImplementedError

    def sharding_rule(self, X: Spec, Y: Spec) -> ShardingRule | None:
        return of_product({"X": X, "Y": Y}, "Out", *self._transposed())

    def work(self, X: Spec, Y: Spec) -> Size:
        columns = Y.known_dims[-2:-1] if self._transposed()[1] else Y.known_dims[1:][-1:]
        return X.elements * product(columns)

    def _product(self, X: Tensor, Y: Tensor) -> Tensor:
        trans_x, trans_y = self._transposed()
        x = X.transpose(-1, -2) if trans_x and X.dim() > 1 else X
        return matmul(x, Y.transpose(-1, -2) if trans_y and Y.dim() > 1 else Y)

    def _bytes(self, X: Spec, Y: Spec, out: Spec, strided: frozenset[str]) -> Size:
        x, y = X.known_dims, Y.known_dims
        return _spread(X, Y, self._transposed()[0], out) + (copies(strided, X=X, Y=Y) if max(len(x), len(y)) > 2 else turned(strided, X=X, Y=Y))

    def _gradient_bytes(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...], strided: frozenset[str]) -> Size:
        x, y = X.known_dims, Y.known_dims
        needs = turned(strided, X=X, Y=Y, Out_GRAD=d_out)
        if max(len(x), len(y)) > 2:
            read = no_less(copies(strided, X=X) if requested[1] else 0, copies(strided, Y=Y) if requested[0] else 0)
            needs = copies(strided, Out_GRAD=d_out) + read
        if (len(x) == len(y) and x[:-2] == y[:-2]) or (len(x) > 2 and len(y) == 2 and not self._transposed()[0]):
            return needs
        batch = broadcast_dims(x[:-2], y[:-2])
        sizes = [s.with_dims((*batch, *s.known_dims[-2:])).nbytes for s in (X, Y)]  # before the sum over broadcast axes
        return needs + 2 * d_out.nbytes + 2 * (sizes[0] + sizes[1]) + (X.nbytes + Y.nbytes)

    def _undone(self, X: Tensor, Y: Tensor, d_out: Tensor, requested: tuple[bool, ...]) -> Any:
        (trans_x, trans_y), d = self._transposed(), d_out
        x, y = X, Y
        if y.dim() == 1:
            y, d, trans_y = y.unsqueeze(1), d.unsqueeze(-1), False
        if x.dim() == 1:
            x, d, trans_x = x.unsqueeze(0), d.unsqueeze(-2), False
        if x.dim() > 2 and y.dim() == 2 and not trans_x:  # one weight for the whole batch: one product over all rows
            x, d = x.flatten(0, -2), d.flatten(0, -2)
        grad_x = grad_y = None
        if requested[0]:  # written without a transposition in memory
            if trans_x:
                grad_x = matmul(y.mT if trans_y else y, d.mT)
            else:
                grad_x = matmul(d, y if trans_y else y.mT)
            grad_x = _summed(grad_x, x).reshape(X.shape)
        if requested[1]:
            grad_y = matmul(d.mT, x.mT if trans_x else x) if trans_y else matmul(x if trans_x else x.mT, d)
            grad_y = _summed(grad_y, y).reshape(Y.shape)
        return grad_x, grad_y


def product_of_matrices(X: Spec, Y: Spec, trans_x: bool, trans_y: bool) -> Spec:
    """Return the spec of the product of the matrices in the last two dims, in the element type of X. Raises as a shape rule, for slots X and Y."""
    x, y = X.known_dims, Y.known_dims
    require(len(x) > 0, "X must have at least one dim", X=None)
    require(len(y) > 0, "Y must have at least one dim", Y=None)
    x_k = len(x) - (2 if trans_x and len(x) > 1 else 1)
    y_k = len(y) - (1 if trans_y or len(y) == 1 else 2)
    require_equal(x[x_k], y[y_k], "the columns of X must equal the rows of Y", X=x_k, Y=y_k)
    out: tuple[Size, ...] = broadcast_dims(x[:-2], y[:-2])
    if len(x) > 1:
        out += (x[-1] if trans_x else x[-2],)
    if len(y) > 1:
        out += (y[-2] if trans_y else y[-1],)
    rows_stay = len(y) <= max(len(x), 2) and (len(x) > 2 or (len(x) == 2 and not trans_x))
    return (X if rows_stay else X.dense()).with_dims(out)


class MatmulV2(BatchedProduct):
    """Out = X Y, the product of the matrices in the last two dims of X and Y; the dims before are a batch, and broadcast.

    ``trans_x`` and ``trans_y`` swap the last two dims first. A tensor of one dim is a row (as X) or a column (as Y), without a dim in the result.
    """

    type = "matmul_v2"
    layer_function = "matmul"
    multiplies = True
    X = operand((*FLOATING, *COMPLEX), doc="[..., rows, k], or [k]")
    Y = operand((*FLOATING, *COMPLEX), same_type_as="X", doc="[..., k, columns], or [k]")
    trans_x = attribute(AttrType.BOOLEAN, False)
    trans_y = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        return product_of_matrices(X, Y, self.trans_x, self.trans_y)

    def _transposed(self) -> tuple[bool, bool]:
        return self.trans_x, self.trans_y

    def computes(self) -> computations.MatrixProduct:
        return computations.MatrixProduct(self.trans_x, self.trans_y)

    def workspace(self, X: Spec, Y: Spec, *, strided: frozenset[str]) -> Size:
        return self._bytes(X, Y, self.infer_shape(X, Y), strided)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return self._product(X, Y)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, requested: tuple[bool, ...], strided: frozenset[str]) -> Size:
        return self._gradient_bytes(X, Y, d_out, requested=requested, strided=strided) + conjugate_bytes(X) + conjugate_bytes(Y)

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), layout=_IN_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return self._undone(conjugate(X), conjugate(Y), d_out, requested)

    samples = [
        sample(X=f32(2, 3), Y=f32(3, 5)),
        sample(X=f32(3, 2), Y=f32(5, 3), trans_x=True, trans_y=True),
        sample(X=c64(2, 3), Y=c64(3, 5)),
        sample(X=c64(3, 2), Y=c64(5, 3), trans_x=True, trans_y=True),
        sample(X=c64(6, 1, 2, 3), Y=c64(4, 3, 5)),
        sample(X=c64(4, 2, 3), Y=c64(3)),
        sample(X=f32(4, 2, 3), Y=f32(3, 5)),
        sample(X=f32(4, 3, 2), Y=f32(3, 5), trans_x=True),
        sample(X=f32(4, 2, 3), Y=f32(5, 3), trans_y=True),
        sample(X=f32(4, 2, 3), Y=f32(4, 5, 3), trans_y=True),
        sample(X=f32(6, 4, 3, 2), Y=f32(4, 3, 5), trans_x=True),
        sample(X=f32(6, 1, 2, 3), Y=f32(4, 3, 5)),
        sample(X=f32(2, 3), Y=f32(4, 3, 5)),
        sample(X=f32(3), Y=f32(3)),
        sample(X=f32(3), Y=f32(3, 5), trans_x=True),
        sample(X=f32(4, 2, 3), Y=f32(3), trans_y=True),
        sample(X=f32(3), Y=f32(4, 3, 5)),
        sample(X=f32(0, 3), Y=f32(3, 5)),
        sample(X=f32(0, 2, 3), Y=f32(3, 5)),
        sample(X=f32(2, 0), Y=f32(0, 5)),
        sample(X=f32(4, 2, 0), Y=f32(0, 5)),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(4, 5), says="the columns of X must equal the rows of Y"),
        reject(X=f32(4, 2, 3), Y=f32(6, 3, 5), says="equal or 1"),
        reject(X=f32(), Y=f32(3), says="X must have at least one dim"),
        reject(X=f32(3), Y=f32(), says="Y must have at least one dim"),
    ]


def _spread(X: Spec, Y: Spec, trans_x: bool, out: Spec) -> Size:
    """Return the bytes of operands torch expands along the batch, or transposes to make one product of rows."""
    x, y = X.known_dims, Y.known_dims
    if len(x) > 2 and len(y) <= 2:
        return X.nbytes if trans_x else 0
    if len(x) <= 2:
        return Y.nbytes + out.nbytes if len(y) > 2 else 0
    batch = out.known_dims[:-2]
    return sum(product((*batch, *s.known_dims[-2:])) * s.known_dtype.itemsize for s in (X, Y) if _batch(s, len(batch)) != batch)


def _batch(spec: Spec, rank: int) -> Sequence[Size]:
    dims = spec.known_dims[:-2]
    return (1,) * (rank - len(dims)) + dims


def _summed(grad: Tensor, target: Tensor) -> Tensor:
    """Return ``grad`` summed over the broadcast batch dims of ``target``."""
    return grad if grad.shape == target.shape else sum_to(grad, target, grad, -1)


class Bmm(Operator):
    """Out = X Y for each pair of matrices of a batch."""

    type = "bmm"
    multiplies = True
    X = operand(FLOATING, doc="[batch, rows, k]")
    Y = operand(FLOATING, same_type_as="X", doc="[batch, k, columns]")
    Out = result(layout="row", doc="[batch, rows, columns]")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require_rank(3, X, "X")
        require_rank(3, Y, "Y")
        x, y = X.known_dims, Y.known_dims
        batch = require_equal(x[0], y[0], "X and Y must be of one batch", X=0, Y=0)
        require_equal(x[2], y[1], "the columns of X must equal the rows of Y", X=2, Y=1)
        return X.with_dims((batch, x[1], y[2]))

    def sharding_rule(self, X: Spec, Y: Spec) -> ShardingRule | None:
        return of_product({"X": X, "Y": Y}, "Out", False, False)

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return bmm(X, Y)

    def workspace(self, X: Spec, Y: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X, Y=Y)

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out_GRAD=d_out) + no_less(copies(strided, X=X), copies(strided, Y=Y))

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), layout=_IN_ROWS, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return bmm(d_out, Y.mT) if requested[0] else None, bmm(X.mT, d_out) if requested[1] else None

    samples = [sample(X=f32(2, 4, 3), Y=f32(2, 3, 5)), sample(X=f32(0, 4, 3), Y=f32(0, 3, 5))]


class Dot(Operator):
    """Out = the inner products of the vectors in the last dims of X and Y."""

    type = "dot"
    X = operand(FLOATING, doc="[n] or [batch, n]")
    Y = operand(FLOATING, same_type_as="X", doc="as X")
    Out = result(doc="[] or [batch]")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require(X.rank in (1, 2), f"X must have 1 or 2 dims, not {X.rank}", X=None)
        require_rank(X.rank, Y, "Y")
        dims = [require_equal(a, b, "Y must have the dims of X", X=k, Y=k) for k, (a, b) in enumerate(zip(X.known_dims, Y.known_dims, strict=True))]
        return X.with_dims(dims[:-1])

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return X.nbytes if X.rank > 1 else 0

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        return torch.dot(X, Y) if X.dim() == 1 else (X * Y).sum(-1)

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"))
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d = d_out.unsqueeze(-1)
        return d * Y if requested[0] else None, d * X if requested[1] else None

    samples = [sample(X=f32(3), Y=f32(3)), sample(X=f32(2, 3), Y=f32(2, 3)), sample(X=f32(0, 3), Y=f32(0, 3))]
    rejects = [reject(X=f32(), Y=f32(), says="1 or 2 dims")]


class Addmm(Operator):
    """Out = Beta * Input + Alpha * X Y."""

    type = "addmm"
    Input = operand(FLOATING, same_type_as="X", doc="broadcasts to [rows, columns]")
    X = operand(FLOATING, doc="[rows, k]")
    Y = operand(FLOATING, same_type_as="X", doc="[k, columns]")
    Out = result(doc="[rows, columns]")
    Alpha = attribute(AttrType.FLOAT, 1.0)
    Beta = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, Input: Spec, X: Spec, Y: Spec) -> Spec:
        require_rank(2, X, "X")
        require_rank(2, Y, "Y")
        (rows, k), (k_too, columns) = X.known_dims, Y.known_dims
        require_equal(k, k_too, "the columns of X must equal the rows of Y", X=1, Y=0)
        require(Input.rank <= 2, f"Input must have at most 2 dims, not {Input.rank}", Input=None)
        for axis, size in enumerate(reversed(Input.known_dims)):
            require_broadcast_to(size, (columns, rows)[axis], "Input must have the dims of the product, or 1", Input=Input.rank - 1 - axis)
        return (Input if X.lod is None and Input.lod is not None else X).with_dims((rows, columns))

    def expand(self, of: Composition, Input: Any, X: Any, Y: Any) -> Any:
        out, addend = of("matmul_v2", X=X, Y=Y), Input
        if self.Alpha != 1.0:
            out = of("scale", {"scale": self.Alpha}, X=out)
        if self.Beta != 1.0:
            addend = of("scale", {"scale": self.Beta}, X=Input)
        return of("elementwise_add", X=out, Y=addend)

    @gradient("Input", "X", "Y", "Out@GRAD", gives=("Input@GRAD", "X@GRAD", "Y@GRAD"))
    def backward(self, of: Composition, Input: Any, X: Any, Y: Any, d_out: Any) -> Any:
        d, d_input = of("elementwise_add_grad", **{"X": d_out, "Y": Input, "Out@GRAD": d_out})
        if self.Beta != 1.0:
            d_input = of("scale", {"scale": self.Beta}, X=d_input)
        if self.Alpha != 1.0:
            d = of("scale", {"scale": self.Alpha}, X=d)
        return d_input, *of("matmul_v2_grad", **{"X": X, "Y": Y, "Out@GRAD": d})

    samples = [
        sample(Input=f32(2, 5), X=f32(2, 3), Y=f32(3, 5), Alpha=0.5, Beta=2.0),
        sample(Input=f32(5), X=f32(2, 3), Y=f32(3, 5)),
        sample(Input=f32(2, 1), X=f32(2, 3), Y=f32(3, 5)),
        sample(Input=f32(1, 5), X=f32(0, 3), Y=f32(3, 5)),
    ]
    rejects = [reject(Input=f32(2, 4), X=f32(2, 3), Y=f32(3, 5), says="the dims of the product")]
