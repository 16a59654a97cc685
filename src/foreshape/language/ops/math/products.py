"""Matrix products beside `matmul_v2`: its first version, a matrix times a vector, a chain of matrices, and bilinear products."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, equal, product
from foreshape.core.spec import FLOATING, Spec
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.composition import Composition
from foreshape.language.operator.require import fail, require, require_at_most, require_equal, require_rank
from foreshape.language.operator.samples import f32, f64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.math.extremes import GIVES
from foreshape.language.ops.math.matmul import BatchedProduct
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import rows
from foreshape.machine.kernels.products import bmm

_ROWS: dict[str, Any] = {"X@GRAD": "row", "Y@GRAD": "row"}
_MOST = 64
"""The most matrices in a chain."""


class Matmul(BatchedProduct):
    """Out = alpha * X Y, the product of the matrices in the last two dims. The dims before are a batch, shared by both or absent from one.

    ``transpose_X`` and ``transpose_Y`` swap the last two dims first. A tensor of one dim is a row (as X) or a column (as Y); transposed it is a column or a
    row. Its added dim of 1 is not in the result.
    """

    type = "matmul"
    multiplies = True
    transpose_X = attribute(AttrType.BOOLEAN, False)
    transpose_Y = attribute(AttrType.BOOLEAN, False)
    alpha = attribute(AttrType.FLOAT, 1.0)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require(X.rank > 0, "X must have at least one dim", X=None)
        require(Y.rank > 0, "Y must have at least one dim", Y=None)
        x = _transposed_dims((1, *X.known_dims) if X.rank == 1 else X.known_dims, self.transpose_X)
        y = _transposed_dims((*Y.known_dims, 1) if Y.rank == 1 else Y.known_dims, self.transpose_Y)
        require_equal(x[-1], y[-2], "the columns of X must equal the rows of Y", X=None, Y=None)
        batch = x[:-2] or y[:-2]
        if x[:-2] and y[:-2]:
            requirement = "X and Y must be of one batch, or one of them of none"
            require(len(x) == len(y), requirement, X=None, Y=None)
            batch = tuple(require_equal(a, b, requirement, X=k, Y=k) for k, (a, b) in enumerate(zip(x[:-2], y[:-2], strict=True)))
        rows = () if X.rank == 1 and _is_one(x[-2], "X") else (x[-2],)
        columns = () if Y.rank == 1 and _is_one(y[-1], "Y") else (y[-1],)
        rows_stay = (X.rank > 2 and X.rank >= Y.rank) or (Y.rank <= 2 and bool(rows) and self.transpose_X is (X.rank == 1))
        return (X if rows_stay else X.dense()).with_dims((*batch, *rows, *columns))

    def _transposed(self) -> tuple[bool, bool]:
        return self.transpose_X, self.transpose_Y

    def computes(self) -> computations.MatrixProduct | None:
        return computations.MatrixProduct(self.transpose_X, self.transpose_Y) if self.alpha == 1.0 else None

    def _attributes(self) -> dict[str, Any]:
        return {"trans_x": self.transpose_X, "trans_y": self.transpose_Y}

    def _matrices(self, of: Composition, X: Any, Y: Any) -> tuple[Any, Any, list[int]]:
        """Return X and Y, with transposed vectors as matrices, and the axes of 1 that these add to the product."""
        column, row = self.transpose_X and X.spec.rank == 1, self.transpose_Y and Y.spec.rank == 1
        x = of("unsqueeze2", {"axes": [0]}, X=X)[0] if column else X
        y = of("unsqueeze2", {"axes": [1]}, X=Y)[0] if row else Y
        axes = [-1] if row and _is_one(Y.spec.known_dims[0], "Y") else []
        return x, y, [-2 if y.spec.rank > 1 else -1, *axes] if column and _is_one(X.spec.known_dims[0], "X") else axes

    def expand(self, of: Composition, X: Any, Y: Any) -> Any:
        x, y, axes = self._matrices(of, X, Y)
        out = of("matmul_v2", self._attributes(), X=x, Y=y)
        if self.alpha != 1.0:
            out = of("scale", {"scale": self.alpha}, X=out)
        return of("squeeze2", {"axes": axes}, X=out)[0] if axes else out

    @gradient("X", "Y", "Out@GRAD", gives=GIVES, layout=_ROWS)
    def backward(self, of: Composition, X: Any, Y: Any, d_out: Any) -> Any:
        x, y, axes = self._matrices(of, X, Y)
        d = d_out if self.alpha == 1.0 else of("scale", {"scale": self.alpha}, X=d_out)
        for axis in reversed(axes):
            d = of("unsqueeze2", {"axes": [axis]}, X=d)[0]
        d_x, d_y = of("matmul_v2_grad", self._attributes(), **{"X": x, "Y": y, "Out@GRAD": d})
        d_x = d_x if x is X else of("squeeze2", {"axes": [0]}, X=d_x)[0]
        return d_x, d_y if y is Y else of("squeeze2", {"axes": [1]}, X=d_y)[0]

    samples = [
        sample(X=f32(2, 3), Y=f32(3, 5)),
        sample(X=f32(3, 2), Y=f32(5, 3), transpose_X=True, transpose_Y=True, alpha=2.5),
        sample(X=f32(4, 2, 3), Y=f32(3, 5), alpha=0.5),
        sample(X=f32(4, 3, 2), Y=f32(3, 5), transpose_X=True),
        sample(X=f32(4, 2, 3), Y=f32(4, 5, 3), transpose_Y=True),
        sample(X=f32(6, 4, 3, 2), Y=f32(6, 4, 3, 5), transpose_X=True, alpha=-1.5),
        sample(X=f32(2, 3), Y=f32(4, 3, 5)),
        sample(X=f32(3), Y=f32(3), alpha=2.0),
        sample(X=f32(3), Y=f32(3, 5)),
        sample(X=f32(4, 2, 3), Y=f32(3)),
        sample(X=f32(3), Y=f32(4, 3, 5)),
        sample(X=f32(3), Y=f32(5), transpose_X=True, transpose_Y=True, alpha=2.0),
        sample(X=f32(1), Y=f32(1), transpose_X=True, transpose_Y=True, alpha=2.0),
        sample(X=f32(3), Y=f32(1, 5), transpose_X=True),
        sample(X=f32(2, 1), Y=f32(3), transpose_Y=True),
        sample(X=f32(0, 3), Y=f32(3, 5)),
        sample(X=f32(4, 2, 0), Y=f32(0, 5)),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(4, 5), says="the columns of X must equal the rows of Y"),
        reject(X=f32(4, 2, 3), Y=f32(1, 3, 5), says="of one batch"),
        reject(X=f32(6, 4, 2, 3), Y=f32(24, 3, 5), says="of one batch"),
        reject(X=f32(3), Y=f32(3), transpose_X=True, says="the columns of X"),
        reject(X=f32(), Y=f32(3), says="X must have at least one dim"),
    ]


def _transposed_dims(dims: Sequence[Size], transposed: bool) -> tuple[Size, ...]:
    return (*dims[:-2], dims[-1], dims[-2]) if transposed else tuple(dims)


def _is_one(size: Size, slot: str) -> bool:
    """Tell whether the dim of a transposed vector is 1, and so dropped. An open size must not be 1."""
    answer = equal(size, 1)
    if answer is None:
        require_at_most(2, size, f"a transposed vector of open size must have at least 2 numbers, since {slot} of one brings no dim", **{slot: 0})
    return answer is True


class Mv(Operator):
    """Out = X Vec, a matrix times a vector."""

    type = "mv"
    multiplies = True
    X = operand(FLOATING, doc="[rows, n]")
    Vec = operand(FLOATING, same_type_as="X", doc="[n]")
    Out = result(layout="row", doc="[rows]")

    def infer_shape(self, X: Spec, Vec: Spec) -> Spec:
        require_rank(2, X, "X")
        require_rank(1, Vec, "Vec")
        require_equal(X.known_dims[1], Vec.known_dims[0], "the columns of X must be as many as the numbers of Vec", X=1, Vec=0)
        return X.with_dims(X.known_dims[:1])

    def work(self, X: Spec, Vec: Spec) -> Size:
        return X.elements

    def workspace(self, X: Spec, Vec: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X, Vec=Vec)

    def kernel(self, X: Tensor, Vec: Tensor) -> Tensor:
        return torch.mv(X, Vec)

    def _gradient_workspace(self, X: Spec, Vec: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X, Vec=Vec, Out_GRAD=d_out)

    @gradient("X", "Vec", "Out@GRAD", gives=("X@GRAD", "Vec@GRAD"), workspace=_gradient_workspace)
    def backward(self, X: Tensor, Vec: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return torch.outer(d_out, Vec) if requested[0] else None, torch.mv(X.t(), d_out) if requested[1] else None

    samples = [sample(X=f32(2, 3), Vec=f32(3)), sample(X=f32(0, 3), Vec=f32(3)), sample(X=f32(2, 0), Vec=f32(0))]


class MultiDot(Operator):
    """Out = the product of a chain of matrices, multiplied in the order of the least work.

    The first may be a row and the last a column, of one dim each, without a dim in the result.
    """

    type = "multi_dot"
    X = operand(FLOATING, many=True, doc="from 2 to 64 matrices, each with as many rows as the one before has columns")
    Out = result(layout="row", doc="[rows of the first, columns of the last]")

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        require(2 <= len(X) <= _MOST, f"there must be from 2 to {_MOST} X; seen {len(X)}", X=None)
        sizes = self._sizes(X)
        out = (*(sizes[:1] if X[0].rank == 2 else ()), *(sizes[-1:] if X[-1].rank == 2 else ()))
        return X[0].with_dims(out) if X[0].rank == 2 else X[0].dense(out)

    def _sizes(self, X: Sequence[Spec]) -> list[Size]:
        """Return the rows of each matrix, and the columns of the last."""
        sizes: list[Size] = []
        for index, x in enumerate(X):
            inner = 0 < index < len(X) - 1
            require(x.rank == 2 or (x.rank == 1 and not inner), f"X[{index}] must have {'2 dims' if inner else '1 or 2 dims'}, not {x.rank}", X=None)
            if x.dtype is not X[0].dtype:
                fail(f"all X must have one element type; X[{index}] is {x.known_dtype.name}", TypeMismatchError, X=None)
            rows, columns = x.known_dims if x.rank == 2 else (1, *x.known_dims) if index == 0 else (*x.known_dims, 1)
            if sizes:
                require_equal(sizes[-1], rows, f"the columns of X[{index - 1}] must equal the rows of X[{index}]", X=None)
            sizes[-1:] = [rows, columns]
        return sizes

    def work(self, X: tuple[Spec, ...]) -> Size:
        sizes = self._sizes(X)
        return sizes[0] * product(sizes[1:2]) * sizes[-1]

    def _bytes(self, X: Sequence[Spec], strided: frozenset[str]) -> Size:
        sizes = self._sizes(X)
        between: Size = 0
        for k, height in enumerate(sizes):  # every product of a part of the chain: the sizes decide which of them are made
            for columns in sizes[k + 2 :]:
                between = between + height * columns
        return X[0].known_dtype.itemsize * between + (sum(x.nbytes for x in X) if strided else 0)

    def workspace(self, X: tuple[Spec, ...], *, strided: frozenset[str]) -> Size:
        return self._bytes(X, strided)

    def kernel(self, X: list[Tensor]) -> Tensor:
        return aten.linalg_multi_dot(X)

    def _gradient_workspace(self, X: tuple[Spec, ...], d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 3 * self._bytes(X, strided) + d_out.nbytes + sum(x.nbytes for x in X)

    @gradient("X", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: list[Tensor], d_out: Tensor) -> list[Tensor]:
        x = [X[0].reshape(1, -1) if X[0].dim() == 1 else X[0], *X[1:-1], X[-1].reshape(-1, 1) if X[-1].dim() == 1 else X[-1]]
        d = d_out.reshape(x[0].shape[0], x[-1].shape[1])
        transposed = [m.t() for m in x]
        gradients = [aten.linalg_multi_dot([*transposed[:k][::-1], d, *transposed[k + 1 :][::-1]]) for k in range(len(x))]
        return [f.reshape(source.shape).contiguous() for f, source in zip(gradients, X, strict=True)]

    samples = [
        sample(X=[f32(2, 3), f32(3, 4)]),
        sample(X=[f32(2, 3), f32(3, 4), f32(4, 5)]),
        sample(X=[f32(3), f32(3, 4), f32(4, 5)]),
        sample(X=[f32(2, 3), f32(3, 4), f32(4)]),
        sample(X=[f32(3), f32(3, 4), f32(4)]),
        sample(X=[f32(3), f32(3)]),
        sample(X=[f32(9, 2), f32(2, 8), f32(8, 3), f32(3, 7)]),
        sample(X=[f32(0, 3), f32(3, 4), f32(4, 2)]),
    ]
    rejects = [
        reject(X=[f32(2, 3)], says="from 2 to 64"),
        reject(X=[f32(2, 3), f32(4, 5)], says="the columns of X[0] must equal the rows of X[1]"),
        reject(X=[f32(2, 3), f32(3), f32(3)], says="X[1] must have 2 dims"),
        reject(X=[f32(2, 3), f64(3, 4)], says="one element type", error=TypeMismatchError),
    ]


class Fsp(Operator):
    """Out[b, i, j] = the mean over the image of X[b, i] * Y[b, j].

    Formula: Yim et al., "A gift from knowledge distillation", CVPR 2017.
    """

    type = "fsp"
    examples = ("X", "Y")
    multiplies = True
    X = operand(FLOATING, doc="[batch, channels, height, width]")
    Y = operand(FLOATING, same_type_as="X", doc="[batch, other channels, height, width]")
    Out = result(doc="[batch, channels, other channels]")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require_rank(4, X, "X")
        require_rank(4, Y, "Y")
        for axis in (0, 2, 3):
            require_equal(X.known_dims[axis], Y.known_dims[axis], "X and Y must be images of one size, and as many", X=axis, Y=axis)
        return rows(X.dtype, (X.known_dims[0], X.known_dims[1], Y.known_dims[1]), X.lod)

    def work(self, X: Spec, Y: Spec) -> Size:
        return X.elements * Y.known_dims[1]

    def workspace(self, X: Spec, Y: Spec) -> Size:
        return X.nbytes + Y.nbytes

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        pixels = X.shape[2] * X.shape[3]
        return bmm(X.flatten(2), Y.flatten(2).transpose(1, 2)).div_(max(pixels, 1))

    def _gradient_workspace(self, X: Spec, Y: Spec, d_out: Spec) -> Size:
        return X.nbytes + Y.nbytes + 3 * d_out.nbytes

    @gradient("X", "Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d = d_out / max(X.shape[2] * X.shape[3], 1)
        d_x = bmm(d, Y.flatten(2)).view(X.shape) if requested[0] else None
        return d_x, bmm(d.transpose(1, 2), X.flatten(2)).view(Y.shape) if requested[1] else None

    samples = [sample(X=f32(2, 3, 4, 5), Y=f32(2, 6, 4, 5)), sample(X=f32(1, 1, 1, 1), Y=f32(1, 2, 1, 1))]


class BilinearTensorProduct(Operator):
    """Out[b, k] = X[b] Weight[k] Y[b]', plus Bias[k]."""

    type = "bilinear_tensor_product"
    layer_function = "bilinear"
    examples = ("X", "Y")
    multiplies = True
    X = operand(FLOATING, doc="[batch, m]")
    Y = operand(FLOATING, same_type_as="X", doc="[batch, n]")
    Weight = operand(FLOATING, same_type_as="X", doc="[size, m, n]")
    Bias = operand(FLOATING, optional=True, same_type_as="X", doc="[1, size]")
    Out = result(doc="[batch, size]")

    def infer_shape(self, X: Spec, Y: Spec, Weight: Spec, Bias: Spec | None) -> Spec:
        for spec, slot, rank in ((X, "X", 2), (Y, "Y", 2), (Weight, "Weight", 3)):
            require_rank(rank, spec, slot)
        require_equal(X.known_dims[0], Y.known_dims[0], "X and Y must have as many rows", X=0, Y=0)
        require_equal(X.known_dims[1], Weight.known_dims[1], "dim 1 of Weight must be the columns of X", X=1, Weight=1)
        require_equal(Y.known_dims[1], Weight.known_dims[2], "dim 2 of Weight must be the columns of Y", Y=1, Weight=2)
        if Bias is not None:
            require_rank(2, Bias, "Bias")
            require_equal(Bias.known_dims[0], 1, "Bias must have 1 row", Bias=0)
            require_equal(Bias.known_dims[1], Weight.known_dims[0], "Bias must have one number for each of Weight's matrices", Bias=1, Weight=0)
        return X.with_dims((X.known_dims[0], Weight.known_dims[0]))

    def work(self, X: Spec, Y: Spec, Weight: Spec, Bias: Spec | None) -> Size:
        return X.known_dims[0] * Weight.elements

    def workspace(self, X: Spec, Y: Spec, Weight: Spec, Bias: Spec | None) -> Size:
        item = X.known_dtype.itemsize
        return 2 * X.known_dims[0] * Weight.known_dims[0] * Weight.known_dims[2] * item + 2 * Weight.nbytes + X.nbytes + Y.nbytes

    def kernel(self, X: Tensor, Y: Tensor, Weight: Tensor, Bias: Tensor | None) -> Tensor:
        out = torch.einsum("bm,kmn,bn->bk", X.contiguous(), Weight, Y.contiguous())
        return out.contiguous() if Bias is None else out + Bias

    def _infer_gradient(self, X: Spec, Y: Spec, Weight: Spec, d_out: Spec) -> Any:
        check_made(Out_GRAD=(d_out, BilinearTensorProduct.infer_shape(self, X, Y, Weight, None)))
        return X.like(), Y.like(), Weight.like(), X.dense((1, Weight.known_dims[0]))

    def _gradient_workspace(self, X: Spec, Y: Spec, Weight: Spec, d_out: Spec) -> Size:
        return 3 * d_out.known_dims[0] * Weight.nbytes + 3 * Weight.nbytes + 4 * (X.nbytes + Y.nbytes + d_out.nbytes)

    @gradient("X", "Y", "Weight", "Out@GRAD", gives=("X@GRAD", "Y@GRAD", "Weight@GRAD", "Bias@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, X: Tensor, Y: Tensor, Weight: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        x, y = X.contiguous(), Y.contiguous()
        d_x = torch.einsum("bk,kmn,bn->bm", d_out, Weight, y).contiguous() if requested[0] else None
        d_y = torch.einsum("bk,kmn,bm->bn", d_out, Weight, x).contiguous() if requested[1] else None
        d_w = torch.einsum("bk,bm,bn->kmn", d_out, x, y).contiguous() if requested[2] else None
        return d_x, d_y, d_w, d_out.sum(0, keepdim=True) if requested[3] else None

    samples = [
        sample(X=f32(2, 3), Y=f32(2, 4), Weight=f32(5, 3, 4), Bias=f32(1, 5)),
        sample(X=f32(7, 2), Y=f32(7, 2), Weight=f32(3, 2, 2)),
    ]
