"""Import of reductions, orders and running sums."""

from __future__ import annotations

import math
from typing import Any

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_elementwise import change, extreme
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import as_variable, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import BOOL, COMPLEX, INT32, INT64


@aten("sum", "mean", "prod")
def _sum(t: TorchCall, x: Variable, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    name = t.name
    function = {"sum": layer.reduce_sum, "mean": layer.reduce_mean, "prod": layer.reduce_prod}[name]
    return t.cast(function(t.cast(x, t.dtype), t.axes(x, dim), keepdim), t.dtype)


@aten("amax", "amin")
def _amax(t: TorchCall, x: Variable, dim: Any = (), keepdim: bool = False) -> Any:
    if t.dtype is BOOL:
        return (layer.reduce_any if "amax" in t.name else layer.reduce_all)(x, t.axes(x, dim), keepdim)
    return (layer.amax if "amax" in t.name else layer.amin)(x, t.axes(x, dim), keepdim)


@aten("any", "all")
def _any(t: TorchCall, x: Variable, dim: Any = None, keepdim: bool = False) -> Any:
    return (layer.reduce_any if "any" in t.name else layer.reduce_all)(t.cast(x, BOOL), t.axes(x, dim), keepdim)


@aten("argmax", "argmin")
def _arg(t: TorchCall, x: Variable, dim: Any = None, keepdim: bool = False) -> Any:
    return (layer.argmax if "max" in t.name else layer.argmin)(x, None if dim is None else t.axis(x, dim), keepdim)


@aten("max", "min")
def _max(t: TorchCall, x: Variable, other: Any = None, keepdim: bool = False) -> Any:
    largest, overload = "max" in t.name, t.overload
    if isinstance(other, Variable):
        return extreme(t, largest, t.cast(x, t.dtype), t.cast(other, t.dtype))
    truths = x.dtype is BOOL
    x = layer.cast(x, INT32) if truths else x
    if overload in ("default", "") or other is None:
        if t.dtype.is_floating:
            return (layer.amax if largest else layer.amin)(x)  # the gradient is shared by equal elements
        made = (layer.reduce_max if largest else layer.reduce_min)(x)
        return layer.cast(made, BOOL) if truths else made
    axis = t.axis(x, other)
    places = (layer.argmax if largest else layer.argmin)(x, axis, True)
    found = layer.take_along_axis(x, places, axis)  # of equal elements the gradient is one's
    found = layer.cast(found, BOOL) if truths else found
    return [found, places] if keepdim else [layer.squeeze(found, [axis]), layer.squeeze(places, [axis])]


@aten("topk")
def _topk(t: TorchCall, x: Variable, k: Any, dim: int = -1, largest: bool = True, sorted: bool = True) -> Any:
    return list(layer.topk(x, k if isinstance(k, int) else as_variable(k), t.axis(x, dim), largest, sorted))


@aten("sort", "argsort")
def _sort(t: TorchCall, x: Variable, *more: Any, dim: int = -1, descending: bool = False, stable: Any = None) -> Any:
    numbers = [m for m in more if not isinstance(m, bool) and m is not None]
    flags = [m for m in more if isinstance(m, bool)]
    overload = t.overload
    axis = t.axis(x, numbers[0] if numbers else dim)
    down = flags[-1] if flags and (overload != "stable" or len(flags) > 1 or len(more) > 2) else descending
    out, places = t.op("argsort", {"axis": axis, "descending": bool(down), "stable": True}, X=x)
    return places if "argsort" in t.name else [out, places]


@aten("kthvalue")
def _kthvalue(t: TorchCall, x: Variable, k: int, dim: int = -1, keepdim: bool = False) -> Any:
    return list(layer.kthvalue(x, k, t.axis(x, dim), keepdim))


@aten("median", "nanmedian")
def _median(t: TorchCall, x: Variable, dim: int | None = None, keepdim: bool = False) -> Any:
    """Return the middle elements, the lower ones of two, and with an axis their places too."""
    if dim is None:
        made = _median_of_numbers(t, x, None, False) if t.name == "nanmedian" else layer.reshape(layer.median(x, None, mode="min"), [])
        if not t.dtype.is_floating:
            return made
        made.stop_gradient = True  # the gradient is shared by all equal elements
        equal = layer.equal(x, made)
        count = layer.maximum(layer.reduce_sum(t.cast(equal, t.dtype)), t.tensor(1.0, t.dtype))
        share = layer.divide(layer.reduce_sum(t.where(equal, change(x), layer.fill_like(x, 0.0))), count)
        return layer.add(made, share)
    if t.name == "nanmedian":
        return _median_of_numbers(t, x, dim, keepdim)
    axis = t.axis(x, dim)
    size = x.spec.known_dims[axis]
    if not isinstance(size, int):
        raise Refused("the median of an open number of elements")
    return list(layer.kthvalue(x, (size + 1) // 2, axis, keepdim))


def _median_of_numbers(t: TorchCall, x: Variable, dim: int | None, keepdim: bool) -> Any:
    """Return the same without NaN, which is sorted behind the others; NaN where there are no others."""
    flat = layer.reshape(x, [-1]) if dim is None else x
    axis = 0 if dim is None else t.axis(x, dim)
    values, places = t.op("argsort", {"axis": axis, "descending": False, "stable": True}, X=flat)
    count = layer.reduce_sum(layer.cast(layer.logical_not(layer.is_nan(flat)), INT64), [axis], True)
    at = layer.floor_divide(layer.maximum(layer.scale(count, 1.0, -1.0), t.tensor(0, INT64)), t.tensor(2, INT64))
    found = [layer.take_along_axis(one, at, axis) for one in (values, places)]
    if dim is None:
        return layer.reshape(found[0], [])
    return found if keepdim else [layer.squeeze(one, [axis]) for one in found]


@aten("mode")
def _mode(t: TorchCall, x: Variable, dim: int = -1, keepdim: bool = False) -> Any:
    return list(layer.mode(x, t.axis(x, dim), keepdim))


@aten("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(t: TorchCall, x: Variable, dim: int) -> Any:
    return layer.logcumsumexp(x, t.axis(x, dim))


@aten("cumsum")
def _cumsum(t: TorchCall, x: Variable, dim: int, **_: Any) -> Any:
    return layer.cumsum(t.cast(x, t.dtype), t.axis(x, dim)) if t.rank(x) else t.cast(x, t.dtype)


@aten("cumprod")
def _cumprod(t: TorchCall, x: Variable, dim: int, **_: Any) -> Any:
    return layer.cumprod(t.cast(x, t.dtype), t.axis(x, dim))


@aten("cummax", "cummin")
def _cummax(t: TorchCall, x: Variable, dim: int) -> Any:
    return list((layer.cummax if "max" in t.name else layer.cummin)(x, t.axis(x, dim)))


@aten("logsumexp")
def _logsumexp(t: TorchCall, x: Variable, dim: Any, keepdim: bool = False) -> Any:
    axes = t.axes(x, dim)
    return t.op("logsumexp", {"axis": axes or [0], "keepdim": keepdim, "reduce_all": axes is None}, X=x)


@aten("var", "std", "var_mean", "std_mean")
def _variance(t: TorchCall, x: Variable, dim: Any = None, unbiased: Any = True, keepdim: bool = False, correction: Any = None) -> Any:
    """Return sum((x - mean)^2) / (n - correction), or its root, over axes."""
    name, overload = t.name, t.overload
    if isinstance(dim, bool):  # var(x, unbiased)
        dim, unbiased = None, dim
    if overload in ("correction", "correction_names"):
        correction, keepdim = (1 if correction is None else correction), keepdim
    else:
        correction = int(bool(unbiased))
    axes = t.axes(x, dim)
    over = axes if axes is not None else [*range(t.rank(x))]
    mean = layer.reduce_mean(x, over, True)
    off = layer.square(layer.subtract(x, mean))
    sizes = [size_of(x, a) for a in over]
    if all(isinstance(s, int) for s in sizes):
        count = math.prod(s for s in sizes if isinstance(s, int))
        spread = layer.reduce_mean(off, over, keepdim)
        made = spread if not correction else t.scale(layer.reduce_sum(off, over, keepdim), 1.0 / max(count - correction, 0) if count > correction else math.inf)
    elif not correction:
        made = layer.reduce_mean(off, over, keepdim)
    else:
        number = as_variable(sizes[0])
        for size in sizes[1:]:
            number = layer.multiply(number, as_variable(size))
        left = layer.reshape(layer.scale(layer.cast(number, x.dtype), 1.0, -float(correction)), [])
        made = layer.divide(layer.reduce_sum(off, over, keepdim), left)
    made = t.root(made) if name.startswith("std") else made
    if name.endswith("_mean"):
        return [made, mean if keepdim else layer.squeeze(mean, over)]
    return made


@aten("linalg_vector_norm", "norm")
def _norm(t: TorchCall, x: Variable, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    x = layer.abs(x) if x.dtype in COMPLEX else x
    return norm(t, t.cast(x, t.dtype), 2.0 if ord is None else float(ord), t.axes(x, dim), keepdim)


def norm(t: TorchCall, x: Variable, order: float, axes: list[int] | None, keepdim: bool) -> Variable:
    """Return the norm of an order, of vectors along axes."""
    if order == 2:
        return t.root(layer.reduce_sum(layer.square(x), axes, keepdim))
    if order == 1:
        return layer.reduce_sum(layer.abs(x), axes, keepdim)
    if order in (math.inf, -math.inf):
        return (layer.amax if order > 0 else layer.amin)(layer.abs(x), axes, keepdim)
    if order == 0:
        return layer.reduce_sum(layer.cast(layer.not_equal(x, 0.0), x.dtype), axes, keepdim)
    return t.power(layer.reduce_sum(t.power(layer.abs(x), order), axes, keepdim), 1 / order)


@aten("_weight_norm", "_weight_norm_interface")
def _weight_norm(t: TorchCall, v: Variable, g: Variable, dim: int = 0) -> Any:
    """Return a weight of a direction and a length for each slice along an axis."""
    found = norm(t, v, 2.0, [axis for axis in range(t.rank(v)) if axis != t.axis(v, dim)] if dim != -1 else None, dim != -1)
    made = layer.multiply(v, layer.divide(g, found))
    return [made, found] if t.name == "_weight_norm_interface" else made


@aten("dist")
def _distance(t: TorchCall, x: Variable, y: Variable, p: float = 2) -> Any:
    return norm(t, layer.subtract(x, y), float(p), None, False)


@aten("_pdist_forward", "pdist")
def _distances(t: TorchCall, x: Variable, p: float = 2) -> Any:
    """Return the distance of each two rows, the first one's smaller than the second one's."""
    rows = layer.range(0, as_variable(size_of(x, 0)), 1, dtype=INT64)
    pairs = layer.nonzero(layer.less_than(layer.unsqueeze(rows, [1]), layer.unsqueeze(rows, [0])))
    first, second = (layer.gather(x, layer.squeeze(one, [1])) for one in layer.split(pairs, 2, 1))
    off = layer.subtract(first, second)
    return layer.reduce_max(layer.abs(off), [1]) if p == math.inf else norm(t, off, float(p), [1], False)


@aten("histc")
def _histogram(t: TorchCall, x: Variable, bins: int = 100, min: float = 0, max: float = 0) -> Any:
    return t.cast(layer.histogram(x, bins, min, max), t.dtype)


@aten("cosine_similarity")
def _cosine(t: TorchCall, x: Variable, y: Variable, dim: int = 1, eps: float = 1e-8) -> Any:
    x, y = layer.broadcast_tensors([x, y])
    axis = t.axis(x, dim)
    lengths = [layer.clip(t.root(layer.reduce_sum(layer.square(v), axis, True)), eps, math.inf) for v in (x, y)]
    return layer.reduce_sum(layer.multiply(layer.divide(x, lengths[0]), layer.divide(y, lengths[1])), axis)


@aten("bincount")
def _bincount(t: TorchCall, x: Variable, weights: Any = None, minlength: int = 0) -> Any:
    return layer.bincount(x, weights, minlength)


@aten("searchsorted")
def _searchsorted(
    t: TorchCall, sequence: Variable, values: Any, *, out_int32: bool = False, right: bool = False, side: str | None = None, sorter: Any = None
) -> Any:
    if sorter is not None:
        sequence = layer.take_along_axis(sequence, sorter, t.rank(sequence) - 1)
    of = t.promoted()
    return layer.searchsorted(t.cast(sequence, of), t.tensor(values, of), "int32" if out_int32 else INT64, right or side == "right")


@aten("bucketize")
def _bucketize(t: TorchCall, values: Any, boundaries: Variable, *, out_int32: bool = False, right: bool = False) -> Any:
    of = t.promoted()
    return layer.searchsorted(t.cast(boundaries, of), t.tensor(values, of), "int32" if out_int32 else INT64, right)


@aten("_unique2", "unique_dim", "unique_consecutive", "unique_dim_consecutive")
def _unique(t: TorchCall, x: Variable, *given: Any, **named: Any) -> Any:
    """Return the different elements, where each of ``x`` is among them, and how often each is there; the last two where they are asked for."""
    names = [a.name for a in t.node.target._schema.arguments][1:]
    said = {**dict(zip(names, given, strict=False)), **named}
    dim = said.get("dim")
    inverse, counts = bool(said.get("return_inverse", False)), bool(said.get("return_counts", False))
    used = {user.args[1] for user in t.node.users if len(user.args) > 1}
    inverse, counts = inverse or 1 in used, counts or 2 in used
    axis = None if dim is None else t.axis(x, dim)
    x = layer.reshape(x, [-1]) if axis is None and t.rank(x) == 0 else x
    if "consecutive" in t.name:
        found = layer.unique_consecutive(x, inverse, counts, axis)
    else:
        found = layer.unique(x, False, inverse, counts, axis)
    parts = list(found) if isinstance(found, tuple) else [found]
    places = parts[1] if inverse else None
    if places is not None and axis is None:
        places = t.reshape(places, [size_of(x, a) for a in range(t.rank(x))])
    return [parts[0], places, parts[-1] if counts else None]
