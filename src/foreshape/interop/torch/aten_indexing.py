"""Import of operators to pick and put elements at places."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import BOOL, INT32, INT64

_END = 2**31 - 1


@aten("index_select")
def _index_select(t: TorchCall, x: Variable, dim: int, index: Variable) -> Any:
    return layer.index_select(x, index, t.axis(x, dim))


@aten("take_along_dim")
def _take_along(t: TorchCall, x: Variable, index: Variable, dim: int | None = None) -> Any:
    if dim is None:
        return layer.take_along_axis(layer.reshape(x, [-1]), layer.reshape(index, [-1]), 0)
    at = t.axis(x, dim)
    others = [axis for axis in range(t.rank(x)) if axis != at]
    wider = [[size_of(of, a) if a in others and by.spec.known_dims[a] == 1 else -1 for a in range(t.rank(x))] for of, by in ((index, x), (x, index))]
    x, index = (layer.expand(v, t.sizes(dims)) if any(n != -1 for n in dims) else v for v, dims in zip((x, index), wider, strict=True))
    return layer.take_along_axis(x, index, at)


@aten("gather")
def _gather(t: TorchCall, x: Variable, dim: int, index: Variable, **_: Any) -> Any:
    at = t.axis(x, dim)
    for axis in range(t.rank(x)):
        if axis != at and x.spec.known_dims[axis] is not index.spec.known_dims[axis] and x.spec.known_dims[axis] != index.spec.known_dims[axis]:
            x = layer.slice(x, [axis], [0], t.sizes([size_of(index, axis)]))
    return layer.take_along_axis(x, index, at)


@aten("scatter", "scatter_add", "scatter_reduce")
def _scatter(t: TorchCall, x: Variable, dim: int, index: Variable, src: Any, reduce: str | None = None, include_self: bool = True) -> Any:
    name = t.name
    how = {"sum": "add", "add": "add", "prod": "multiply", "multiply": "multiply", "mean": "mean", "amax": "amax", "amin": "amin"}
    kind = "add" if name.startswith("scatter_add") else "assign" if reduce is None else how[reduce]
    value = layer.expand_as(t.tensor(src, t.dtype), index) if not isinstance(src, Variable) else src
    for axis in range(t.rank(value)):
        if value.spec.known_dims[axis] is not index.spec.known_dims[axis] and value.spec.known_dims[axis] != index.spec.known_dims[axis]:
            value = layer.slice(value, [axis], [0], t.sizes([size_of(index, axis)]))
    return layer.put_along_axis(x, index, value, t.axis(x, dim), kind, include_self)


@aten("index_add")
def _index_add(t: TorchCall, x: Variable, dim: int, index: Variable, source: Variable, alpha: Any = 1) -> Any:
    return layer.index_add(x, index, t.axis(x, dim), t.scale(source, alpha))


@aten("index_reduce")
def _index_reduce(t: TorchCall, x: Variable, dim: int, index: Variable, source: Variable, reduce: str, include_self: bool = True) -> Any:
    at = t.axis(x, dim)
    places = layer.expand_as(layer.reshape(index, [-1, *[1] * (t.rank(x) - 1 - at)]), source)
    return _scatter(t, x, dim, places, source, reduce, include_self)


@aten("index", "_unsafe_index")
def _index(t: TorchCall, x: Variable, indices: Any) -> Any:
    """Return the elements at tensors of places: the axes with places go first, are gathered, and go to the place of the first."""
    places = _places(t, indices)
    axes = [at for at, _ in places]
    index = [t.cast(one, INT64) if one.dtype not in (INT32, INT64) else one for _, one in places]
    if len(index) == 1:
        one, at = index[0], axes[0]
        if t.rank(one) == 1:
            return layer.index_select(x, one, at)
        flat = layer.index_select(x, layer.reshape(one, [-1]), at)
        before, after = [size_of(x, a) for a in range(at)], [size_of(x, a) for a in range(at + 1, t.rank(x))]
        return t.reshape(flat, [*before, *[size_of(one, a) for a in range(t.rank(one))], *after])
    index = [t.cast(one, INT64) for one in index]
    if any(one.spec.dims != index[0].spec.dims for one in index):
        index = list(layer.broadcast_tensors(index))
    rest = [a for a in range(t.rank(x)) if a not in axes]
    moved = x if axes == [*range(len(axes))] else layer.transpose(x, [*axes, *rest])
    out = layer.gather_nd(moved, layer.stack(index, -1))
    together = axes == [*range(axes[0], axes[0] + len(axes))]
    wide, first = t.rank(index[0]), axes[0] if together else 0
    if first:
        order = [*range(wide, wide + first), *range(wide), *range(wide + first, t.rank(out))]
        out = layer.transpose(out, order)
    return out


def _places(t: TorchCall, indices: Any) -> list[tuple[int, Variable]]:
    """Return axis and tensor of places for each index of integers; one of bools stands for as many axes as it has."""
    places: list[tuple[int, Variable]] = []
    at = 0
    for one in indices:
        if one is not None and one.dtype is BOOL:
            rows, count = layer.nonzero(one), t.rank(one)
            places += [(at + k, layer.squeeze(c, [1])) for k, c in enumerate(layer.split(rows, count, 1) if count > 1 else [rows])]
            at += count
            continue
        if one is not None:
            places.append((at, one))
        at += 1
    return places


@aten("index_put", "_unsafe_index_put")
def _index_put(t: TorchCall, x: Variable, indices: Any, values: Any, accumulate: bool = False) -> Any:
    """Return ``x`` with values at tensors of places: the axes with places go first, and back afterwards."""
    given = [(at, one) for at, one in enumerate(indices) if one is not None]
    values = t.cast(values, t.dtype)
    if len(given) == 1 and given[0][1].dtype is BOOL and not accumulate and values.spec.elements == 1:
        at, mask = given[0]
        more = [*range(at), *range(at + t.rank(mask), t.rank(x))]
        return t.where(layer.unsqueeze(mask, more) if more else mask, layer.reshape(values, []), x)
    places = _places(t, indices)
    axes = [at for at, _ in places]
    index = [t.cast(one, INT64) for _, one in places]
    if axes == [*range(len(axes))]:
        return layer.index_put(x, index, values, accumulate)
    rest = [a for a in range(t.rank(x)) if a not in axes]
    order = [*axes, *rest]
    wide, first = max(t.rank(one) for one in index), axes[0] if axes == [*range(axes[0], axes[0] + len(axes))] else 0
    if first and t.rank(values) > wide + len(rest) - first:  # the values have axes before those of the places: these go behind them
        whole = wide + len(rest)
        values = layer.unsqueeze(values, [*range(whole - t.rank(values))]) if t.rank(values) < whole else values
        values = layer.transpose(values, [*range(first, first + wide), *range(first), *range(first + wide, whole)])
    elif first:  # [places, after] -> [places, before, after]
        after = len(rest) - first
        values = layer.unsqueeze(values, [*range(after - t.rank(values))]) if t.rank(values) < after else values
        at = t.rank(values) - after
        values = layer.unsqueeze(values, [*range(at, at + first)])
    made = layer.index_put(layer.transpose(x, order), index, values, accumulate)
    return layer.transpose(made, [order.index(a) for a in range(t.rank(x))])


@aten("index_copy", "index_fill")
def _index_copy(t: TorchCall, x: Variable, dim: int, index: Variable, source: Any) -> Any:
    """Return ``x`` with entries of an axis replaced."""
    at = t.axis(x, dim)
    order = [at, *(a for a in range(t.rank(x)) if a != at)]
    values = t.tensor(source, t.dtype)
    if t.rank(values) == t.rank(x):
        values = layer.transpose(values, order)
    moved = layer.transpose(x, order) if at else x
    made = layer.index_put(moved, [layer.reshape(index, [-1])], values)
    return layer.transpose(made, [order.index(a) for a in range(t.rank(x))]) if at else made


@aten("masked_scatter")
def _masked_scatter(t: TorchCall, x: Variable, mask: Variable, source: Variable) -> Any:
    """Return ``x`` with the elements of a source, in their order, where the mask holds."""
    mask = layer.expand_as(mask, x)
    before = layer.cumsum(layer.cast(layer.reshape(mask, [-1]), INT64), 0)
    place = layer.maximum(layer.scale(before, 1.0, -1.0), layer.fill_constant([], INT64, 0))
    taken = layer.index_select(layer.reshape(source, [-1]), place, 0)
    return layer.where(mask, t.reshape(taken, [size_of(x, a) for a in range(t.rank(x))]), x)


@aten("take")
def _take(t: TorchCall, x: Variable, index: Variable) -> Any:
    flat = layer.reshape(x, [-1])
    taken = layer.index_select(flat, layer.reshape(index, [-1]), 0)
    return t.reshape(taken, [size_of(index, a) for a in range(t.rank(index))])


@aten("put")
def _put(t: TorchCall, x: Variable, index: Variable, source: Variable, accumulate: bool = False) -> Any:
    flat = layer.reshape(x, [-1])
    made = layer.index_put(flat, [layer.reshape(index, [-1])], layer.reshape(source, [-1]), accumulate)
    return t.reshape(made, [size_of(x, a) for a in range(t.rank(x))])


@aten("nonzero")
def _nonzero(t: TorchCall, x: Variable) -> Any:
    return layer.nonzero(x)


@aten("masked_select")
def _masked_select(t: TorchCall, x: Variable, mask: Variable) -> Any:
    if x.spec.known_dims != mask.spec.known_dims:
        x, numbers = layer.broadcast_tensors([x, layer.cast(mask, x.spec.known_dtype)])
        mask = layer.cast(numbers, BOOL)
    return layer.masked_select(x, mask)


@aten("sym_storage_offset")
def _storage_offset(t: TorchCall, x: Variable) -> int:
    return 0  # each value has memory of its own here
