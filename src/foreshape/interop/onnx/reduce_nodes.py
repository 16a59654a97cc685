"""Reductions, and operators built on them: norms, places of extremes, the largest k."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.node_rules import onnx
from foreshape.interop.refused import Refused
from foreshape.program.variable import Variable
from foreshape.spec import BOOL, FP64, INT32, INT64, UINT8, DType

_TYPES = {"Sum": "reduce_sum", "Mean": "reduce_mean", "Max": "reduce_max", "Min": "reduce_min", "Prod": "reduce_prod"}


def _axes(c: Call) -> list[int] | Variable | None:
    """Return the axes; an empty list for none at all, None for every one, a variable where they are computed."""
    since = 13 if c.node.operator == "ReduceSum" else 18
    given = c.computed(1) if c.opset >= since else None
    if given is not None and given.spec.dims != (0,):
        return given
    if given is not None:
        return [] if c.attribute("noop_with_empty_axes", 0) else None
    axes = c.ints(1) if c.opset >= since else c.ints(9, "axes")
    if not axes:
        return [] if c.attribute("noop_with_empty_axes", 0) else None
    return axes


def reduce(c: Call, kind: str, x: Variable, axes: list[int] | Variable | None, keep: bool) -> Variable:
    """Return a reduction of ours."""

    def of(x: Variable, dim: list[int] | None, keep: bool) -> Variable:
        dims, attrs = x.spec.known_dims, {"dim": dim or [0], "keep_dim": keep, "reduce_all": dim is None}
        if kind in ("Max", "Min") and any(dims[axis] == 0 for axis in (range(len(dims)) if dim is None else dim)):  # of nothing: the bound of the type
            filled = c.op("reduce_sum", {**attrs, "out_dtype": x.spec.known_dtype.code}, X=x)
            return filled + c.like(_bound(x.spec.known_dtype, kind == "Max"), filled)
        return c.op(_TYPES[kind], {**attrs, "out_dtype": INT32.code} if kind == "Sum" and x.spec.known_dtype is INT32 else attrs, X=x)

    return computed.reduced(c, of, x, axes, keep) if isinstance(axes, Variable) else of(x, axes, keep)


def _bound(of: DType, least: bool) -> float:
    """Return the least or the largest number of an element type."""
    if of.is_floating:
        return float("-inf" if least else "inf")
    bits = 8 * of.itemsize - (0 if of is UINT8 else 1)
    return (0 if of is UINT8 else -(2**bits)) if least else 2**bits - 1


@onnx("ReduceSum", "ReduceMean", "ReduceMax", "ReduceMin", "ReduceProd", "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceSumSquare")
def reduction(c: Call) -> Any:
    kind, x, keep = c.node.operator.removeprefix("Reduce"), c.x(), bool(c.attribute("keepdims", 1))
    axes = _axes(c)
    nothing = isinstance(axes, list) and not axes
    if x.spec.known_dtype is BOOL and not nothing:
        return c.cast(reduce(c, kind, c.cast(x, UINT8), axes, keep), BOOL)
    of = x.spec.known_dtype
    if (
        kind == "L2" and x.spec.known_dtype.is_floating and not isinstance(axes, Variable) and (axes or axes is None)
    ):  # its gradient at zero is zero, as torch's
        return c.op("frobenius_norm", {"dim": axes or [0], "keep_dim": keep, "reduce_all": axes is None}, X=x)
    if kind in ("L1", "SumSquare", "L2"):
        x = abs(x) if kind == "L1" else x * x
    if kind == "LogSumExp" and not nothing:  # of integers by floats, as ONNX's function of it
        return c.cast(_log_of_exponentials(c, x if of.is_floating else c.cast(x, FP64), axes, keep), of)
    if nothing:
        out = x if x is not c.value(0) else layer.assign(x)
    else:
        out = reduce(c, kind if kind in _TYPES else "Sum", x, axes, keep)
    root = {"L2": "sqrt", "LogSum": "log"}.get(kind)
    return out if root is None else c.cast(c.op(root, X=out if of.is_floating else c.cast(out, FP64)), of)


def _log_of_exponentials(c: Call, x: Variable, axes: list[int] | Variable | None, keep: bool) -> Variable:
    if isinstance(axes, Variable):
        return layer.log(reduce(c, "Sum", layer.exp(x), axes, keep))
    return c.op("logsumexp", {"axis": axes or [0], "keepdim": keep, "reduce_all": axes is None}, X=x)


@onnx("ArgMax", "ArgMin")
def extreme(c: Call) -> Any:
    x, keep = c.x(), bool(c.attribute("keepdims", 1))
    axis = c.axis(c.attribute("axis", 0), c.rank(x))
    attrs = {"axis": axis, "keepdims": keep, "dtype": INT64.code}
    type = "arg_max" if c.node.operator == "ArgMax" else "arg_min"
    if not c.attribute("select_last_index", 0):
        return c.op(type, attrs, X=x)
    place = c.op(type, attrs, X=layer.flip(x, [axis]))
    last = c.op("slice", {"axes": [0], "starts": [axis], "ends": [axis + 1], "decrease_axis": [0], "infer_flags": [1]}, Input=c.shape_of(x))
    return layer.scale(last, 1.0, -1.0) - place


@onnx("TopK")
def top_k(c: Call) -> Any:
    """Return the first k of a stable order: of equal elements those at the lower places."""
    x = c.x()
    axis = c.axis(c.attribute("axis", -1), c.rank(x))
    ordered = c.op("argsort", {"axis": axis, "descending": bool(c.attribute("largest", 1)), "stable": True}, X=x)
    known = c.constant(1) if c.opset >= 10 else None
    if c.opset < 10 or known is not None:
        k = int(c.attribute("k", 1)) if known is None else int(known.reshape(-1)[0])
        size = x.spec.known_dims[axis]
        if isinstance(size, int) and not 0 <= k <= size:
            raise Refused(f"the largest {k} of {size}")
        attrs = {"axes": [axis], "starts": [0], "ends": [k], "infer_flags": [1]}
        return tuple(c.op("slice", attrs, Input=one) for one in ordered)
    end = c.reshape(c.cast(c.x(1), INT64), [1])
    attrs = {"axes": [axis], "starts": [0], "ends": [-1], "infer_flags": [-1]}
    return tuple(c.op("slice", attrs, Input=one, EndsTensor=end) for one in ordered)


@onnx("LpNormalization")
def lp_normalization(c: Call) -> Any:
    x, axis, p = c.x(), c.attribute("axis", -1), int(c.attribute("p", 2))
    along = {"dim": [axis], "keep_dim": True, "reduce_all": False}
    norm = c.op("reduce_sum", along, X=abs(x)) if p == 1 else c.op("frobenius_norm", along, X=x)
    nothing = layer.equal(norm, c.like(0, norm))  # zeros stay zeros
    return layer.divide(x, layer.where(nothing, c.like(1, norm), norm))


@onnx("GlobalLpPool")
def global_lp_pool(c: Call) -> Any:
    x, p = c.x(), float(c.attribute("p", 2))
    powers = layer.pow(abs(x), p)
    return layer.pow(reduce(c, "Sum", powers, [*range(2, c.rank(x))], True), 1.0 / p)


@onnx("GlobalAveragePool", "GlobalMaxPool")
def global_pool(c: Call) -> Any:
    x = c.x()
    return reduce(c, "Mean" if c.node.operator == "GlobalAveragePool" else "Max", x, [*range(2, c.rank(x))], True)


@onnx("MeanVarianceNormalization")
def mean_variance_normalization(c: Call) -> Any:
    x, axes = c.x(), [int(a) for a in c.attribute("axes", [0, 2, 3])]
    apart = x - reduce(c, "Mean", x, axes, True)
    deviation = layer.sqrt(reduce(c, "Mean", apart * apart, axes, True))
    return layer.divide(apart, layer.scale(deviation, 1.0, 1e-09))


@onnx("NonZero")
def non_zero(c: Call) -> Any:
    """[rank, n]: the places of elements other than zero, a row for each axis."""
    x = c.x()
    if not c.rank(x):
        raise Refused("places of a tensor without dims")
    return c.transpose(layer.nonzero(x), [1, 0])


@onnx("Size")
def size(c: Call) -> Any:
    return c.cast(c.op("size", Input=c.x()), INT64)
