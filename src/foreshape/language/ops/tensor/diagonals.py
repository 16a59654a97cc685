"""Diagonals extracted, created and replaced, and the places of triangles."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, maximum, minimum, product
from foreshape.core.spec import ANY, INDEX, INT64, Spec, tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.core.values.torch_types import element_type, torch_dtype
from foreshape.language.operator import ZERO_GRADIENT, AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import axis_of, require, require_equal
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.temporaries import copies, turned
from foreshape.language.ops.tensor.creation import DTYPE_DOC
from foreshape.machine.process.this_run import this_run


def diagonal_length(rows: Size, columns: Size, offset: int) -> Size:
    """Return the length of a diagonal; offset counts from the main one, upwards."""
    return maximum(minimum(rows, columns - offset) if offset >= 0 else minimum(rows + offset, columns), 0)


def two_axes(first: int, second: int, rank: int, names: tuple[str, str], slot: str | None) -> tuple[int, int]:
    """Return two different axes, each as 0..rank-1."""
    sides: dict[str, int | None] = {} if slot is None else {slot: None}
    a, b = axis_of(first, rank, names[0], **sides), axis_of(second, rank, names[1], **sides)
    require(a != b, f"{names[0]} and {names[1]} must be two axes; both are {a}", **sides)
    return a, b


class DiagV2(Operator):
    """Out = for a vector X, a matrix with X as the diagonal ``offset`` and ``padding_value`` elsewhere; for a matrix X, its diagonal.

    A tensor without dims counts as a vector of one number. Offset counts from the main diagonal, upwards.
    """

    type = "diag_v2"
    layer_function = "diag"
    X = operand(doc="[n], [rows, columns], or one number")
    Out = result(doc="[n + |offset|, n + |offset|], or [elements of the diagonal]")
    offset = attribute(AttrType.INT, 0)
    padding_value = attribute(AttrType.FLOAT, 0.0)

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank <= 2, f"X must be a vector or a matrix; it has {X.rank} dims", X=None)
        if X.rank == 2:
            rows, columns = X.known_dims
            return X.dense((diagonal_length(rows, columns, self.offset),))
        size = X.elements + abs(self.offset)
        return X.dense((size, size))

    def kernel(self, X: Tensor) -> Tensor:
        if X.dim() == 2:
            return X.diagonal(self.offset).clone()
        size = X.numel() + abs(self.offset)
        out = X.new_full((size, size), self.padding_value)
        out.diagonal(self.offset).copy_(X)
        return out

    @gradient("X", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, d_out: Tensor) -> Tensor:
        if X.dim() < 2:
            return d_out.diagonal(self.offset).clone().reshape(X.shape)
        out = d_out.new_zeros(X.shape)
        out.diagonal(self.offset).copy_(d_out)
        return out

    samples = [
        sample(X=f32(3), padding_value=0.5),
        sample(X=f32(3), offset=2),
        sample(X=f32(3), offset=-1),
        sample(X=f32(3, 5)),
        sample(X=f32(3, 5), offset=-1),
        sample(X=f32(3, 5), offset=3),
        sample(X=f32()),
        sample(X=f32(0), offset=1),
        sample(X=i64(2, 3), offset=1),
    ]
    rejects = [reject(X=f32(2, 3, 4), says="a vector or a matrix"), reject(X=f32(2), offset=2**31 - 1, says="64-bit")]


class Diag(Operator):
    """Out = a matrix with Diagonal as its diagonal, and zeros elsewhere."""

    type = "diag"
    Diagonal = operand(doc="[n]")
    Out = result(doc="[n, n]")

    def infer_shape(self, Diagonal: Spec) -> Spec:
        require(Diagonal.rank == 1, f"Diagonal must have 1 dim, not {Diagonal.rank}", Diagonal=None)
        return Diagonal.dense(Diagonal.known_dims * 2)

    def kernel(self, Diagonal: Tensor) -> Tensor:
        return torch.diag_embed(Diagonal)

    @gradient("Diagonal", "Out@GRAD", gives="Diagonal@GRAD")
    def backward(self, Diagonal: Tensor, d_out: Tensor) -> Tensor:
        return d_out.diagonal().clone()

    samples = [sample(Diagonal=f32(3)), sample(Diagonal=f32(0)), sample(Diagonal=i64(4))]


class DiagEmbed(Operator):
    """Out = the last axis of Input as the diagonal ``offset`` of matrices over the axes ``dim1`` and ``dim2``, zeros elsewhere."""

    type = "diag_embed"
    gradient_reads_dims = ("Input",)
    Input = operand(doc="[..., n]")
    Out = result(doc="the dims of Input but the last, with n + |offset| put in at dim1 and dim2")
    offset = attribute(AttrType.INT, 0)
    dim1 = attribute(AttrType.INT, -2)
    dim2 = attribute(AttrType.INT, -1)

    def infer_shape(self, Input: Spec) -> Spec:
        require(Input.rank >= 1, "Input must have at least one dim", Input=None)
        axes = two_axes(self.dim1, self.dim2, Input.rank + 1, ("dim1", "dim2"), "Input")
        size = Input.known_dims[-1] + abs(self.offset)
        dims = list(Input.known_dims[:-1])
        for axis in sorted(axes):
            dims.insert(axis, size)
        return (Input.dense() if 0 in axes else Input).with_dims(dims)

    def kernel(self, Input: Tensor) -> Tensor:
        return torch.diag_embed(Input, self.offset, self.dim1, self.dim2)

    def _gradient_spec(self, Input: Spec, d_out: Spec) -> Spec:
        out = DiagEmbed.infer_shape(self, Input)
        require(d_out.rank == out.rank, f"Out@GRAD must have {out.rank} dims, as Out", **{"Out@GRAD": None})
        for axis, (a, b) in enumerate(zip(d_out.known_dims, out.known_dims, strict=True)):
            require_equal(a, b, "Out@GRAD must have the dims of Out", **{"Out@GRAD": axis})
        return Input.like()

    @gradient("Input", "Out@GRAD", gives="Input@GRAD", infer=_gradient_spec, view_of={"Input@GRAD": "Out@GRAD"}, layout={"Input@GRAD": "strided"})
    def backward(self, Input: Tensor, d_out: Tensor) -> Tensor:
        return d_out.diagonal(self.offset, self.dim1, self.dim2)

    samples = [
        sample(Input=f32(2, 3)),
        sample(Input=f32(2, 3), offset=1, dim1=0, dim2=2),
        sample(Input=f32(2, 3), offset=-2, dim1=-1, dim2=0),
        sample(Input=f32(3)),
        sample(Input=f32(0, 3)),
        sample(Input=i64(4), offset=-1),
    ]
    rejects = [
        reject(Input=f32(2, 3), dim1=1, dim2=-2, says="must be two axes"),
        reject(Input=f32(2, 3), dim1=3, says="dim1 must be in [-3, 3)"),
    ]


class Diagonal(Operator):
    """Out = the diagonals ``offset`` of the matrices over the axes ``axis1`` and ``axis2`` of Input, as a last axis."""

    type = "diagonal"
    gradient_reads_dims = ("Input",)
    Input = operand(doc="at least two dims")
    Out = result(view_of="Input", layout="strided", doc="Input without axis1 and axis2, then the elements of the diagonal")
    offset = attribute(AttrType.INT, 0)
    axis1 = attribute(AttrType.INT, 0)
    axis2 = attribute(AttrType.INT, 1)

    def infer_shape(self, Input: Spec) -> Spec:
        a, b = two_axes(self.axis1, self.axis2, Input.rank, ("axis1", "axis2"), "Input")
        dims = Input.known_dims
        remaining = [d for axis, d in enumerate(dims) if axis not in (a, b)]
        return (Input.dense() if 0 in (a, b) else Input).with_dims((*remaining, diagonal_length(dims[a], dims[b], self.offset)))

    def kernel(self, Input: Tensor) -> Tensor:
        return Input.diagonal(self.offset, self.axis1, self.axis2)

    @gradient("Input", "Out@GRAD", gives="Input@GRAD")
    def backward(self, Input: Tensor, d_out: Tensor) -> Tensor:
        out = d_out.new_zeros(Input.shape)
        out.diagonal(self.offset, self.axis1, self.axis2).copy_(d_out)
        return out

    samples = [
        sample(Input=f32(3, 5)),
        sample(Input=f32(2, 3, 5), offset=1, axis1=1, axis2=2),
        sample(Input=f32(2, 3, 5), offset=-1, axis1=-1, axis2=0),
        sample(Input=f32(3, 5), offset=5),
        sample(Input=f32(0, 5)),
        sample(Input=i64(4, 3), offset=-2),
    ]
    rejects = [reject(Input=f32(2, 3), axis1=1, axis2=-1, says="must be two axes")]


class FillDiagonal(Operator):
    """Out = X with ``value`` on the diagonal ``offset``; with ``wrap`` the diagonal of a tall matrix begins again at its end. In a tensor of more dims, all
    equal, only the first element of the diagonal is set, as in PaddlePaddle 2.6."""

    type = "fill_diagonal"
    X = operand(ANY, doc="[rows, columns], or more dims, all alike")
    Out = result(doc="as X")
    value = attribute(AttrType.FLOAT, 0.0)
    offset = attribute(AttrType.INT, 0)
    wrap = attribute(AttrType.BOOLEAN, False)

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank >= 2, f"X must have at least 2 dims, not {X.rank}", X=None)
        for axis in range(1, X.rank if X.rank > 2 else 0):
            require_equal(X.known_dims[0], X.known_dims[axis], "the dims of X, more than two, must all be alike", X=axis)
        return X.like()

    def _set(self, x: Tensor, value: float) -> Tensor:
        """Return ``x``, contiguous, with the elements of the diagonal replaced."""
        flat, columns = x.view(-1), x.shape[1]
        end = flat.numel() if self.wrap else min(flat.numel(), columns * columns)
        if not end:
            return x
        step = sum(x.stride())
        first = torch.arange(0, end, step, device=x.device)
        across = first.remainder(columns) + self.offset
        flat[(first + self.offset)[(across >= 0) & (across < columns)]] = value
        return x

    def kernel(self, X: Tensor) -> Tensor:
        return self._set(X.clone(memory_format=torch.contiguous_format), self.value)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return 48 * (X.known_dims[0] + X.known_dims[1]) + turned(strided, X=X)

    def _gradient_workspace(self, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return 48 * (d_out.known_dims[0] + d_out.known_dims[1]) + turned(strided, Out_GRAD=d_out)

    @gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, d_out: Tensor) -> Tensor:
        return self._set(d_out.clone(memory_format=torch.contiguous_format), 0.0)

    samples = [
        sample(X=f32(3, 5), value=1.5),
        sample(X=f32(7, 3), value=1.5, wrap=True),
        sample(X=f32(7, 3), value=1.5),
        sample(X=f32(3, 5), value=1.5, offset=2),
        sample(X=f32(5, 3), value=1.5, offset=-1),
        sample(X=f32(3, 3, 3), value=1.5),
        sample(X=f32(0, 5)),
        sample(X=i64(3, 4), value=2.0),
    ]
    rejects = [reject(X=f32(3), says="at least 2 dims"), reject(X=f32(3, 3, 4), says="must all be alike")]


class FillDiagonalTensor(Operator):
    """Out = X with the diagonals ``offset`` of the matrices over the axes ``dim1`` and ``dim2`` replaced by Y.

    Y has a gradient here, but not in PaddlePaddle 2.6.
    """

    type = "fill_diagonal_tensor"
    X = operand(ANY, doc="at least two dims")
    Y = operand(ANY, same_type_as="X", doc="the dims of X but dim1 and dim2, made one or not, then the elements of the diagonal")
    Out = result(doc="as X")
    offset = attribute(AttrType.LONG, 0, low=-(2**31), high=2**31)
    dim1 = attribute(AttrType.INT, 0)
    dim2 = attribute(AttrType.INT, 1)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        a, b = two_axes(self.dim1, self.dim2, X.rank, ("dim1", "dim2"), "X")
        dims = X.known_dims
        count = product(tuple(d for axis, d in enumerate(dims) if axis not in (a, b)))
        require(Y.rank >= 1, "Y must have at least one dim", Y=None)
        many = diagonal_length(dims[a], dims[b], self.offset)
        require_equal(Y.known_dims[-1], many, f"a diagonal has {many} elements, and a row of Y {Y.known_dims[-1]}", Y=Y.rank - 1)
        require_equal(product(Y.known_dims[:-1]), count, f"X has {count} diagonals, and Y {product(Y.known_dims[:-1])} rows", Y=None, X=None)
        return X.like()

    def kernel(self, X: Tensor, Y: Tensor) -> Tensor:
        out = X.clone(memory_format=torch.contiguous_format)
        part = out.diagonal(self.offset, self.dim1, self.dim2)
        part.copy_(Y.reshape(part.shape))
        return out

    def workspace(self, X: Spec, Y: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Y=Y) + turned(strided, X=X)

    def _gradient_workspace(self, Y: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return Y.nbytes + turned(strided, Out_GRAD=d_out)

    def _infer_gradient(self, Y: Spec, d_out: Spec) -> tuple[Spec, Spec]:
        return FillDiagonalTensor.infer_shape(self, d_out, Y), Y.like()

    @gradient("Y", "Out@GRAD", gives=("X@GRAD", "Y@GRAD"), infer=_infer_gradient, workspace=_gradient_workspace)
    def backward(self, Y: Tensor, d_out: Tensor, *, requested: tuple[bool, ...]) -> Any:
        d_y = d_out.diagonal(self.offset, self.dim1, self.dim2).clone(memory_format=torch.contiguous_format).reshape(Y.shape) if requested[1] else None
        if not requested[0]:
            return None, d_y
        d_x = d_out.clone(memory_format=torch.contiguous_format)
        d_x.diagonal(self.offset, self.dim1, self.dim2).zero_()
        return d_x, d_y

    samples = [
        sample(X=f32(3, 5), Y=f32(3)),
        sample(X=f32(3, 5), Y=f32(1, 2), offset=3),
        sample(X=f32(2, 3, 5), Y=f32(2, 3), dim1=1, dim2=2),
        sample(X=f32(2, 3, 5, 4), Y=f32(2, 5, 2), offset=-1, dim1=1, dim2=-1),
        sample(X=f32(2, 3, 5, 4), Y=f32(10, 2), offset=-1, dim1=1, dim2=-1),
        sample(X=f32(0, 3, 5), Y=f32(0, 3), dim1=1, dim2=2),
        sample(X=i64(4, 3), Y=i64(3)),
    ]
    rejects = [
        reject(X=f32(3, 5), Y=f32(4), says="a diagonal has 3 elements"),
        reject(X=f32(2, 3, 5), Y=f32(3, 3), dim1=1, dim2=2, says="X has 2 diagonals"),
        reject(X=f32(3, 5), Y=f32(3), dim2=0, says="must be two axes"),
    ]


def lower_count(rows: int, columns: int, offset: int) -> int:
    """Return the number of elements of a matrix on or below a diagonal: row i has min(i + offset + 1, columns) of them, at least none."""
    first, last = max(offset + 1, 1), rows + offset
    partial_last = min(last, columns - 1)
    rising = (first + partial_last) * (partial_last - first + 1) // 2 if partial_last >= first else 0
    return rising + max(last - max(columns, first) + 1, 0) * columns


class TriangleIndices(Operator):
    """The base of tril_indices and triu_indices."""

    abstract = True
    out = result(doc="[2, n]: the rows, and the columns, of the elements in row-major order")
    offset = attribute(AttrType.INT, 0, doc="the last included diagonal, counted from the main one, upwards")
    dtype = attribute(AttrType.INT, INT64, choices=tuple(t.code for t in INDEX), doc=DTYPE_DOC)
    gradient = ZERO_GRADIENT


class TrilIndices(TriangleIndices):
    """out = the places of the elements on and below the diagonal ``offset`` of a matrix."""

    type = "tril_indices"
    rows = attribute(AttrType.INT, 0, low=0)
    cols = attribute(AttrType.INT, 0, low=0)

    def infer_shape(self) -> Spec:
        return tensor(element_type(self.dtype), 2, lower_count(self.rows, self.cols, self.offset))

    def kernel(self) -> Tensor:
        return torch.tril_indices(self.rows, self.cols, self.offset, dtype=torch_dtype(self.dtype), device=this_run.device)

    samples = [
        sample(rows=3, cols=5),
        sample(rows=5, cols=3, offset=1),
        sample(rows=4, cols=3, offset=-2, dtype=2),
        sample(rows=2, cols=3, offset=7),
        sample(rows=2, cols=3, offset=-7),
        sample(rows=0, cols=3),
    ]
    rejects = [reject(rows=2**31 - 1, cols=2**31 - 1, says="64-bit")]


class TriuIndices(TriangleIndices):
    """out = the places of the elements on and above the diagonal ``offset`` of a matrix."""

    type = "triu_indices"
    row = attribute(AttrType.INT, 0, low=0)
    col = attribute(AttrType.INT, 0, low=0)

    def infer_shape(self) -> Spec:
        return tensor(element_type(self.dtype), 2, self.row * self.col - lower_count(self.row, self.col, self.offset - 1))

    def kernel(self) -> Tensor:
        return torch.triu_indices(self.row, self.col, self.offset, dtype=torch_dtype(self.dtype), device=this_run.device)

    samples = [
        sample(row=3, col=5),
        sample(row=5, col=3, offset=-1),
        sample(row=4, col=3, offset=2, dtype=2),
        sample(row=2, col=3, offset=7),
        sample(row=2, col=3, offset=-7),
        sample(row=3, col=0),
    ]
    rejects = [reject(row=2**31 - 1, col=2**31 - 1, says="64-bit")]
