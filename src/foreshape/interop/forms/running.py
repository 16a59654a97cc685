"""Running sums, products and extremes, in the other formats."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape import layer
from foreshape.core.spec import INT64
from foreshape.interop.forms.indexing import largest_of, least_of
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.write.terms import Term, count_to, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program.variable import Variable

# --- from ONNX


@from_onnx("CumSum")
def from_onnx_cumsum(c: Call) -> Any:
    return _from_onnx_running(c, "cumsum", "axis")


@from_onnx("CumProd")
def from_onnx_cumprod(c: Call) -> Any:
    return _from_onnx_running(c, "cumprod", "dim")


def _from_onnx_running(c: Call, type: str, name: str) -> Variable:
    attrs = {"exclusive": bool(c.attribute("exclusive", 0)), "reverse": bool(c.attribute("reverse", 0))}
    axis = c.computed(1)
    if axis is not None:
        return computed.along(c, type, name, c.x(), axis, attrs)
    return c.op(type, {**attrs, name: (c.ints(1) or [0])[0]}, X=c.x())


# --- to ONNX


@to_onnx()
def _to_onnx_cumsum(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if w.of.flatten or not w.rank("X"):
        x = w.reshape(x, -1)
    axis = 0 if w.of.flatten else int(w.of.axis)
    sums = w.node("CumSum", x, w.number(axis, INT64), exclusive=int(w.of.exclusive), reverse=int(w.of.reverse))
    return sums if w.rank("X") or w.of.flatten else w.squeeze(sums, 0)


LOWEST = {"fp32": -3.4028234663852886e38, "fp64": -1.7976931348623157e308, "fp16": -65504.0}


def _to_onnx_running(x: Term, rank: int, axis: int, nothing: float, exclusive: bool, reverse: bool, made_of: Callable[[Term], Term]) -> Term:
    """Return for each element of an axis what ``made_of`` makes, over the last axis, of those up to it; the others are ``nothing``."""
    order = [*[a for a in range(rank) if a != axis], axis]
    rows = x.turned(*order).with_dims(rank - 1)  # [..., 1, elements]
    sources = count_to(x.size(axis))
    places = sources.with_dims(1)
    counted = (sources > places if exclusive else sources >= places) if reverse else (sources < places if exclusive else sources <= places)
    out = made_of(counted.where(rows, nothing))
    return out.turned(*[order.index(a) for a in range(rank)])


@to_onnx()
def _to_onnx_cumprod(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    if not rank:
        return w.node("Identity", x.value)

    def made_of(rows: Term) -> Term:
        return Term(w, w.reduce("ReduceProd", rows.value, [rank], False), rows.of)

    return _to_onnx_running(x, rank, int(w.of.dim) % rank, 1, bool(w.of.exclusive), bool(w.of.reverse), made_of).value


@to_onnx("cummax", "cummin")
def _cumulative_extreme(w: WrittenOp) -> Any:
    x, rank, largest = term(w, "x"), w.rank("x"), w.op.type == "cummax"
    single = not rank
    x, rank = (x.shaped(1), 1) if single else (x, rank)
    axis, low = int(w.of.axis) % rank, least_of(x.of) if largest else largest_of(x.of)
    out = _to_onnx_running(x, rank, axis, low, False, False, lambda t: t.largest(rank) if largest else t.smallest(rank))
    operator = "ArgMax" if largest else "ArgMin"
    places = _to_onnx_running(x, rank, axis, low, False, False, lambda t: t.node(operator, axis=rank, keepdims=0, select_last_index=1, to=INT64))
    places = places.cast(w.result("indices").known_dtype)
    return (out.without(0).value, places.without(0).value) if single else (out.value, places.value)


@to_onnx()
def _to_onnx_logcumsumexp(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    if not rank and not w.of.flatten:
        return w.node("Identity", x.value)
    x, rank, axis = (x.shaped(-1), 1, 0) if w.of.flatten else (x, rank, int(w.of.axis) % rank)
    lowest = LOWEST[x.of.name]

    def made_of(rows: Term) -> Term:
        peaks = rows.largest(rank, keep=True).most(lowest)
        return ((rows - peaks).node("Exp").total(rank).node("Log") + peaks.without(rank)).most(lowest)

    return _to_onnx_running(x, rank, axis, float("-inf"), bool(w.of.exclusive), bool(w.of.reverse), made_of).value


# --- from torch


@from_torch("logcumsumexp", "_logcumsumexp")
def _logcumsumexp(t: TorchCall, x: Variable, dim: int) -> Any:
    return layer.logcumsumexp(x, t.axis(x, dim))


@from_torch()
def _from_torch_cumsum(t: TorchCall, x: Variable, dim: int, **_: Any) -> Any:
    return layer.cumsum(t.cast(x, t.dtype), t.axis(x, dim)) if t.rank(x) else t.cast(x, t.dtype)


@from_torch()
def _from_torch_cumprod(t: TorchCall, x: Variable, dim: int, **_: Any) -> Any:
    return layer.cumprod(t.cast(x, t.dtype), t.axis(x, dim))


@from_torch("cummax", "cummin")
def _cummax(t: TorchCall, x: Variable, dim: int) -> Any:
    return list((layer.cummax if "max" in t.name else layer.cummin)(x, t.axis(x, dim)))


# --- to torch's code


@to_torch()
def _to_torch_cumsum(w: PlainOp) -> str:
    x, axis = w.x("X"), w.of.axis
    if w.of.flatten:
        x, axis = f"{x}.flatten()", 0
    if not w.rank("X"):
        return f"torch.zeros_like({x})" if w.of.exclusive else f"{x}.clone()" if not w.of.flatten else x
    x = w.let(f"{x}.flip({axis})" if w.of.reverse else x) if w.of.reverse or w.of.exclusive or w.of.flatten else x
    dtype_code = "" if w.dtype("X").is_floating or w.dtype("X") is INT64 else f", dtype={w.type(w.dtype('X'))}"
    code = f"torch.cumsum({x}, {axis}{dtype_code})"
    code = f"{code} - {x}" if w.of.exclusive else code
    return (f"({code}).flip({axis})" if w.of.exclusive else f"{code}.flip({axis})") if w.of.reverse else code


@to_torch()
def _to_torch_cumprod(w: PlainOp) -> str:
    if not w.rank("X"):
        return f"{w.x('X')}.clone()"
    axis, dtype = w.of.dim, w.dtype("X")
    x = f"{w.x('X')}.flip({axis})" if w.of.reverse else w.x("X")
    x = w.call(helpers.entries.moved_on, x, axis, 1) if w.of.exclusive else x
    code = f"torch.cumprod({x}, {axis}{'' if dtype.is_floating or dtype is INT64 else f', dtype={w.type(dtype)}'})"
    return f"{code}.flip({axis})" if w.of.reverse else code


@to_torch()
def _to_torch_logcumsumexp(w: PlainOp) -> str:
    x, axis = (f"{w.x('X')}.reshape(-1)", 0) if w.of.flatten else (w.x("X"), w.of.axis)
    lowest, turned = f"torch.finfo({w.type(w.dtype('X'))}).min", w.of.reverse and (w.of.flatten or w.rank("X") > 0)
    code = f"torch.clamp(torch.logcumsumexp({f'{x}.flip({axis})' if turned else x}, {axis}), min={lowest})"
    if w.of.exclusive and (w.of.flatten or w.rank("X")):
        code = w.call(helpers.entries.moved_on, code, axis, lowest)
    return f"{code}.flip({axis})" if turned else code


@to_torch("cummax", "cummin")
def _to_torch_running_extreme(w: PlainOp) -> Any:
    out, index = w.several(f"torch.{w.op.type}({w.x('x')}, {w.of.axis})", 2)
    return out, w.cast(index, INT64, w.result("indices").known_dtype)
