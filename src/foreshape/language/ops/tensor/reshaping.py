"""The same elements in other dims: reshape, transpose, flatten, squeeze, unsqueeze.

Each has a second result ``XShape``, a tensor without elements of the dims ``[0, *dims of X]``. The gradient reads the dims of X from it, so X need not be kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import ANY_OR_COMPLEX, INDEX, LOD_TENSOR, MAX_RANK, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.computations import Reshape, Transposition
from foreshape.language.operator.require import axis_of, fail, require, require_at_most, require_divides, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import turned
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.known_values import axes_of, axis_of_any, carry, known_sizes, permuted, sizes_at_run


def _input_spec(self: Any, XShape: Spec, d_out: Spec) -> Spec:
    """Return the dims of X from XShape; not known if those of X are not."""
    if XShape.dims is None:
        return Spec(LOD_TENSOR, d_out.dtype, None)
    dims = XShape.known_dims
    require(len(dims) > 0 and dims[0] == 0, "XShape must have the dims [0, *dims of X]", XShape=None)
    require_equal(d_out.elements, product(dims[1:]), "Out@GRAD must have as many elements as X", **{"Out@GRAD": None, "XShape": None})
    return Spec(LOD_TENSOR, d_out.dtype, dims[1:], XShape.lod)


def _remembered(X: Spec) -> Spec:
    """Return the spec of XShape: the dims of X, and the sequences of its rows, without data."""
    return Spec(LOD_TENSOR, X.dtype, None if X.dims is None else (0, *X.dims), X.lod)


def _gradient_workspace(self: Any, XShape: Spec, d_out: Spec, *, strided: frozenset[str]) -> Size:
    return turned(strided, Out_GRAD=d_out)


class Reshaping(Operator):
    """The base of operators with every element kept at its place in row-major order."""

    abstract = True
    linear = ("X",)
    X = operand(ANY_OR_COMPLEX, doc="any shape")
    Out = result(view_of="X", layout="reshaped", doc="the same elements")
    XShape = result(doc="[0, *dims of X], no elements")

    def _results(self, X: Spec, dims: Sequence[Size]) -> tuple[Spec, Spec]:
        return X.with_dims(dims).with_value(X.value), _remembered(X)

    def _with_shape(self, out: Tensor, X: Tensor, requested: tuple[bool, ...]) -> Any:
        return out, X.new_empty((0, *X.shape)) if requested[1] else None

    @gradient(
        "XShape", "Out@GRAD", gives="X@GRAD", infer=_input_spec, view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"}, workspace=_gradient_workspace
    )
    def backward(self, XShape: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(XShape.shape[1:])


class Ones(Reshaping):
    """The base of operators that only drop or put in dims of 1, for any strides."""

    abstract = True
    Out = result(view_of="X", doc="the same elements")

    @gradient("XShape", "Out@GRAD", gives="X@GRAD", infer=_input_spec, view_of={"X@GRAD": "Out@GRAD"})
    def backward(self, XShape: Tensor, d_out: Tensor) -> Tensor:
        return d_out.reshape(XShape.shape[1:])


class Reshape2(Reshaping):
    """Out = the elements of X in row-major order, in the dims ``shape``.

    In ``shape`` 0 copies the dim of X at the same place and one -1 takes the rest. ShapeTensor, a list of one-number tensors, and Shape, a tensor, replace it,
    in this order. Of an X whose number of dims a branch decides the run alone knows whether it fits, and there is no dim to copy.
    """

    type = "reshape2"
    layer_function = "reshape"
    X = operand(ANY_OR_COMPLEX, unknown_dims=True, doc="any shape")
    Shape = operand(INDEX, optional=True, doc="the shape, as a tensor")
    ShapeTensor = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    shape = attribute(AttrType.INTS, [])

    def computes(self) -> Reshape:
        return Reshape()

    def infer_shape(self, X: Spec, Shape: Spec | None, ShapeTensor: tuple[Spec, ...]) -> Any:
        shape = known_sizes(self.shape, Shape, ShapeTensor, "Shape", "ShapeTensor")
        return self._results(X, _stated(shape) if X.dims is None else reshaped(X.known_dims, shape))

    def workspace(self, X: Spec, Shape: Spec | None, ShapeTensor: tuple[Spec, ...], *, strided: frozenset[str]) -> Size:
        return turned(strided, X=X)

    def kernel(self, X: Tensor, Shape: Tensor | None, ShapeTensor: list[Tensor], *, requested: tuple[bool, ...]) -> Any:
        shape = self.shape if Shape is None and not ShapeTensor else sizes_at_run(self.shape, Shape, ShapeTensor)
        return self._with_shape(in_shape(X, shape), X, requested)

    samples = [
        sample(X=f32(2, 3, 4), shape=[6, 4]),
        sample(X=f32(2, 3, 4), shape=[0, -1]),
        sample(X=f32(0, 3, 4), shape=[0, -1]),
        sample(X=f32(0, 3, 4), shape=[-1, 6, 2]),
        sample(X=f32(2, 3, 4), shape=[0, 0, 2, 2]),
        sample(X=f32(1), shape=[]),
        sample(X=f32(2, 6), shape=[1], Shape=i64(3, data=[3, 2, 2])),
        sample(X=f32(2, 6), shape=[1], ShapeTensor=[i32(1, data=[4]), i32(1, data=[-1])]),
        sample(X=i64(2, 3, data=[1, 2, 3, 4, 5, 6]), shape=[3, 2]),
    ]
    rejects = [
        reject(X=f32(2, 3), shape=[4, 2], says="X has 6 elements"),
        reject(X=f32(2, 3), shape=[-1, 4], says="4 must divide"),
        reject(X=f32(2, 3), shape=[-1, -1], says="at most one -1"),
        reject(X=f32(2, 3), shape=[2, 3, 0], says="X has no dim 2 to copy"),
        reject(X=f32(2, 3), shape=[-2, 3], says="at least -1"),
        reject(X=f32(2, 3), shape=[2**31 - 1, 2**31 - 1, 2**31 - 1], says="64-bit"),
        reject(X=f32(2, 3), shape=[1] * 65, says="at most 64 dims"),
    ]


def _stated(shape: Sequence[Size | None]) -> tuple[Size, ...]:
    """Return the dims of ``shape`` for a tensor of which nothing is known: -1 and None are known at run time only."""
    require(len(shape) <= MAX_RANK, f"a tensor has at most {MAX_RANK} dims; shape has {len(shape)}", X=None)
    require(0 not in shape, "nothing is known of X, whose dim a 0 in shape would copy: state it", X=None)
    return tuple(unknown_size(str(axis)) if s is None or (isinstance(s, int) and s < 0) else s for axis, s in enumerate(shape))


def reshaped(dims: Sequence[Size], shape: Sequence[Size | None]) -> tuple[Size, ...]:
    """Return the dims of ``shape`` for a tensor with ``dims``: 0 copies, one -1 takes the rest, None is known at run time only.

    Copied dims stand on both sides and cancel, so the rest is right for a batch of zero examples too.
    """
    require(len(shape) <= MAX_RANK, f"a tensor has at most {MAX_RANK} dims; shape has {len(shape)}", X=None)
    left: list[Size] = list(dims)
    sizes: list[Size | None] = list(shape)
    if sizes.count(None) == 1 and not any(isinstance(s, int) and s == -1 for s in sizes):
        sizes[sizes.index(None)] = -1  # a single unknown size can only be the rest
    out: list[Size] = []
    open_axis, fixed = -1, 1
    for axis, s in enumerate(sizes):
        size: Size = unknown_size(str(axis)) if s is None else s
        if isinstance(size, int) and size <= 0:
            if size == 0:
                if axis >= len(dims):
                    fail(f"X has no dim {axis} to copy: shape has 0 there", X=None)
                out.append(dims[axis])
                left[axis] = 1
                continue
            require(size == -1, f"each size of shape must be at least -1; seen {size}", X=None)
            require(open_axis < 0, "shape may have at most one -1", X=None)
            open_axis = axis
            size = 1
        out.append(size)
        fixed = product((fixed, size))
    total = product(left)
    if open_axis >= 0:
        out[open_axis] = require_divides(fixed, total, f"{fixed} must divide the number of elements of X, {total}", X=None)
    else:
        besides = "" if 0 not in sizes else " besides the dims that are copied"
        require_equal(total, fixed, f"X has {total} elements{besides}, and shape has {fixed}", X=None)
    return tuple(out)


def in_shape(x: Tensor, shape: Sequence[int]) -> Tensor:
    """Return ``x`` in the dims ``shape``. Of no elements a 0 whose copy would make some is a size itself, known to be so while describing."""
    if 0 not in shape:
        return x.reshape(shape)
    copied = _copied(x.shape, shape) if len(shape) <= x.dim() or 0 not in shape[x.dim() :] else None
    return x.reshape(copied if copied is not None and (x.numel() or 0 in copied) else shape)


def _copied(dims: Sequence[int], shape: Sequence[int]) -> list[int]:
    """Return ``shape`` with every 0 and -1 replaced by its number."""
    left, fixed = 1, 1
    for axis, size in enumerate(dims):
        left *= size if axis >= len(shape) or shape[axis] != 0 else 1
    for size in shape:
        fixed *= size if size > 0 else 1
    return [dims[axis] if s == 0 else s if s > 0 else left // fixed for axis, s in enumerate(shape)]


class FlattenContiguousRange(Reshaping):
    """Out = X with the dims ``start_axis`` to ``stop_axis`` (included) made one. A tensor without dims becomes one of dims [1]."""

    type = "flatten_contiguous_range"
    layer_function = "flatten"
    computes = Reshape2.computes
    start_axis = attribute(AttrType.INT, 1)
    stop_axis = attribute(AttrType.INT, 1)

    def _range(self, rank: int) -> tuple[int, int]:
        start, stop = axis_of_any(self.start_axis, rank, "start_axis", X=None), axis_of_any(self.stop_axis, rank, "stop_axis", X=None)
        require(start <= stop, f"start_axis must be at most stop_axis; seen {self.start_axis} and {self.stop_axis} of {rank} dims", X=None)
        return start, stop

    def infer_shape(self, X: Spec) -> Any:
        start, stop = self._range(X.rank)
        dims = X.known_dims
        return self._results(X, (*dims[:start], product(dims[start : stop + 1]), *dims[stop + 1 :]))

    def kernel(self, X: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return self._with_shape(X.flatten(self.start_axis, self.stop_axis), X, requested)

    samples = [
        sample(X=f32(2, 3, 4, 5), start_axis=1, stop_axis=2),
        sample(X=f32(2, 3, 4), start_axis=-2, stop_axis=-1),
        sample(X=f32(0, 3, 4), start_axis=0, stop_axis=-1),
        sample(X=f32(0, 3, 4), start_axis=1, stop_axis=2),
        sample(X=f32(), start_axis=0, stop_axis=-1),
        sample(X=f32(2, 3), start_axis=1, stop_axis=1),
    ]
    rejects = [reject(X=f32(2, 3), start_axis=1, stop_axis=0, says="start_axis must be at most stop_axis")]


class Flatten2(Reshaping):
    """Out = X as a matrix: the dims before ``axis`` are its rows, the others its columns."""

    type = "flatten2"
    computes = Reshape2.computes
    axis = attribute(AttrType.INT, 1)

    def infer_shape(self, X: Spec) -> Any:
        return self._results(X, flattened(X.known_dims, self.axis))

    def kernel(self, X: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return self._with_shape(as_matrix(X, self.axis), X, requested)

    samples = [sample(X=f32(2, 3, 4)), sample(X=f32(2, 3, 4), axis=0), sample(X=f32(0, 3, 4), axis=2), sample(X=f32(2, 3, 4), axis=3)]


def flattened(dims: Sequence[Size], axis: int) -> tuple[Size, Size]:
    """Return the dims of a matrix with the dims before ``axis`` as rows, and the others as columns."""
    axis = axis_of(axis, len(dims) + 1, X=None)
    return product(dims[:axis]), product(dims[axis:])


def as_matrix(x: Tensor, axis: int) -> Tensor:
    """Return ``x`` in the dims of `flattened`."""
    axis = axis if axis >= 0 else axis + x.dim() + 1
    return x.reshape(x.shape[:axis].numel(), x.shape[axis:].numel())


class Squeeze2(Ones):
    """Out = X without the dims of 1 at ``axes``; without all dims of 1 if ``axes`` is empty. Other dims at ``axes`` stay."""

    type = "squeeze2"
    layer_function = "squeeze"
    computes = Reshape2.computes
    axes = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec) -> Any:
        return self._results(X, squeezed(X.known_dims, self.axes))

    def kernel(self, X: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return self._with_shape(X.squeeze(self.axes) if self.axes else X.squeeze(), X, requested)

    samples = [
        sample(X=f32(2, 1, 3, 1), axes=[1]),
        sample(X=f32(2, 1, 3, 1), axes=[-1, 1]),
        sample(X=f32(2, 1, 3, 1)),
        sample(X=f32(0, 1), axes=[1]),
        sample(X=f32(1), axes=[0]),
        sample(X=i64(1, data=[4]), axes=[0]),
    ]


def squeezed(dims: Sequence[Size], axes: Sequence[int]) -> list[Size]:
    """Return ``dims`` without the ones at ``axes``, or without all ones if no axes are given."""
    chosen = axes_of(axes, len(dims), "axes", X=None)
    out: list[Size] = []
    for axis, d in enumerate(dims):
        if isinstance(d, int):
            drop = d == 1 and (not axes or axis in chosen)
        elif axis in chosen:
            require_equal(d, 1, f"the dim at axis {axis}, which is squeezed, must be 1", X=axis)
            drop = True
        else:
            if not axes:
                require_at_most(2, d, f"squeeze without axes drops what is 1; the dim at axis {axis} must be more, or axes be given", X=axis)
            drop = False
        if not drop:
            out.append(d)
    return out


class Unsqueeze2(Ones):
    """Out = X with a dim of 1 put in at each of ``axes``, one after the other; an axis may count from the back of the dims so far."""

    type = "unsqueeze2"
    layer_function = "unsqueeze"
    computes = Reshape2.computes
    AxesTensor = operand(INDEX, optional=True, doc="axes, as a tensor")
    AxesTensorList = operand(INDEX, many=True, optional=True, doc="axes, as tensors of one number each")
    axes = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, AxesTensor: Spec | None, AxesTensorList: tuple[Spec, ...]) -> Any:
        axes = known_sizes(self.axes, AxesTensor, AxesTensorList, "AxesTensor", "AxesTensorList")
        dims, is_known = unsqueezed(X.known_dims, axes)
        return self._results(X if is_known else X.dense(), dims)

    def kernel(self, X: Tensor, AxesTensor: Tensor | None, AxesTensorList: list[Tensor], *, requested: tuple[bool, ...]) -> Any:
        return self._with_shape(with_ones(X, sizes_at_run(self.axes, AxesTensor, AxesTensorList)), X, requested)

    samples = [
        sample(X=f32(2, 3), axes=[1]),
        sample(X=f32(2, 3), axes=[0, -1]),
        sample(X=f32(2, 3), axes=[2, 3]),
        sample(X=f32(), axes=[0]),
        sample(X=f32(0, 3), AxesTensor=i64(2, data=[1, 0])),
        sample(X=f32(2, 3), AxesTensorList=[i32(1, data=[-2]), i32(1, data=[0])]),
    ]
    rejects = [reject(X=f32(2), axes=[0] * 64, says="at most 64 dims")]


def unsqueezed(dims: Sequence[Size], axes: Sequence[Size | None]) -> tuple[list[Size], bool]:
    """Return ``dims`` with a 1 put in at each of ``axes``, one after the other; and whether the places of the new ones are known."""
    rank = len(dims) + len(axes)
    require(rank <= MAX_RANK, f"a tensor has at most {MAX_RANK} dims; these would be {rank}", X=None)
    out = list(dims)
    for axis in axes:
        if not isinstance(axis, int):
            return [unknown_size(str(number)) for number in range(rank)], False
        out.insert(axis_of(axis, len(out) + 1, "axes", X=None), 1)
    return out, True


def with_ones(x: Tensor, axes: Sequence[int]) -> Tensor:
    """Return ``x`` in the dims of `unsqueezed`."""
    for axis in axes:
        x = x.unsqueeze(axis)
    return x


def order_of(axes: Sequence[int], rank: int) -> tuple[int, ...]:
    """Return a permutation of the axes of a tensor of ``rank`` dims, each as 0..rank-1."""
    order = axes_of(axes, rank, "axis", X=None) if rank else tuple(axes)
    require(len(order) == rank, f"axis must order all {rank} axes of X; it has {len(order)}", X=None)
    return order


def transposed(X: Spec, axes: Sequence[int]) -> Spec:
    """Return X with its axes in this order."""
    order = order_of(axes, X.rank)
    dims = tuple(X.known_dims[a] for a in order)
    out = X.with_dims(dims) if not order or order[0] == 0 else X.dense(dims)
    return out if X.value is None else carry(out, permuted(X, order))


def inverse(axes: Sequence[int], rank: int) -> list[int]:
    """Return the inverse of an order of axes."""
    return sorted(range(rank), key=lambda place: axes[place] % rank)


class Transpose2(Operator):
    """Out = X with its axes in another order: axis ``k`` of Out is axis ``axis[k]`` of X."""

    type = "transpose2"
    layer_function = "transpose"
    linear = ("X",)
    X = operand(ANY_OR_COMPLEX, doc="any shape")
    Out = result(view_of="X", layout="strided", doc="the dims of X in the order of axis")
    XShape = result(doc="[0, *dims of X], no elements")
    axis = attribute(AttrType.INTS, doc="a permutation of the axes")

    def infer_shape(self, X: Spec) -> tuple[Spec, Spec]:
        return transposed(X, self.axis), _remembered(X)

    def computes(self) -> Transposition:
        return Transposition(self.axis)

    def kernel(self, X: Tensor, *, requested: tuple[bool, ...]) -> Any:
        return X.permute(self.axis), X.new_empty((0, *X.shape)) if requested[1] else None

    def _input_spec(self, XShape: Spec, d_out: Spec) -> Spec:
        x = _input_spec(self, XShape, d_out)
        check_made(Out_GRAD=(d_out, transposed(x, self.axis)))
        return x

    @gradient("XShape", "Out@GRAD", gives="X@GRAD", infer=_input_spec, view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "strided"})
    def backward(self, XShape: Tensor, d_out: Tensor) -> Tensor:
        return d_out.permute(inverse(self.axis, d_out.dim()))

    samples = [sample(X=f32(2, 3, 5), axis=[2, 0, 1]), sample(X=f32(2, 3, 5, 4), axis=[0, -2, 1, -1]), sample(X=f32(0, 3, 5), axis=[1, 0, 2]),
               sample(X=f32(), axis=[]), sample(X=i64(3, data=[3, 4, 5]), axis=[0])]  # fmt: skip
    rejects = [
        reject(X=f32(2, 3, 5), axis=[0, 1], says="order all 3 axes"),
        reject(X=f32(), axis=[0], says="order all 0 axes"),
    ]
