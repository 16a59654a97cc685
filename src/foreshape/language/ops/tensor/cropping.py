"""A window of a tensor, and borders of two axes: crop, crop_tensor, pad2d, pad_constant_like."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, minimum
from foreshape.core.spec import ANY, INDEX, NUMERIC, Spec
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_at_most, require_rank, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.ops.rules.known_values import known_sizes, sizes_at_run


def window(X: Spec, offsets: Sequence[Size | None], shape: Sequence[Size | None], least: int = 1) -> Spec:
    """Return the part of X of the dims ``shape`` from ``offsets`` on; -1 is the rest, None is known at run time only.

    ``least``: the smallest size allowed.
    """
    rank, dims = X.rank, list(X.known_dims)
    for slot, numbers in (("offsets", offsets), ("shape", shape)):
        require(len(numbers) == rank, f"{slot} must have a number for each of the {rank} dims of X; it has {len(numbers)}", X=None)
    for axis, (start, size) in enumerate(zip(offsets, shape, strict=True)):
        if isinstance(start, int):
            require(start >= 0, f"offsets must be at least 0; seen {start}", X=axis)
        if isinstance(size, int):
            require(size >= least or size == -1, f"each size of shape must be at least {least}, or -1: the rest; seen {size}", X=axis)
        if start is None or size is None:
            dims[axis] = size if size is not None and not (isinstance(size, int) and size < 0) else unknown_size(str(axis))
            continue
        takes_rest = isinstance(size, int) and size < 0
        says = f"what is cut must be in X: axis {axis} has {dims[axis]} entries, offset {start}" + ("" if takes_rest else f" and size {size} asked")
        require_at_most(start if takes_rest else start + size, dims[axis], says, X=axis)
        dims[axis] = dims[axis] - start if takes_rest else size
    keeps = isinstance(offsets[0], int) and offsets[0] == 0 if rank else False
    return (X if keeps else X.dense()).with_dims(dims)


def cut(x: Tensor, offsets: Sequence[int], shape: Sequence[int]) -> Tensor:
    """Return the part of `window`, as a view."""
    for axis, (start, size) in enumerate(zip(offsets, shape, strict=True)):
        size = x.shape[axis] - start if size < 0 else size
        if start < 0 or size < 0 or start + size > x.shape[axis]:
            raise ExecutionError(f"what is cut must be in X: axis {axis} has {x.shape[axis]} entries, offset {start} and size {size} asked")
        x = x.narrow(axis, start, size)
    return x


class CropTensor(Operator):
    """Out = the part of X of the dims ``shape`` from ``offsets`` on (0 by default); -1 in shape is the rest of the dim."""

    type = "crop_tensor"
    layer_function = "crop"
    gradient_reads_dims = ("X",)
    X = operand(doc="any shape")
    Shape = operand(INDEX, optional=True, doc="the shape, as a tensor")
    ShapeTensor = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    Offsets = operand(INDEX, optional=True, doc="offsets, as a tensor")
    OffsetsTensor = operand(INDEX, many=True, optional=True, doc="offsets, as tensors of one number each")
    Out = result(view_of="X", layout="strided", doc="[*shape]")
    shape = attribute(AttrType.INTS, [])
    offsets = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, Shape: Spec | None, ShapeTensor: Any, Offsets: Spec | None, OffsetsTensor: Any) -> Spec:
        offsets = known_sizes(self.offsets, Offsets, OffsetsTensor, "Offsets", "OffsetsTensor")
        return window(X, offsets or (0,) * X.rank, known_sizes(self.shape, Shape, ShapeTensor, "Shape", "ShapeTensor"))

    def _cut(self, x: Tensor, Shape: Any, ShapeTensor: Any, Offsets: Any, OffsetsTensor: Any) -> Tensor:
        offsets = sizes_at_run(self.offsets, Offsets, OffsetsTensor)
        return cut(x, offsets or (0,) * x.dim(), sizes_at_run(self.shape, Shape, ShapeTensor))

    def kernel(self, X: Tensor, Shape: Any, ShapeTensor: Any, Offsets: Any, OffsetsTensor: Any) -> Tensor:
        return self._cut(X, Shape, ShapeTensor, Offsets, OffsetsTensor)

    @gradient("X", "Shape", "ShapeTensor", "Offsets", "OffsetsTensor", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Shape: Any, ShapeTensor: Any, Offsets: Any, OffsetsTensor: Any, d_out: Tensor) -> Tensor:
        out = d_out.new_zeros(X.shape)
        self._cut(out, Shape, ShapeTensor, Offsets, OffsetsTensor).copy_(d_out)
        return out

    samples = [
        sample(X=f32(4, 5), shape=[2, 3], offsets=[1, 2]),
        sample(X=f32(4, 5), shape=[-1, 3], offsets=[1, 0]),
        sample(X=f32(2, 7, 5), shape=[2, 3, -1]),
        sample(X=f32(4, 5), Shape=i64(2, data=[3, -1]), offsets=[0, 1]),
        sample(X=f32(4, 5), shape=[2, 3], Offsets=i32(2, high=1)),
        sample(X=f32(4, 5), ShapeTensor=[i32(1, data=[2]), i32(1, low=1, high=3)], OffsetsTensor=[i32(1, data=[1]), i32(1, data=[2])]),
        sample(X=f32(0, 5), shape=[-1, 2], offsets=[0, 3]),
        sample(X=i64(6), shape=[2], offsets=[4]),
    ]
    rejects = [
        reject(X=f32(4, 5), shape=[2, 3], offsets=[1, 3], says="what is cut must be in X: axis 1"),
        reject(X=f32(4, 5), shape=[2], says="shape must have a number for each"),
        reject(X=f32(4, 5), shape=[2, 0], says="at least 1, or -1"),
        reject(X=f32(4, 5), shape=[2, 2], offsets=[-1, 0], says="offsets must be at least 0"),
        reject(X=f32(4, 5), shape=[2, 2], offsets=[1], says="offsets must have a number for each"),
    ]


class Crop(Operator):
    """Out = the part of X of the dims of Y, or ``shape`` without Y, from Offsets, or ``offsets``, on."""

    type = "crop"
    gradient_reads_dims = ("X",)
    X = operand(doc="any shape")
    Y = operand(ANY, optional=True, doc="the tensor of the wanted dims")
    Offsets = operand(INDEX, optional=True, doc="offsets, as a tensor")
    Out = result(view_of="X", layout="strided", doc="the dims of Y, or [*shape]")
    offsets = attribute(AttrType.INTS, [])
    shape = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, Y: Spec | None, Offsets: Spec | None) -> Spec:
        offsets = known_sizes(self.offsets, Offsets, (), "Offsets") or (0,) * X.rank
        return window(X, offsets, self.shape) if Y is None else window(X, offsets, Y.known_dims, 0)

    def _cut(self, x: Tensor, Y: Tensor | None, Offsets: Any) -> Tensor:
        return cut(x, sizes_at_run(self.offsets, Offsets) or (0,) * x.dim(), self.shape if Y is None else Y.shape)

    def kernel(self, X: Tensor, Y: Tensor | None, Offsets: Any) -> Tensor:
        return self._cut(X, Y, Offsets)

    @gradient("X", "Y", "Offsets", "Out@GRAD", gives="X@GRAD")
    def backward(self, X: Tensor, Y: Tensor | None, Offsets: Any, d_out: Tensor) -> Tensor:
        out = d_out.new_zeros(X.shape)
        self._cut(out, Y, Offsets).copy_(d_out)
        return out

    samples = [
        sample(X=f32(4, 5), shape=[2, 3], offsets=[1, 2]),
        sample(X=f32(4, 5), Y=f32(2, 3), offsets=[1, 2]),
        sample(X=f32(4, 5), Y=i64(2, 3), Offsets=i32(2, high=1)),
        sample(X=f32(4, 5), shape=[4, 3]),
    ]
    rejects = [
        reject(X=f32(4, 5), shape=[2, 3], offsets=[1, 3], says="what is cut must be in X: axis 1"),
        reject(X=f32(4, 5), Y=f32(2), says="shape must have a number for each"),
    ]


class Pad2d(Operator):
    """Out = X with a border around its height and width; ``paddings`` are [top, bottom, left, right].

    ``mode``: "constant" borders are ``pad_value``, "reflect" mirrors without the edge, "edge" repeats the edge.
    """

    type = "pad2d"
    examples = ("X",)
    gradient_reads_dims = ("X",)
    X = operand(NUMERIC, doc="[batch, channels, height, width], or channels last")
    Paddings = operand(INDEX, optional=True, doc="the paddings, as a tensor of four numbers")
    Out = result(doc="as X, the padded dims larger")
    paddings = attribute(AttrType.INTS, [0, 0, 0, 0])
    pad_value = attribute(AttrType.FLOAT, 0.0)
    mode = attribute(AttrType.STRING, "constant", choices=("constant", "reflect", "edge"))
    data_format = attribute(AttrType.STRING, "NCHW", choices=("NCHW", "NHWC"))

    def _first(self) -> int:
        return 2 if self.data_format == "NCHW" else 1

    def infer_shape(self, X: Spec, Paddings: Spec | None) -> Spec:
        require_rank(4, X, "X")
        pads = known_sizes(self.paddings, Paddings, (), "Paddings")
        require(len(pads) == 4, f"paddings must be four numbers, not {len(pads)}", X=None)
        dims = list(X.known_dims)
        for k in range(2):
            axis = self._first() + k
            dims[axis] = self._padded(dims[axis], pads[2 * k], pads[2 * k + 1], axis)
        return X.with_dims(dims)

    def _padded(self, size: Size, front: Size | None, back: Size | None, axis: int) -> Size:
        if front is None or back is None:
            return unknown_size(str(axis))
        for pad in (front, back):
            require_at_most(0, pad, f"paddings must be at least 0; seen {pad}", X=axis)
            if self.mode == "reflect":
                require_at_most(pad + 1, size, f"a reflected padding must be less than the dim; seen {pad} and {size}", X=axis)
            elif self.mode == "edge" and (not isinstance(pad, int) or pad):
                require_at_most(minimum(pad, 1), size, "an edge that is repeated must be there: the dim must be at least 1", X=axis)
        return size + front + back

    def _borders(self, X: Tensor, Paddings: Tensor | None) -> list[tuple[int, int, int]]:
        """Return each of the two axes with its paddings."""
        pads = sizes_at_run(self.paddings, Paddings)
        out = [(self._first() + k, pads[2 * k], pads[2 * k + 1]) for k in range(2)]
        for axis, front, back in out:
            least, largest = min(front, back), max(front, back)
            size = X.shape[axis]
            if least < 0 or (self.mode == "reflect" and largest >= size) or (self.mode == "edge" and largest and not size):
                raise ExecutionError(f"pad2d: paddings must be at least 0 and fit the dim, {size}, in mode {self.mode!r}; seen {front} and {back}")
        return out

    def kernel(self, X: Tensor, Paddings: Tensor | None) -> Any:
        borders = self._borders(X, Paddings)
        if self.mode == "constant":
            widths = [borders[1][1], borders[1][2], borders[0][1], borders[0][2]]
            return F.pad(X, widths if self.data_format == "NCHW" else [0, 0, *widths], "constant", self.pad_value)
        dims = list(X.shape)
        for axis, front, back in borders:
            dims[axis] += front + back
        out = X.new_empty(dims)
        (top, above, _), (left, front, _) = borders
        out.narrow(top, above, X.shape[top]).narrow(left, front, X.shape[left]).copy_(X)
        middle = out.narrow(top, above, X.shape[top])
        for part, (axis, front, back) in ((middle, borders[1]), (out, borders[0])):
            for border, source in self._mirrored(part, axis, X.shape[axis], front, back):
                border.copy_(source.expand(border.shape) if self.mode == "edge" else source.flip(axis))
        return out

    def _mirrored(self, x: Tensor, axis: int, size: int, front: int, back: int) -> list[tuple[Tensor, Tensor]]:
        """Return the borders of an axis of a padded tensor, each with the entries it repeats or mirrors."""
        edge, end = self.mode == "edge", front + size
        out = [(x.narrow(axis, 0, front), x.narrow(axis, front, 1) if edge else x.narrow(axis, front + 1, front))] if front else []
        return out + ([(x.narrow(axis, end, back), x.narrow(axis, end - 1, 1) if edge else x.narrow(axis, end - 1 - back, back))] if back else [])

    def workspace(self, X: Spec, Paddings: Spec | None) -> Size:
        return 3 * X.nbytes if self.mode == "reflect" else 0  # a mirrored border is less than X; an axis of X may be padded already

    def _gradient_workspace(self, X: Spec, Paddings: Spec | None, d_out: Spec) -> Size:
        return 0 if self.mode == "constant" else 2 * d_out.nbytes

    @gradient("X", "Paddings", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, Paddings: Tensor | None, d_out: Tensor) -> Tensor:
        borders = self._borders(X, Paddings)
        d = d_out if self.mode == "constant" else d_out.clone()
        for axis, front, back in borders:
            for border, source in self._mirrored(d, axis, X.shape[axis], front, back) if self.mode != "constant" else ():
                source.add_(border.sum(axis, keepdim=True) if self.mode == "edge" else border.flip(axis))
            d = d.narrow(axis, front, X.shape[axis])
        return d.clone(memory_format=torch.contiguous_format)

    samples = [
        sample(X=f32(2, 3, 4, 5), paddings=[1, 2, 0, 3], pad_value=0.5),
        sample(X=f32(2, 3, 4, 5), paddings=[1, 2, 0, 3], mode="reflect"),
        sample(X=f32(2, 3, 4, 5), paddings=[1, 2, 0, 3], mode="edge"),
        sample(X=f32(2, 4, 5, 3), paddings=[1, 2, 0, 3], data_format="NHWC"),
        sample(X=f32(2, 4, 5, 3), paddings=[1, 2, 0, 3], mode="reflect", data_format="NHWC"),
        sample(X=f32(0, 3, 4, 5), paddings=[1, 2, 0, 3], mode="edge"),
        sample(X=i64(2, 3, 4, 5), paddings=[1, 2, 0, 3], mode="reflect"),
        sample(X=f32(2, 3, 4, 5), Paddings=i32(4, data=[1, 2, 0, 3])),
        sample(X=f32(2, 3, 4, 5), Paddings=i32(4, high=3), mode="reflect"),
    ]
    rejects = [
        reject(X=f32(2, 3, 4, 5), paddings=[1, 1], says="four numbers"),
        reject(X=f32(2, 3, 4, 5), paddings=[4, 0, 0, 0], mode="reflect", says="less than the dim"),
        reject(X=f32(2, 3, 0, 5), paddings=[4, 0, 0, 0], mode="edge", says="must be there"),
        reject(X=f32(2, 3, 4, 5), paddings=[-1, 0, 0, 0], says="at least 0"),
    ]


class PadConstantLike(Operator):
    """Out = Y with ``pad_value`` after it along each axis until it has the dims of X."""

    type = "pad_constant_like"
    X = operand(ANY, doc="the tensor of the wanted dims")
    Y = operand(NUMERIC, doc="the padded tensor, no larger than X")
    Out = result(doc="the dims of X")
    pad_value = attribute(AttrType.FLOAT, 0.0)

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        require(X.rank == Y.rank, f"Y must have the {X.rank} dims of X; it has {Y.rank}", X=None, Y=None)
        if X.dtype is not Y.dtype:
            fail(f"X and Y must have one element type; seen {X.known_dtype.name} and {Y.known_dtype.name}", TypeMismatchError, X=None, Y=None)
        for axis, (size, d) in enumerate(zip(X.known_dims, Y.known_dims, strict=True)):
            require_at_most(d, size, f"Y must be no larger than X; at axis {axis} it has {d} and X {size}", X=axis, Y=axis)
        return X.like()

    def kernel(self, X: Tensor, Y: Tensor) -> Any:
        widths = [n for size, d in zip(X.shape[::-1], Y.shape[::-1], strict=True) for n in (0, size - d)]
        return F.pad(Y, widths, "constant", self.pad_value)

    def _infer_gradient(self, Y: Spec, d_out: Spec) -> Spec:
        require(d_out.rank == Y.rank, f"Out@GRAD must have the {Y.rank} dims of Y; it has {d_out.rank}", **{"Out@GRAD": None, "Y": None})
        for axis, (size, d) in enumerate(zip(d_out.known_dims, Y.known_dims, strict=True)):
            require_at_most(d, size, f"Y must be no larger than Out@GRAD; at axis {axis} it has {d} and Out@GRAD {size}", **{"Out@GRAD": axis, "Y": axis})
        return Y.like()

    @gradient("Y", "Out@GRAD", gives="Y@GRAD", view_of={"Y@GRAD": "Out@GRAD"}, layout={"Y@GRAD": "strided"}, infer=_infer_gradient)
    def backward(self, Y: Tensor, d_out: Tensor) -> Tensor:
        return cut(d_out, (0,) * Y.dim(), Y.shape)

    samples = [
        sample(X=f32(4, 5), Y=f32(2, 3), pad_value=0.5),
        sample(X=f32(2, 3, 4), Y=f32(2, 3, 1)),
        sample(X=f32(0, 3), Y=f32(0, 3)),
        sample(X=i64(4), Y=i64(3), pad_value=2.0),
    ]
    rejects = [
        reject(X=f32(2, 3), Y=f32(3, 3), says="Y must be no larger than X; at axis 0"),
        reject(X=f32(2, 3), Y=f32(3), says="the 2 dims of X"),
        reject(X=f32(3), Y=i64(3), says="one element type", error=TypeMismatchError),
    ]
