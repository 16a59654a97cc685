"""Import of operators to move, cut and join elements."""

from __future__ import annotations

import operator
from typing import Any

from foreshape import layer
from foreshape.dims import less_equal
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import OpenSize, as_dim, as_variable, compute, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.program import Variable
from foreshape.program.current import current_block
from foreshape.spec import BOOL, COMPLEX, FP64, INT32, INT64

_END = 2**31 - 1


@aten("view", "reshape", "_unsafe_view")
def _view(t: TorchCall, x: Variable, size: Any) -> Any:
    if is_list(size):
        return t.reshape(x, size)
    return x if x.dtype is t.dtype else t.op("view_dtype", {"dtype": t.dtype.code}, input=x)


@aten("flatten")
def _flatten(t: TorchCall, x: Variable, start_dim: int = 0, end_dim: int = -1) -> Any:
    return layer.flatten(x, start_dim, end_dim) if t.rank(x) else layer.reshape(x, [1])


@aten("unflatten")
def _unflatten(t: TorchCall, x: Variable, dim: int, sizes: Any) -> Any:
    at = t.axis(x, dim)
    before, after = [size_of(x, a) for a in range(at)], [size_of(x, a) for a in range(at + 1, t.rank(x))]
    return t.reshape(x, [*before, *sizes, *after])


@aten("transpose", "swapaxes")
def _transpose(t: TorchCall, x: Variable, dim0: Any, dim1: int = 0) -> Any:
    if is_list(dim0):  # of prims
        return _permute(t, x, dim0)
    order = [*range(t.rank(x))]
    if not order:
        return x
    a, b = t.axis(x, dim0), t.axis(x, dim1)
    order[a], order[b] = order[b], order[a]
    return layer.transpose(x, order)


@aten("permute")
def _permute(t: TorchCall, x: Variable, dims: Any) -> Any:
    return layer.transpose(x, [t.axis(x, d) for d in dims]) if t.rank(x) else x


@aten("movedim")
def _movedim(t: TorchCall, x: Variable, source: Any, destination: Any) -> Any:
    sources = [t.axis(x, s) for s in (source if is_list(source) else [source])]
    places = [t.axis(x, d) for d in (destination if is_list(destination) else [destination])]
    left = [a for a in range(t.rank(x)) if a not in sources]
    order = [sources[places.index(at)] if at in places else left.pop(0) for at in range(t.rank(x))]
    return layer.transpose(x, order)


@aten("t", "numpy_T")
def _turned(t: TorchCall, x: Variable) -> Any:
    return layer.transpose(x, [*range(t.rank(x))][::-1]) if t.rank(x) > 1 else x


@aten("adjoint", "mT", "mH", "matrix_H")
def _turned_matrices(t: TorchCall, x: Variable) -> Any:
    turned = layer.transpose(x, [*range(t.rank(x) - 2), t.rank(x) - 1, t.rank(x) - 2]) if t.rank(x) > 1 else x
    return layer.conj(turned) if x.dtype in COMPLEX and t.name != "mT" else turned


@aten("unsqueeze")
def _unsqueeze(t: TorchCall, x: Variable, dim: int) -> Any:
    return layer.unsqueeze(x, [dim % (t.rank(x) + 1)])


@aten("squeeze")
def _squeeze(t: TorchCall, x: Variable, dim: Any = None) -> Any:
    axes = [*range(t.rank(x))] if dim is None else t.axes(x, dim) or []
    dims = x.spec.known_dims
    for axis in (a for a in axes if not isinstance(dims[a], int) and less_equal(2, dims[a]) is not True):
        attrs = {"left": "2", "relation": "<=", "right": f"x0.{axis}", "requirement": "squeeze leaves out an axis of 1, of an open size here"}
        current_block().append_op("size_demand", {"X": [x]}, {}, attrs)
    axes = [a for a in axes if dims[a] == 1]
    return layer.squeeze(x, axes) if axes else x


@aten("select")
def _select(t: TorchCall, x: Variable, dim: int, index: Any) -> Any:
    at = t.axis(x, dim)
    if isinstance(index, OpenSize):
        return layer.squeeze(layer.gather(x, index.variable, at), [at])
    if isinstance(index, Variable):
        return layer.squeeze(layer.gather(x, layer.reshape(index, [1]), at), [at])
    end = index + 1 if index != -1 else _END
    return t.op("slice", {"axes": [at], "starts": [index], "ends": [end], "decrease_axis": [at], "infer_flags": [1]}, Input=x)


@aten("slice")
def _slice(t: TorchCall, x: Variable, dim: int = 0, start: Any = None, end: Any = None, step: Any = 1) -> Any:
    at = t.axis(x, dim)
    start, end = (0 if start is None else start), (_END if end is None else end)
    if isinstance(end, int) and end > _END:
        end = _END
    size = x.spec.known_dims[at]
    if start == 0 and step == 1 and (end == _END or (as_dim(end) is size and not isinstance(size, int))):
        return x
    if step == 1:
        return layer.slice(x, [at], t.sizes([start]), t.sizes([end]))
    return layer.strided_slice(x, [at], t.sizes([start]), t.sizes([end]), t.sizes([step]))


@aten("narrow")
def _narrow(t: TorchCall, x: Variable, dim: int, start: Any, length: Any) -> Any:
    end = compute(operator.add, start, length) if isinstance(start, OpenSize) or isinstance(length, OpenSize) else start + length
    return layer.slice(x, [t.axis(x, dim)], t.sizes([start]), t.sizes([end]))


@aten("unbind")
def _unbind(t: TorchCall, x: Variable, dim: int = 0) -> Any:
    return list(layer.unstack(x, t.axis(x, dim)))


@aten("cat", "concat", "concatenate")
def _cat(t: TorchCall, xs: Any, dim: int = 0) -> Any:
    given = [t.cast(x, t.dtype) for x in xs if x.spec.known_dims != (0,)] or [xs[0]]
    return layer.concat(given, t.axis(given[0], dim)) if len(given) > 1 else given[0]


@aten("stack")
def _stack(t: TorchCall, xs: Any, dim: int = 0) -> Any:
    given = [t.cast(x, t.dtype) for x in xs]
    return layer.stack(given, dim % (t.rank(given[0]) + 1))


@aten("tensor_split")
def _split_at(t: TorchCall, x: Variable, places: Any, dim: int = 0) -> Any:
    at = t.axis(x, dim)
    if is_list(places):
        ends = [*places, _END]
        return [layer.slice(x, [at], t.sizes([0 if k == 0 else ends[k - 1]]), t.sizes([end])) for k, end in enumerate(ends)]
    size = x.spec.known_dims[at]
    if not isinstance(places, int) or not isinstance(size, int):
        raise Refused("a number of parts, or of elements, that is open")
    return list(layer.split(x, [(size + places - 1 - k) // places for k in range(places)], at)) if places > 1 else [x]


@aten("split", "split_with_sizes", "chunk")
def _split(t: TorchCall, x: Variable, sections: Any, dim: int = 0) -> Any:
    at, traced = t.axis(x, dim), t.node.meta["val"]
    size = x.spec.known_dims[at]
    count = len(traced)
    if is_list(sections):
        if all(isinstance(s, int) for s in sections):
            return list(layer.split(x, sections, at)) if count > 1 else [x]
        out: list[Any] = []
        start: Any = 0
        for length in sections:
            end = compute(operator.add, start, length) if isinstance(start, OpenSize) or isinstance(length, OpenSize) else start + length
            out.append(layer.slice(x, [at], t.sizes([start]), t.sizes([end])))
            start = end
        return out
    if count == 1:
        return [x]
    each = [one.shape[at] for one in traced]
    if isinstance(size, int):
        return list(layer.split(x, [int(n) for n in each], at))
    if t.name == "split" and isinstance(sections, int):
        return [layer.slice(x, [at], [k * sections], [(k + 1) * sections if k + 1 < count else _END]) for k in range(count)]
    return list(layer.split(x, count, at))


@aten("expand")
def _expand(t: TorchCall, x: Variable, size: Any, implicit: bool = False) -> Any:
    now = x.spec.known_dims
    lead = len(size) - len(now)
    wanted: list[Any] = []
    for at, one in enumerate(size):
        own = now[at - lead] if at >= lead else None
        known = as_dim(one)
        same = own is not None and (known == -1 or known is own or (isinstance(known, int) and known == own))
        wanted.append(-1 if same and at >= lead else one)
    return (
        layer.expand(x, t.sizes(wanted)) if any(w != -1 for w in wanted if not isinstance(w, OpenSize)) or any(isinstance(w, OpenSize) for w in wanted) else x
    )


@aten("expand_as", "broadcast_to_as")
def _expand_as(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.expand_as(x, y)


@aten("repeat", "tile")
def _repeat(t: TorchCall, x: Variable, repeats: Any) -> Any:
    return layer.tile(x, t.sizes(repeats))


@aten("repeat_interleave")
def _repeat_interleave(t: TorchCall, x: Variable, repeats: Any, dim: Any = None, **_: Any) -> Any:
    if isinstance(repeats, OpenSize):
        raise Refused("a number of repeats that is open")
    if isinstance(repeats, Variable) and repeats.spec.elements == 1:  # stands for each entry
        repeats = layer.expand_as(repeats, layer.range(0, as_variable(size_of(x, 0 if dim is None else t.axis(x, dim))), 1)) if dim is not None else repeats
    return layer.repeat_interleave(layer.reshape(x, [-1]) if dim is None else x, repeats, 0 if dim is None else t.axis(x, dim))


@aten("flip")
def _flip(t: TorchCall, x: Variable, dims: Any) -> Any:
    return layer.flip(x, [t.axis(x, d) for d in dims])


@aten("roll")
def _roll(t: TorchCall, x: Variable, shifts: Any, dims: Any = ()) -> Any:
    listed = shifts if is_list(shifts) else [shifts]
    axes = [t.axis(x, d) for d in (dims if is_list(dims) else [dims])]
    if all(isinstance(s, int) for s in listed):
        return layer.roll(x, listed, axes or None)
    for shift, axis in zip(listed, axes, strict=True):  # by a size: the places, moved back
        size = size_of(x, axis)
        moved = compute(operator.mod, compute(operator.sub, size, compute(operator.mod, shift, size)), size)
        count = as_variable(size)
        place = layer.remainder(layer.add(layer.range(0, count, 1, dtype=INT64), as_variable(moved)), count)
        x = layer.index_select(x, place, axis)
    return x


@aten("tril", "triu")
def _triangle(t: TorchCall, x: Variable, diagonal: int = 0) -> Any:
    function = layer.tril if t.name == "tril" else layer.triu
    return layer.cast(function(layer.cast(x, INT32), diagonal), BOOL) if t.dtype is BOOL else function(x, diagonal)


@aten("one_hot")
def _one_hot(t: TorchCall, x: Variable, num_classes: int = -1) -> Any:
    if num_classes < 0:
        raise Refused("a number of classes that is computed")
    return layer.one_hot(x, num_classes, INT64)


@aten("pixel_shuffle")
def _pixel_shuffle(t: TorchCall, x: Variable, factor: int) -> Any:
    return layer.pixel_shuffle(x, factor)


@aten("pixel_unshuffle")
def _pixel_unshuffle(t: TorchCall, x: Variable, factor: int) -> Any:
    return layer.pixel_unshuffle(x, factor)


@aten("channel_shuffle")
def _channel_shuffle(t: TorchCall, x: Variable, groups: int) -> Any:
    return layer.channel_shuffle(x, groups)


@aten("meshgrid")
def _meshgrid(t: TorchCall, xs: Any, indexing: str = "ij") -> Any:
    if indexing == "xy" and len(xs) > 1:
        made = list(layer.meshgrid(xs[1], xs[0], *xs[2:]))
        return [made[1], made[0], *made[2:]]
    return list(layer.meshgrid(*xs))


@aten("broadcast_tensors")
def _broadcast(t: TorchCall, xs: Any) -> Any:
    if all(x.spec.dims is not None and x.spec.dims == xs[0].spec.dims for x in xs):
        return list(xs)
    if len({x.dtype for x in xs}) == 1:
        return list(layer.broadcast_tensors(xs))
    return [layer.broadcast_tensors([x, *(t.cast(y, x.spec.known_dtype) for y in xs if y is not x)])[0] for x in xs]


@aten("diagonal")
def _diagonal(t: TorchCall, x: Variable, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return layer.diagonal(x, offset, dim1, dim2)


@aten("slice_scatter")
def _slice_scatter(t: TorchCall, x: Variable, src: Variable, dim: int = 0, start: Any = None, end: Any = None, step: int = 1) -> Any:
    starts, ends = t.sizes([0 if start is None else start]), t.sizes([_END if end is None or end == 2**63 - 1 else end])
    return layer.set_value(x, [t.axis(x, dim)], starts, ends, src, [step])


@aten("select_scatter")
def _select_scatter(t: TorchCall, x: Variable, src: Variable, dim: int, index: Any) -> Any:
    at = t.axis(x, dim)
    index = index % x.spec.known_dims[at] if isinstance(index, int) and isinstance(x.spec.known_dims[at], int) else index  # pyright: ignore[reportOperatorIssue]
    end: Any = _END if isinstance(index, int) and index == -1 else compute(operator.add, index, 1)
    return layer.set_value(x, [at], t.sizes([index]), t.sizes([end]), src, dropped=[at])


@aten("constant_pad_nd", "pad")
def _pad(t: TorchCall, x: Variable, pad: Any, mode: Any = "constant", value: Any = None) -> Any:
    if not isinstance(mode, str):
        mode, value = "constant", mode
    if mode != "constant":
        return _mirrored(t, x, pad, mode)
    rank = t.rank(x)
    if any(isinstance(p, OpenSize) for p in pad):
        return padded_by_sizes(t, x, pad, value or 0)
    sides = [(0, 0)] * (rank - len(pad) // 2) + [(pad[at], pad[at + 1]) for at in range(len(pad) - 2, -1, -2)]
    for axis, (low, high) in enumerate(sides):
        if low < 0 or high < 0:
            x = layer.slice(x, [axis], [max(-low, 0)], [high if high < 0 else _END])
    numbers = [n for low, high in sides for n in (max(low, 0), max(high, 0))]
    return layer.pad(x, numbers, pad_value=float(value or 0.0)) if any(numbers) else x


def padded_by_sizes(t: TorchCall, x: Variable, pad: Any, value: Any) -> Any:
    """Return ``x`` with equal numbers before and after, as many as computed sizes say; they must not be negative."""
    for at in range(0, len(pad), 2):
        axis = t.rank(x) - 1 - at // 2
        dims = [size_of(x, a) for a in range(t.rank(x))]
        sides: list[Any] = []
        for size in (pad[at], pad[at + 1]):
            fits = isinstance(size, OpenSize) or size > 0
            sides.append(layer.fill_constant(t.sizes([*dims[:axis], size, *dims[axis + 1 :]]), t.dtype, value) if fits else None)
        parts = [one for one in (sides[0], x, sides[1]) if one is not None]
        x = layer.concat(parts, axis) if len(parts) > 1 else x
    return x


@aten("reflection_pad1d", "reflection_pad2d", "reflection_pad3d", "replication_pad1d", "replication_pad2d", "replication_pad3d")
def _pad_by_name(t: TorchCall, x: Variable, pad: Any) -> Any:
    return _mirrored(t, x, pad, "reflect" if "reflection" in t.name else "replicate")


def _mirrored(t: TorchCall, x: Variable, pad: Any, mode: str) -> Any:
    """Return ``x`` padded with its own elements: as a volume, whose padding has all modes."""
    rank, lead = t.rank(x), 5 - t.rank(x)
    if any(isinstance(p, OpenSize) for p in pad):
        raise Refused("paddings that are open")
    count = len(pad) // 2
    if rank - count > 2:
        raise Refused(f"padding {count} axes of {rank}")
    made = layer.unsqueeze(x, [*range(rank - count, rank - count + lead)]) if lead else x
    if rank - count == 1:
        made, lead = layer.unsqueeze(x, [0, *range(2, 2 + lead - 1)]), lead
    out = t.op("pad3d", {"paddings": [*pad, *[0] * (6 - len(pad))], "mode": mode}, X=made)
    dropped = [0, *range(2, 2 + lead - 1)] if rank - count == 1 else [*range(rank - count, rank - count + lead)]
    return layer.squeeze(out, dropped) if dropped else out


@aten("unfold")
def _unfold(t: TorchCall, x: Variable, dimension: int, size: int, step: int) -> Any:
    """Return windows of an axis: their number in its place, their elements last."""
    at, rank = t.axis(x, dimension), t.rank(x)
    moved = layer.transpose(x, [*(a for a in range(rank) if a != at), at]) if at != rank - 1 else x
    whole = not (t.dtype.is_floating or t.dtype in COMPLEX)
    frames = layer.frame(t.cast(moved, FP64) if whole else moved, size, step)  # [..., size, windows]
    frames = t.cast(frames, t.dtype)
    order = [*range(rank - 1)]
    order.insert(at, rank)
    return layer.transpose(frames, [*order, rank - 1])


@aten("unfold_backward")
def _windows_added(t: TorchCall, x: Variable, sizes: Any, dim: int, size: int, step: int) -> Any:
    """Return the sum of windows of the last axis, each at its place."""
    rank = t.rank(x)
    if int(dim) % max(rank - 1, 1) != rank - 2:
        raise Refused("windows of another axis than the last one")
    out = layer.overlap_add(layer.transpose(x, [*range(rank - 2), rank - 1, rank - 2]), step)
    if as_dim(sizes[-1]) != out.spec.known_dims[-1]:
        raise Refused("windows that leave a part of the axis out")
    return out


def _strided_places(t: TorchCall, x: Variable, size: Any, stride: Any, offset: Any) -> Variable:
    """Return the places of a view by strides in the elements of ``x``, ``[elements]``, which are in their order, as those of any result here are."""
    if not t.argument(0).is_contiguous():
        raise Refused("a view by strides of a tensor that is one itself")
    if not all(isinstance(n, int) for n in (*size, *stride, offset or 0)):
        raise Refused("a view by strides of an open size")
    place = layer.fill_constant([1] * max(len(size), 1), INT64, offset or 0)
    for axis, (n, step) in enumerate(zip(size, stride, strict=True)):
        dims = [1] * len(size)
        dims[axis] = n
        place = layer.add(place, layer.reshape(layer.scale(layer.range(0, n, 1, dtype=INT64), float(step)), dims))
    return layer.reshape(place, [-1])


@aten("as_strided")
def _as_strided(t: TorchCall, x: Variable, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    taken = layer.index_select(layer.reshape(x, [-1]), _strided_places(t, x, size, stride, storage_offset), 0)
    return layer.reshape(taken, list(size))


@aten("as_strided_scatter")
def _as_strided_scatter(t: TorchCall, x: Variable, src: Variable, size: Any, stride: Any, storage_offset: Any = None) -> Any:
    places = _strided_places(t, x, size, stride, storage_offset)
    made = layer.index_put(layer.reshape(x, [-1]), [places], layer.reshape(src, [-1]))
    return t.reshape(made, [size_of(x, a) for a in range(t.rank(x))])
