"""Repetitions of a tensor, and rearrangements of its elements: expand, tile, flip, roll, triangles."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, bounds
from foreshape.core.spec import ANY, ANY_OR_COMPLEX, INDEX, LOD_TENSOR, MAX_RANK, MAX_VALUE_ELEMENTS, NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, computations, gradient, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import axis_of, fail, require, require_at_most, require_broadcast_to, unknown_size
from foreshape.language.operator.samples import f32, i32, i64, reject, sample
from foreshape.language.operator.temporaries import copies
from foreshape.language.operator.traits import WHOLE, ShardingRule, axis_names, rule_along
from foreshape.language.ops.math.complex_numbers import c64
from foreshape.language.ops.rules.broadcast import sum_to
from foreshape.language.ops.rules.known_values import axes_of, carry, chosen, known_sizes, sizes_at_run, stretched, whole_dims


def expanded(dims: Sequence[Size], shape: Sequence[Size | None]) -> list[Size]:
    """Return the dims of a tensor of ``dims`` repeated to ``shape``, last dims aligned: -1 keeps a dim, None is known at run time only."""
    new = len(shape) - len(dims)
    require(new >= 0, f"shape must have at least the {len(dims)} dims of X; it has {len(shape)}", X=None)
    require(len(shape) <= MAX_RANK, f"a tensor has at most {MAX_RANK} dims; shape has {len(shape)}", X=None)
    out: list[Size] = []
    for axis, s in enumerate(shape):
        size: Size = dims[axis - new] if axis >= new else 1
        if s is None:
            out.append(size if isinstance(size, int) and size != 1 else unknown_size(str(axis)))
        elif isinstance(s, int) and s < 0:
            require(s == -1, f"each size of shape must be at least -1; seen {s}", X=None)
            require(axis >= new, f"shape has -1 at {axis}, where X has no dim to keep", X=None)
            out.append(size)
        elif isinstance(size, int) and size == 1:
            out.append(s)
        else:
            out.append(require_broadcast_to(size, s, f"shape asks for {s} where X has {size}, and only a dim of 1 is repeated", X=axis - new))
    return out


def _repeated(X: Spec, dims: Sequence[Size]) -> Spec:
    """Return X in these dims; its rows stay rows if no axis comes before them, and they are not repeated."""
    return (X if len(dims) == X.rank else X.dense()).with_dims(dims)


def _spread(X: Spec, dims: Sequence[Size]) -> Spec:
    """Return X expanded to these dims, with its known values."""
    out = _repeated(X, dims)
    return out if X.value is None else carry(out, stretched(X, out.known_dims))


def expansion_rule(X: Spec, shape: Sequence[Size | None]) -> ShardingRule:
    """Return the rule of X repeated along its dims of 1, and along new ones before, to ``shape``. A part would be repeated to a number asked for."""
    new = len(shape) - X.rank
    names = axis_names(X.rank, [axis for axis, d in enumerate(X.known_dims) if d == 1 or (isinstance(n := shape[new + axis], int) and n >= 0)])
    return ShardingRule({"X": names}, {"Out": (*(WHOLE,) * new, *names)})


def tiling_rule(X: Spec, times: Sequence[Size | None]) -> ShardingRule:
    """Return the rule of X repeated along each axis, last axes aligned: an axis repeated once stands for itself."""
    new = len(times) - X.rank
    names = axis_names(X.rank, [axis for axis in range(X.rank) if axis + new >= 0 and times[axis + new] != 1])
    return ShardingRule({"X": names}, {"Out": (*(WHOLE,) * new, *names)})


class ExpandV2(Operator):
    """Out = X repeated along its dims of 1 to the dims ``shape``, last dims aligned; -1 keeps a dim of X."""

    type = "expand_v2"
    layer_function = "expand"
    sets_dims = ("Shape", "expand_shapes_tensor")
    gradient_reads_dims = ("X",)
    X = operand(ANY_OR_COMPLEX, doc="any shape")
    Shape = operand(INDEX, optional=True, doc="the shape, as a tensor")
    expand_shapes_tensor = operand(INDEX, many=True, optional=True, doc="the shape, as tensors of one number each")
    Out = result(view_of="X", layout="strided", doc="[*shape]")
    shape = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, Shape: Spec | None, expand_shapes_tensor: tuple[Spec, ...]) -> Spec:
        return _spread(X, expanded(X.known_dims, known_sizes(self.shape, Shape, expand_shapes_tensor, "Shape", "expand_shapes_tensor")))

    def sharding_rule(self, X: Spec, Shape: Spec | None, expand_shapes_tensor: tuple[Spec, ...]) -> ShardingRule | None:
        return expansion_rule(X, known_sizes(self.shape, Shape, expand_shapes_tensor, "Shape", "expand_shapes_tensor"))

    def computes(self) -> computations.Expansion:
        return computations.Expansion()

    def kernel(self, X: Tensor, Shape: Tensor | None, expand_shapes_tensor: list[Tensor]) -> Tensor:
        return X.expand(*sizes_at_run(self.shape, Shape, expand_shapes_tensor)) if X.dim() or self.shape or Shape is not None else X

    @gradient("X", "Shape", "expand_shapes_tensor", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"})
    def backward(self, X: Tensor, Shape: Tensor | None, expand_shapes_tensor: list[Tensor], d_out: Tensor) -> Tensor:
        return sum_to(d_out, X, d_out, -1)

    samples = [
        sample(X=f32(3, 1), shape=[3, 4]),
        sample(X=f32(3, 1), shape=[2, -1, 4]),
        sample(X=f32(0, 1), shape=[-1, 4]),
        sample(X=f32(), shape=[2, 3]),
        sample(X=f32(3, 1), Shape=i64(2, data=[3, 5])),
        sample(X=c64(3, 1), shape=[3, 4]),
        sample(X=f32(1, 3), expand_shapes_tensor=[i32(1, data=[2]), i32(1, data=[-1])]),
    ]
    rejects = [
        reject(X=f32(3, 2), shape=[3, 4], says="only a dim of 1 is repeated"),
        reject(X=f32(3, 2), shape=[2], says="at least the 2 dims"),
        reject(X=f32(3), shape=[-1, 3], says="no dim to keep"),
        reject(X=f32(3), shape=[-2], says="at least -1"),
        reject(X=f32(1), shape=[2**31 - 1] * 4, says="64-bit"),
    ]


class ExpandAsV2(Operator):
    """Out = X repeated along its dims of 1 to the dims of Y, or to ``target_shape`` without Y."""

    type = "expand_as_v2"
    layer_function = "expand_as"
    reads_dims = ("Y",)
    gradient_reads_dims = ("X",)
    X = operand(ANY_OR_COMPLEX, doc="any shape")
    Y = operand(ANY_OR_COMPLEX, optional=True, doc="the tensor of the wanted dims")
    Out = result(view_of="X", layout="strided", doc="the dims of Y")
    target_shape = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, Y: Spec | None) -> Spec:
        out = _spread(X, expanded(X.known_dims, self.target_shape if Y is None else Y.known_dims))
        return out if out.lod is not None or Y is None or Y.lod is None else Spec(LOD_TENSOR, X.dtype, out.dims, Y.lod)

    def sharding_rule(self, X: Spec, Y: Spec | None) -> ShardingRule | None:
        if Y is None:
            return expansion_rule(X, self.target_shape)
        names, new = axis_names(Y.rank), Y.rank - X.rank
        return ShardingRule({"X": tuple([WHOLE if d == 1 else names[new + axis] for axis, d in enumerate(X.known_dims)]), "Y": names}, {"Out": names})

    def computes(self) -> computations.Expansion:
        return computations.Expansion()

    def kernel(self, X: Tensor, Y: Tensor | None) -> Tensor:
        return X.expand(self.target_shape if Y is None else Y.shape)

    @gradient("X", "Y", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"})
    def backward(self, X: Tensor, Y: Tensor | None, d_out: Tensor) -> Tensor:
        return sum_to(d_out, X, d_out, -1)

    samples = [
        sample(X=f32(3, 1), Y=f32(2, 3, 5)),
        sample(X=c64(3, 1), Y=c64(2, 3, 5)),
        sample(X=f32(3, 1), target_shape=[3, 4]),
        sample(X=f32(1, 4), Y=i64(0, 4)),
    ]
    rejects = [reject(X=f32(3, 2), Y=f32(3, 4), says="only a dim of 1 is repeated"), reject(X=f32(3, 2), Y=f32(2), says="at least the 2 dims")]


def tiled(X: Spec, times: Sequence[Size | None], name: str) -> Spec:
    """Return X repeated along each axis, last axes aligned; None is known at run time only. ``name``: the attribute's, for messages."""
    dims = X.known_dims
    rank = max(len(dims), len(times))
    require(rank <= MAX_RANK, f"a tensor has at most {MAX_RANK} dims; {name} has {rank}", X=None)
    padded = (1,) * (rank - len(dims)) + dims
    counts = (1,) * (rank - len(times)) + tuple(times)
    out: list[Size] = []
    for axis, (d, n) in enumerate(zip(padded, counts, strict=True)):
        low = None if n is None else bounds(n)[0]
        if n is not None:
            require_at_most(1, n, f"{name} must be at least 1; seen {n}", X=None)
        out.append(unknown_size(str(axis)) if n is None or low is None or low < 0 else d * n)
    repeated = _repeated(X, out)
    if X.value is None or not whole_dims(padded) or not whole_dims(counts):
        return repeated
    again = {axis: [*range(d)] * min(n, MAX_VALUE_ELEMENTS + 1) for axis, (d, n) in enumerate(zip(padded, counts, strict=True))}
    return carry(repeated, chosen(X.dense(padded).with_value(X.value), again))


def not_tiled(X: Tensor, times: Sequence[int], d_out: Tensor) -> Tensor:
    """Return the gradient of X repeated ``times``: the sum over its copies."""
    dims = (1,) * (d_out.dim() - X.dim()) + tuple(X.shape)
    times = (1,) * (d_out.dim() - len(times)) + tuple(times)
    repeated = [axis for axis, n in enumerate(times) if n != 1]
    if not repeated:
        return d_out.reshape(X.shape)
    apart: list[int] = []
    copy_axes: list[int] = []
    for n, d in zip(times, dims, strict=True):
        if n != 1:
            copy_axes.append(len(apart))
            apart.append(n)
        apart.append(d)
    return d_out.reshape(apart).sum(copy_axes).reshape(X.shape)


class Tile(Operator):
    """Out = X repeated ``repeat_times`` along each axis, last dims aligned."""

    type = "tile"
    sets_dims = ("RepeatTimes", "repeat_times_tensor")
    gradient_reads_dims = ("X",)
    X = operand(doc="any shape")
    RepeatTimes = operand(INDEX, optional=True, doc="the times, as a tensor")
    repeat_times_tensor = operand(INDEX, many=True, optional=True, doc="the times, as tensors of one number each")
    Out = result(doc="each dim of X times its number")
    repeat_times = attribute(AttrType.INTS, [])

    def infer_shape(self, X: Spec, RepeatTimes: Spec | None, repeat_times_tensor: tuple[Spec, ...]) -> Spec:
        return tiled(X, known_sizes(self.repeat_times, RepeatTimes, repeat_times_tensor, "RepeatTimes", "repeat_times_tensor"), "repeat_times")

    def sharding_rule(self, X: Spec, RepeatTimes: Spec | None, repeat_times_tensor: tuple[Spec, ...]) -> ShardingRule | None:
        return tiling_rule(X, known_sizes(self.repeat_times, RepeatTimes, repeat_times_tensor, "RepeatTimes", "repeat_times_tensor"))

    def computes(self) -> computations.Expansion:
        return computations.Expansion()

    def kernel(self, X: Tensor, RepeatTimes: Tensor | None, repeat_times_tensor: list[Tensor]) -> Tensor:
        return torch.tile(X, tuple(sizes_at_run(self.repeat_times, RepeatTimes, repeat_times_tensor)))

    @gradient("X", "RepeatTimes", "repeat_times_tensor", "Out@GRAD", gives="X@GRAD", view_of={"X@GRAD": "Out@GRAD"}, layout={"X@GRAD": "reshaped"})
    def backward(self, X: Tensor, RepeatTimes: Tensor | None, repeat_times_tensor: list[Tensor], d_out: Tensor) -> Tensor:
        return not_tiled(X, sizes_at_run(self.repeat_times, RepeatTimes, repeat_times_tensor), d_out)

    samples = [
        sample(X=f32(2, 3), repeat_times=[2, 1]),
        sample(X=f32(2, 3), repeat_times=[4, 1, 2]),
        sample(X=f32(2, 3), repeat_times=[2]),
        sample(X=f32(0, 3), repeat_times=[2, 2]),
        sample(X=f32(), repeat_times=[3]),
        sample(X=f32(2, 3), RepeatTimes=i64(2, data=[1, 3])),
        sample(X=f32(2, 3), repeat_times_tensor=[i32(1, data=[2]), i32(1, data=[2])]),
    ]
    rejects = [reject(X=f32(2, 3), repeat_times=[0, 1], says="at least 1"), reject(X=f32(2, 3), repeat_times=[2**31 - 1] * 3, says="64-bit")]


class Flip(Operator):
    """Out = X with the order along each of ``axis`` reversed."""

    type = "flip"
    works_along = "axis"
    X = operand(ANY_OR_COMPLEX, doc="any shape")
    Out = result(doc="as X")
    axis = attribute(AttrType.INTS, doc="the reversed axes", older="dims")

    def infer_shape(self, X: Spec) -> Spec:
        axes = axes_of(self.axis, X.rank, X=None)
        out, dims = X.dense() if 0 in axes else X.like(), X.dims
        if X.value is None or not dims or not whole_dims(dims):
            return out
        return carry(out, chosen(X, {a: range(dims[a])[::-1] for a in axes}))

    def kernel(self, X: Tensor) -> Tensor:
        return torch.flip(X, self.axis)

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add(self.type, {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, {"axis": self.axis})

    samples = [
        sample(X=f32(2, 3), axis=[1]),
        sample(X=f32(2, 3, 4), axis=[0, -1]),
        sample(X=f32(0, 3), axis=[0]),
        sample(X=i64(4), axis=[0]),
        sample(X=c64(2, 3), axis=[1]),
    ]


class Reverse(Flip):
    """Out = X with the order along each of ``axis`` reversed: flip, as files of PaddlePaddle 1 have it."""

    type = "reverse"
    samples = [sample(X=f32(2, 3, 4), axis=[0, -1]), sample(X=f32(0, 3), axis=[0]), sample(X=i64(4), axis=[0])]


class Roll(Operator):
    """Out = X with its elements moved on by ``shifts`` along ``axis``; elements past the end come in at the start.

    Without ``axis``, X is moved as one row of elements and keeps its dims.
    """

    type = "roll"
    gradient_reads_dims = ("X",)
    X = operand(ANY_OR_COMPLEX, doc="any shape")
    ShiftsTensor = operand(INDEX, optional=True, doc="shifts, as a tensor")
    Out = result(doc="as X")
    shifts = attribute(AttrType.LONGS, [])
    axis = attribute(AttrType.LONGS, [], older="dims")

    def infer_shape(self, X: Spec, ShiftsTensor: Spec | None) -> Spec:
        count = len(known_sizes(self.shifts, ShiftsTensor, (), "ShiftsTensor"))
        for a in self.axis:
            axis_of(a, X.rank, X=None)
        require(count == (len(self.axis) or 1), f"shifts must have {len(self.axis) or 1} numbers, one for each axis, not {count}", X=None)
        return X.dense() if not self.axis or any(a in (0, -X.rank) for a in self.axis) else X.like()

    def sharding_rule(self, X: Spec, ShiftsTensor: Spec | None) -> ShardingRule | None:
        return rule_along({"X": X}, ["Out"], self.axis or range(X.rank))

    def kernel(self, X: Tensor, ShiftsTensor: Tensor | None) -> Tensor:
        return torch.roll(X, tuple(sizes_at_run(self.shifts, ShiftsTensor)), self.axis)

    def workspace(self, X: Spec, ShiftsTensor: Spec | None, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X) + (X.nbytes if len(self.axis) > 1 else 0)

    def _gradient_workspace(self, X: Spec, ShiftsTensor: Spec | None, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out_GRAD=d_out) + (X.nbytes if len(self.axis) > 1 else 0)

    @gradient("X", "ShiftsTensor", "Out@GRAD", gives="X@GRAD", workspace=_gradient_workspace)
    def backward(self, X: Tensor, ShiftsTensor: Tensor | None, d_out: Tensor) -> Tensor:
        return torch.roll(d_out, [-s for s in sizes_at_run(self.shifts, ShiftsTensor)], self.axis)

    samples = [
        sample(X=f32(2, 3), shifts=[1]),
        sample(X=f32(2, 5), shifts=[2, -1], axis=[1, 0]),
        sample(X=c64(2, 5), shifts=[2], axis=[1]),
        sample(X=f32(0, 3), shifts=[1], axis=[1]),
        sample(X=f32(4, 3), ShiftsTensor=i64(1, data=[-2]), axis=[-2]),
    ]


class TrilTriu(Operator):
    """Out = X with zeros above (``lower``) or below the diagonal of its last two dims; ``diagonal`` counts from the main one, upwards."""

    type = "tril_triu"
    X = operand((*NUMERIC, *(t for t in ANY if t.name == "bool")), doc="[..., rows, columns]")
    Out = result(doc="as X")
    diagonal = attribute(AttrType.INT, 0)
    lower = attribute(AttrType.BOOLEAN, doc="keep the lower triangle; otherwise the upper one")

    def infer_shape(self, X: Spec) -> Spec:
        if X.rank < 2:
            fail(f"X must have at least 2 dims, not {X.rank}", X=None)
        return X.like()

    def computes(self) -> computations.Triangle:
        return computations.Triangle(self.lower, self.diagonal)

    def _part(self, X: Tensor) -> Tensor:
        return torch.tril(X, self.diagonal) if self.lower else torch.triu(X, self.diagonal)

    def kernel(self, X: Tensor) -> Tensor:
        return self._part(X)

    def workspace(self, X: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, X=X)

    def _gradient_workspace(self, d_out: Spec, *, strided: frozenset[str]) -> Size:
        return copies(strided, Out_GRAD=d_out)

    @gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"}, workspace=_gradient_workspace)
    def backward(self, d_out: Tensor) -> Any:
        return self._part(d_out)

    samples = [
        sample(X=f32(3, 4), lower=True),
        sample(X=f32(2, 4, 3), lower=False, diagonal=-1),
        sample(X=f32(0, 3, 4), lower=True, diagonal=2),
        sample(X=i64(3, 2), lower=False),
    ]
