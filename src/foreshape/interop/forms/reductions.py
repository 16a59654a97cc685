"""Sums, means and norms along axes, in the other formats."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Final

from foreshape import layer
from foreshape.core.spec import BOOL, COMPLEX, FP64, INT32, INT64, UINT8, DType, dtype
from foreshape.interop.forms.arithmetic import from_torch_extreme
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import Term, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import as_variable, size_of
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


_TYPES = {"Sum": "reduce_sum", "Mean": "reduce_mean", "Max": "reduce_max", "Min": "reduce_min", "Prod": "reduce_prod"}


def _from_onnx_axes(c: Call) -> list[int] | Variable | None:
    """Return the axes; an empty list for none at all, None for every one, a variable where they are computed."""
    since = 13 if c.node.operator == "ReduceSum" else 18
    variable = c.computed(1) if c.opset >= since else None
    if variable is not None and variable.spec.dims != (0,):
        return variable
    if variable is not None:
        return [] if c.attribute("noop_with_empty_axes", 0) else None
    axes = c.ints(1) if c.opset >= since else c.ints(9, "axes")
    if not axes:
        return [] if c.attribute("noop_with_empty_axes", 0) else None
    return axes


def from_onnx_reduce(c: Call, kind: str, x: Variable, axes: list[int] | Variable | None, keep: bool) -> Variable:
    """Return a reduction of ours."""

    def reduce(x: Variable, dim: list[int] | None, keep: bool) -> Variable:
        dims, attrs = x.spec.known_dims, {"dim": dim or [0], "keep_dim": keep, "reduce_all": dim is None}
        if kind in ("Max", "Min") and any(dims[axis] == 0 for axis in (range(len(dims)) if dim is None else dim)):  # of nothing: the bound of the type
            filled = c.op("reduce_sum", {**attrs, "out_dtype": x.spec.known_dtype.code}, X=x)
            return filled + c.like(_bound(x.spec.known_dtype, kind == "Max"), filled)
        return c.op(_TYPES[kind], {**attrs, "out_dtype": INT32.code} if kind == "Sum" and x.spec.known_dtype is INT32 else attrs, X=x)

    return computed.reduced(c, reduce, x, axes, keep) if isinstance(axes, Variable) else reduce(x, axes, keep)


def _bound(dtype: DType, least: bool) -> float:
    """Return the least or the largest number of an element type."""
    if dtype.is_floating:
        return float("-inf" if least else "inf")
    bits = 8 * dtype.itemsize - (0 if dtype is UINT8 else 1)
    return (0 if dtype is UINT8 else -(2**bits)) if least else 2**bits - 1


@from_onnx("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
def reduction(c: Call) -> Any:
    kind, x, keep = c.node.operator.removeprefix("Reduce"), c.x(), bool(c.attribute("keepdims", 1))
    axes = _from_onnx_axes(c)
    nothing = isinstance(axes, list) and not axes
    if x.spec.known_dtype is BOOL and not nothing:
        return c.cast(from_onnx_reduce(c, kind, c.cast(x, UINT8), axes, keep), BOOL)
    dtype = x.spec.known_dtype
    if (
        kind == "L2" and x.spec.known_dtype.is_floating and not isinstance(axes, Variable) and (axes or axes is None)
    ):  # its gradient at zero is zero, as torch's
        return c.op("frobenius_norm", {"dim": axes or [0], "keep_dim": keep, "reduce_all": axes is None}, X=x)
    if kind in ("L1", "SumSquare", "L2"):
        x = abs(x) if kind == "L1" else x * x
    if kind == "LogSumExp" and not nothing:  # of integers by floats, as ONNX's function of it
        return c.cast(_log_of_exponentials(c, x if dtype.is_floating else c.cast(x, FP64), axes, keep), dtype)
    if nothing:
        out = x if x is not c.value(0) else layer.assign(x)
    else:
        out = from_onnx_reduce(c, kind if kind in _TYPES else "Sum", x, axes, keep)
    root = {"L2": "sqrt", "LogSum": "log"}.get(kind)
    return out if root is None else c.cast(c.op(root, X=out if dtype.is_floating else c.cast(out, FP64)), dtype)


def _log_of_exponentials(c: Call, x: Variable, axes: list[int] | Variable | None, keep: bool) -> Variable:
    if isinstance(axes, Variable):
        return layer.log(from_onnx_reduce(c, "Sum", layer.exp(x), axes, keep))
    return c.op("logsumexp", {"axis": axes or [0], "keepdim": keep, "reduce_all": axes is None}, X=x)


# --- to ONNX


@to_onnx()
def _to_onnx_clip_by_norm(w: WrittenOp) -> Any:
    x, limit = term(w, "X"), float(w.of.max_norm)
    norm = x.node("ReduceL2", keepdims=0)
    return (x * (norm > limit).where(limit / norm, 1.0)).value


@to_onnx()
def _to_onnx_l1_norm(w: WrittenOp) -> Any:
    return w.node("ReduceL1", w.x("X"), keepdims=0)


@to_onnx()
def _to_onnx_squared_l2_norm(w: WrittenOp) -> Any:
    return w.reshape(w.node("ReduceSumSquare", w.x("X"), keepdims=0), 1)


@to_onnx()
def _to_onnx_dist(w: WrittenOp) -> Any:
    return to_onnx_norm_of(w, (term(w, "X") - term(w, "Y")).value, "X", float(w.of.p), None, False)


@to_onnx()
def _to_onnx_renorm(w: WrittenOp) -> Any:
    x, rank, limit = term(w, "X"), w.rank("X"), float(w.of.max_norm)
    axes = [a for a in range(rank) if a != int(w.of.axis) % rank]
    norms = Term(w, to_onnx_norm_of(w, x.value, "X", float(w.of.p), axes, True), x.of) if axes else abs(x)
    return (x * (norms > limit).where(limit / (norms + 1e-7), 1.0)).value


_REDUCTIONS_TO_ONNX = {
    "reduce_sum": "ReduceSum", "reduce_mean": "ReduceMean", "reduce_max": "ReduceMax", "reduce_min": "ReduceMin", "reduce_prod": "ReduceProd",
    "frobenius_norm": "ReduceL2", "reduce_any": "", "reduce_all": "", "reduce_amax": "ReduceMax", "reduce_amin": "ReduceMin",
}  # fmt: skip


@to_onnx(*_REDUCTIONS_TO_ONNX)
def _to_onnx_reduce(w: WrittenOp) -> OnnxValue:
    source, target, rank = w.dtype("X"), w.result("Out").known_dtype, w.rank("X")
    every = not rank or w.of.reduce_all or not w.of.dim or len({a % rank for a in w.of.dim}) == rank
    axes = None if every and (w.of.reduce_all or not rank or not w.of.dim) else [*w.of.dim]
    if w.op.type in ("reduce_any", "reduce_all"):
        return _as_inferred(w, _truth(w, source, axes), "Out", 0 if every and not w.of.keep_dim else None)
    inner = _number_type(w.op.type, source, target)
    out = w.reduce(_REDUCTIONS_TO_ONNX[w.op.type], w.cast(w.x("X"), source, inner), axes, bool(w.of.keep_dim))
    out = w.cast(out, inner, target)
    return _as_inferred(w, out, "Out", 0 if every and not w.of.keep_dim else None)


def _truth(w: WrittenOp, source: DType, axes: list[int] | None) -> OnnxValue:
    """Return where any, or where all are true, of no elements too: by counting."""
    every = w.op.type == "reduce_all"
    truths = w.cast(w.x("X"), source, BOOL)
    counted = w.reduce("ReduceSum", w.cast(w.node("Not", truths) if every else truths, BOOL, INT32), axes, bool(w.of.keep_dim))
    return w.node("Equal" if every else "Greater", counted, w.number(0, INT32))


def _number_type(type: str, source: DType, target: DType) -> DType:
    if source is BOOL:
        return INT32 if type in ("reduce_amax", "reduce_amin") else target
    return target if target is not BOOL else source


def _as_inferred(w: WrittenOp, x: OnnxValue, slot: str, rank: int | None) -> OnnxValue:
    """Return a reduction of all as a row of one number where ours has a dim."""
    return w.reshape(x, 1) if rank == 0 and len(w.result(slot).known_dims) == 1 else x


@to_onnx()
def _to_onnx_mean(w: WrittenOp) -> OnnxValue:
    return _as_inferred(w, w.reduce("ReduceMean", w.x("X"), None, False), "Out", 0)


@to_onnx()
def _to_onnx_logsumexp(w: WrittenOp) -> OnnxValue:
    rank = w.rank("X")
    every = not rank or w.of.reduce_all or not w.of.axis or len({a % rank for a in w.of.axis}) == rank
    out = w.reduce("ReduceLogSumExp", w.x("X"), None if every else sorted({a % rank for a in w.of.axis}), bool(w.of.keepdim))
    return _as_inferred(w, out, "Out", 0 if every and not w.of.keepdim else None)


@to_onnx()
def _to_onnx_p_norm(w: WrittenOp) -> OnnxValue:
    axes = None if w.of.asvector or not w.rank("X") else [int(w.of.axis) % w.rank("X")]
    keep = bool(w.of.keepdim)
    return _as_inferred(w, to_onnx_norm_of(w, w.x("X"), "X", float(w.of.porder), axes, keep), "Out", 0 if axes is None and not keep else None)


def to_onnx_norm_of(w: WrittenOp, x: OnnxValue, slot: str, order: float, axes: list[int] | None, keep: bool) -> OnnxValue:
    """Return the norm of an order over axes, or over all; ``slot``: an operand of the element type of ``x``."""
    if order == 2.0:
        return w.reduce("ReduceL2", x, axes, keep)
    if order == 1.0:
        return w.reduce("ReduceL1", x, axes, keep)
    if order in (float("inf"), float("-inf")):
        return w.reduce("ReduceMax" if order > 0 else "ReduceMin", w.node("Abs", x), axes, keep)
    if order == 0.0:
        some = w.cast(w.node("Not", w.node("Equal", x, w.like(0.0, slot))), BOOL, w.dtype(slot))
        return w.reduce("ReduceSum", some, axes, keep)
    total = w.reduce("ReduceSum", w.node("Pow", w.node("Abs", x), w.like(order, slot)), axes, keep)
    return w.node("Pow", total, w.like(1.0 / order, slot))


# --- from PaddlePaddle 3


def _reduced(p: PirCall, kind: str, x: Variable, axes: Sequence[int], **attrs: Any) -> Variable:
    """Reduce ``x`` along axes; none are all."""
    settings = {"dim": [*axes] or [0], "keep_dim": p.flag("keepdim"), "reduce_all": not axes, **attrs}
    return p.apply(f"reduce_{kind}", settings, X=x)


@from_pir("sum", "mean", "max", "min", "prod", "all", "any", "amax", "amin")
def _from_pir_reduce(p: PirCall) -> Any:
    """Reduce along axes, operands of some."""
    axes = p.numbers(1) if len(p.op.operands) > 1 else None
    if len(p.op.operands) > 1 and axes is None:
        raise Refused("its axes are computed, and an attribute in 2.x")
    dims = axes.integers if axes is not None else p.integers("axis")
    every = p.flag("reduce_all") or not dims
    return _reduced(p, p.name, p.x(), dims, reduce_all=every, **(_sum_types(p) if p.name == "sum" else {}))


def _sum_types(p: PirCall) -> dict[str, int]:
    code = p.element_code()
    return {"out_dtype": code, "in_dtype": p.dtype().code if code >= 0 else -1}


@from_pir("nansum")
def _nansum(p: PirCall) -> Any:
    """Sum the elements, without any NaN."""
    x = p.x()
    zero = layer.fill_like(x)
    return _reduced(p, "sum", layer.where(layer.is_nan(x), zero, x), p.integers("axis"), **_sum_types(p))


@from_pir("max_with_index", "min_with_index")
def _extreme_with_index(p: PirCall) -> Any:
    """Return an extreme along a dim, and its place."""
    kind, flat, dim = p.name[:3], p.flag("flatten"), p.integer("dim", 0)
    values = _reduced(p, kind, p.x(), [0 if flat else dim], reduce_all=flat)
    return values, None if not p.is_read(1) else p.apply(f"arg_{kind}", {"axis": dim, "keepdims": p.flag("keepdim"), "flatten": flat, "dtype": 3}, X=p.x())


@from_pir("variance", "var", "std")
def _from_pir_variance(p: PirCall) -> Any:
    """Return sum((X - mean)^2) / (n - correction), or its root."""
    x, dtype, axes = p.x(), p.dtype(), p.integers("axis")
    unbiased, correction = p.flag("unbiased", p.name != "variance"), p.real("correction", 1.0)
    if dtype is BOOL or dtype.is_integer:
        raise Refused(f"a variance of {dtype.name} has no counterpart")
    squares = _reduced(p, "sum", layer.square(x - _reduced(p, "mean", x, axes, keep_dim=True)), axes)
    count = _reduced(p, "sum", layer.fill_like(x, 1.0, dtype), axes)
    variance = squares / (count + (-correction if unbiased else 0.0))
    return layer.sqrt(variance) if p.name == "std" else variance


# --- from torch


@from_torch("sum", "mean", "prod")
def _sum(t: TorchCall, x: Variable, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    name = t.name
    function = {"sum": layer.reduce_sum, "mean": layer.reduce_mean, "prod": layer.reduce_prod}[name]
    return t.cast(function(t.cast(x, t.dtype), t.axes(x, dim), keepdim), t.dtype)


@from_torch("amax", "amin")
def _amax(t: TorchCall, x: Variable, dim: Any = (), keepdim: bool = False) -> Any:
    if t.dtype is BOOL:
        return (layer.reduce_any if "amax" in t.name else layer.reduce_all)(x, t.axes(x, dim), keepdim)
    return (layer.amax if "amax" in t.name else layer.amin)(x, t.axes(x, dim), keepdim)


@from_torch("any", "all", "_is_any_true", "_is_all_true")
def _any(t: TorchCall, x: Variable, dim: Any = None, keepdim: bool = False) -> Any:
    return (layer.reduce_any if "any" in t.name else layer.reduce_all)(t.cast(x, BOOL), t.axes(x, dim), keepdim)


@from_torch("max", "min")
def _max(t: TorchCall, x: Variable, other: Any = None, keepdim: bool = False) -> Any:
    largest, overload = "max" in t.name, t.overload
    if isinstance(other, Variable):
        return from_torch_extreme(t, largest, t.cast(x, t.dtype), t.cast(other, t.dtype))
    truths = x.dtype is BOOL
    x = layer.cast(x, INT32) if truths else x
    if overload in ("default", "") or other is None:
        if t.dtype.is_floating:
            return (layer.amax if largest else layer.amin)(x)  # the gradient is shared by equal elements
        value = (layer.reduce_max if largest else layer.reduce_min)(x)
        return layer.cast(value, BOOL) if truths else value
    axis = t.axis(x, other)
    places = (layer.argmax if largest else layer.argmin)(x, axis, True)
    values = layer.take_along_axis(x, places, axis)  # of equal elements the gradient is one's
    values = layer.cast(values, BOOL) if truths else values
    return [values, places] if keepdim else [layer.squeeze(values, [axis]), layer.squeeze(places, [axis])]


@from_torch()
def _from_torch_logsumexp(t: TorchCall, x: Variable, dim: Any, keepdim: bool = False) -> Any:
    axes = t.axes(x, dim)
    return t.op("logsumexp", {"axis": axes or [0], "keepdim": keepdim, "reduce_all": axes is None}, X=x)


@from_torch("var", "std", "var_mean", "std_mean")
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
    reduced = axes if axes is not None else [*range(t.rank(x))]
    mean = layer.reduce_mean(x, reduced, True)
    off = layer.square(layer.subtract(x, mean))
    sizes = [size_of(x, a) for a in reduced]
    if all(isinstance(s, int) for s in sizes):
        count = math.prod(s for s in sizes if isinstance(s, int))
        spread = layer.reduce_mean(off, reduced, keepdim)
        variance = (
            spread if not correction else t.scale(layer.reduce_sum(off, reduced, keepdim), 1.0 / max(count - correction, 0) if count > correction else math.inf)
        )
    elif not correction:
        variance = layer.reduce_mean(off, reduced, keepdim)
    else:
        number = as_variable(sizes[0])
        for size in sizes[1:]:
            number = layer.multiply(number, as_variable(size))
        left = layer.reshape(layer.scale(layer.cast(number, x.dtype), 1.0, -float(correction)), [])
        variance = layer.divide(layer.reduce_sum(off, reduced, keepdim), left)
    variance = t.root(variance) if name.startswith("std") else variance
    if name.endswith("_mean"):
        return [variance, mean if keepdim else layer.squeeze(mean, reduced)]
    return variance


@from_torch("linalg_vector_norm", "norm")
def _from_torch_norm(t: TorchCall, x: Variable, ord: Any = 2, dim: Any = None, keepdim: bool = False, **_: Any) -> Any:
    x = layer.abs(x) if x.dtype in COMPLEX else x
    return from_torch_norm(t, t.cast(x, t.dtype), 2.0 if ord is None else float(ord), t.axes(x, dim), keepdim)


def from_torch_norm(t: TorchCall, x: Variable, order: float, axes: list[int] | None, keepdim: bool) -> Variable:
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


@from_torch()
def _from_torch_dist(t: TorchCall, x: Variable, y: Variable, p: float = 2) -> Any:
    return from_torch_norm(t, layer.subtract(x, y), float(p), None, False)


@from_torch("_pdist_forward", "pdist")
def _distances(t: TorchCall, x: Variable, p: float = 2) -> Any:
    """Return the distance of each two rows, the first one's smaller than the second one's."""
    rows = layer.range(0, as_variable(size_of(x, 0)), 1, dtype=INT64)
    pairs = layer.nonzero(layer.less_than(layer.unsqueeze(rows, [1]), layer.unsqueeze(rows, [0])))
    first, second = (layer.gather(x, layer.squeeze(column, [1])) for column in layer.split(pairs, 2, 1))
    off = layer.subtract(first, second)
    return layer.reduce_max(layer.abs(off), [1]) if p == math.inf else from_torch_norm(t, off, float(p), [1], False)


@from_torch()
def _from_torch_cosine_similarity(t: TorchCall, x: Variable, y: Variable, dim: int = 1, eps: float = 1e-8) -> Any:
    x, y = layer.broadcast_tensors([x, y])
    axis = t.axis(x, dim)
    lengths = [layer.clip(t.root(layer.reduce_sum(layer.square(v), axis, True)), eps, math.inf) for v in (x, y)]
    return layer.reduce_sum(layer.multiply(layer.divide(x, lengths[0]), layer.divide(y, lengths[1])), axis)


# --- to torch's code


_REDUCTIONS_TO_TORCH: Final = {
    "reduce_sum": "sum",
    "reduce_mean": "mean",
    "reduce_max": "amax",
    "reduce_min": "amin",
    "reduce_amax": "amax",
    "reduce_amin": "amin",
    "reduce_all": "all",
    "reduce_any": "any",
    "logsumexp": "logsumexp",
    "frobenius_norm": "",
}


def axis_arguments(w: PlainOp, axes: tuple[int, ...], keep: bool) -> str:
    """Return the arguments for axes."""
    return f"{axes[0] if len(axes) == 1 else tuple(axes)}{', keepdim=True' if keep else ''}"


def _to_torch_axes(w: PlainOp) -> tuple[int, ...]:
    axes = tuple(getattr(w.of, "dim", getattr(w.of, "axis", ())))
    rank = w.rank("X")
    return tuple(range(rank)) if w.of.reduce_all or not axes else axes


@to_torch(*_REDUCTIONS_TO_TORCH)
def _to_torch_reduce(w: PlainOp) -> str:
    x, source, target = w.x("X"), w.dtype("X"), w.result("Out").known_dtype
    keep = bool(getattr(w.of, "keep_dim", getattr(w.of, "keepdim", False)))
    axes = _to_torch_axes(w)
    if w.op.type in ("reduce_all", "reduce_any"):
        x, source = w.cast(x, source, BOOL), BOOL
    if not w.rank("X"):
        return w.cast(f"torch.abs({x})" if w.op.type == "frobenius_norm" else f"{x}.clone()", source, target)
    if w.op.type == "frobenius_norm":
        return w.cast(f"torch.linalg.vector_norm({x}, 2, {axis_arguments(w, axes, keep)})", source, target)
    name = _REDUCTIONS_TO_TORCH[w.op.type]
    if name in ("sum", "mean"):
        keeps_dtype = source is target and (source.is_floating or source is INT64)
        if name == "mean" and not source.is_floating:
            return (
                w.cast(f"{x}.to(torch.float64).mean({axis_arguments(w, axes, keep)})", dtype("fp64"), target)
                if target.is_floating
                else _whole_mean(w, x, axes, keep)
            )
        return f"{x}.{name}({axis_arguments(w, axes, keep)}{'' if keeps_dtype else f', dtype={w.type(target)}'})"
    return w.cast(f"{x}.{name}({axis_arguments(w, axes, keep)})", source, target)


def _whole_mean(w: PlainOp, x: str, axes: tuple[int, ...], keep: bool) -> str:
    total = w.let(f"{x}.sum({axis_arguments(w, axes, keep)})")
    count = f"{x}.numel() // {total}.numel()"
    if not all(isinstance(n, int) and n for n in w.dims("X")):
        count = f"max({x}.numel() // max({total}.numel(), 1), 1)"
    return f'torch.div({total}, {count}, rounding_mode="trunc").to({w.type(w.result("Out").known_dtype)})'


@to_torch()
def _to_torch_mean(w: PlainOp) -> str:
    code = f"{w.x('X')}.mean()"
    return code if not w.result("Out").known_dims else f"{code}.reshape(1)"


@to_torch()
def _to_torch_p_norm(w: PlainOp) -> str:
    rank = w.rank("X")
    axes = tuple(range(rank)) if w.of.asvector else (w.of.axis,)
    if not rank:
        axes = ()
    order = number_code(float(w.of.porder))
    return f"torch.linalg.vector_norm({w.x('X')}, {order}{', ' + axis_arguments(w, axes, w.of.keepdim) if axes else ''})"


@to_torch()
def _to_torch_reduce_prod(w: PlainOp) -> str:
    rank, dtype = w.rank("X"), w.result("Out").known_dtype
    axes = range(rank) if w.of.reduce_all or not w.of.dim else sorted({axis % rank for axis in w.of.dim} if rank else ())
    dtype_code = "" if dtype.is_floating or dtype is INT64 else f", dtype={w.type(dtype)}"
    products = "".join(f".prod({axis}, keepdim={w.of.keep_dim}{dtype_code})" for axis in reversed(axes))
    return f"{w.cast(w.x('X'), w.dtype('X'), dtype)}{products or '.clone()'}"
