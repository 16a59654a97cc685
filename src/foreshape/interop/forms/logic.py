"""Comparisons, logic and bits, in the other formats."""

from __future__ import annotations

from typing import Any, Final

from foreshape import layer
from foreshape.core.spec import BOOL, FP32, INT8, INT16, INT32, INT64, UINT8, UNSIGNED
from foreshape.interop.forms.arithmetic import from_onnx_binary, from_torch_pair, to_onnx_pair
from foreshape.interop.forms.rules import from_onnx, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call
from foreshape.interop.onnx.unsigned import own_type
from foreshape.interop.onnx.write.terms import Term, constant, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code
from foreshape.language.program import Variable

# --- from ONNX


@from_onnx("And", "Or", "Xor")
def logic(c: Call) -> Any:
    return from_onnx_binary(c, f"logical_{c.node.operator.lower()}")


@from_onnx("BitwiseAnd", "BitwiseOr", "BitwiseXor")
def bitwise(c: Call) -> Any:
    return from_onnx_binary(c, f"bitwise_{c.node.operator.removeprefix('Bitwise').lower()}")


@from_onnx("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
def comparison(c: Call) -> Any:
    name = c.node.operator
    return from_onnx_binary(c, "equal" if name == "Equal" else f"{name.removesuffix('OrEqual').lower()}_{'equal' if name.endswith('OrEqual') else 'than'}")


@from_onnx("IsInf")
def from_onnx_infinite(c: Call) -> Any:
    x = c.x()
    up, down = bool(c.attribute("detect_positive", 1)), bool(c.attribute("detect_negative", 1))
    if up and down:
        return layer.is_inf(x)
    if not up and not down:
        return c.cast(layer.fill_like(x, 0.0), BOOL)
    return layer.equal(x, c.like(float("inf") if up else float("-inf"), x))


@from_onnx("BitShift")
def bit_shift(c: Call) -> Any:
    """A shift by the width or more, or by less than zero, leaves no bit, or the sign's alone."""
    x, y, left = c.x(0), c.x(1), c.attribute("direction") == "LEFT"
    dtype = x.spec.known_dtype
    if own_type(c, 0) in (UINT8, *UNSIGNED):
        return c.op("bitwise_left_shift" if left else "bitwise_right_shift", {"is_arithmetic": False}, x=x, y=y)
    width = 8 * dtype.itemsize
    outside = layer.logical_or(y < c.like(0, y), y >= c.like(width, y))
    distance = layer.where(outside, c.like(0 if left else width - 1, y), y)
    out = c.op("bitwise_left_shift" if left else "bitwise_right_shift", {"is_arithmetic": True}, x=x, y=distance)
    return layer.where(outside, c.like(0, x), out) if left else out


# --- to ONNX


@to_onnx("isnan_v2", "isinf_v2")
def _to_onnx_special(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    return w.node("IsNaN" if w.op.type == "isnan_v2" else "IsInf", x) if w.dtype("X").is_floating else w.node("Less", x, x)


@to_onnx()
def _to_onnx_logical_not(w: WrittenOp) -> OnnxValue:
    return w.node("Not", w.cast(w.x("X"), w.dtype("X"), BOOL))


@to_onnx()
def _to_onnx_not_equal(w: WrittenOp) -> OnnxValue:
    return w.node("Not", w.node("Equal", *to_onnx_pair(w)))


@to_onnx()
def _to_onnx_isfinite_v2(w: WrittenOp) -> OnnxValue:
    x = w.x("X")
    if not w.dtype("X").is_floating:
        return w.node("Equal", x, x)
    return w.node("Not", w.node("Or", w.node("IsInf", x), w.node("IsNaN", x)))


@to_onnx()
def _to_onnx_bitwise_not(w: WrittenOp) -> OnnxValue:
    if w.dtype("X") is BOOL:
        return w.node("Not", w.x("X"))
    w.needs(18)
    return w.node("BitwiseNot", w.x("X"))


@to_onnx()
def _to_onnx_where(w: WrittenOp) -> OnnxValue:
    dtype = w.dtype("X")
    if dtype in (BOOL, INT8, INT16):
        return w.cast(w.node("Where", w.x("Condition"), w.cast(w.x("X"), dtype, INT32), w.cast(w.x("Y"), dtype, INT32)), INT32, dtype)
    return w.node("Where", w.x("Condition"), w.x("X"), w.x("Y"))


@to_onnx()
def _to_onnx_equal_all(w: WrittenOp) -> Any:
    x, y = term(w, "X"), term(w, "Y")
    mine, others = w.spec("X").known_dims, w.spec("Y").known_dims
    if len(mine) != len(others) or any(isinstance(a, int) and isinstance(b, int) and a != b for a, b in zip(mine, others, strict=True)):
        return constant(w, False, BOOL).value
    same = x.same(y) | (abs(x - y) < 1e-8) if x.of.is_floating else x.same(y)
    return _all(same)


def _all(mask: Term) -> Any:
    w = mask.w
    return Term(w, w.node("ReduceSum", (~mask).cast(INT64).value, keepdims=0), INT64).same(0).value


def _close(w: WrittenOp) -> Term:
    x, y = term(w, "Input"), term(w, "Other")
    rtol, atol = (term(w, s).shaped(1).cast(x.of) if w.has(s) else constant(w, [float(getattr(w.of, s.lower()))], x.of) for s in ("Rtol", "Atol"))
    close = (abs(x - y) <= atol + rtol * abs(y)) & ~_to_onnx_infinite(y) | x.same(y)
    return close | (x.node("IsNaN", to=BOOL) & y.node("IsNaN", to=BOOL)) if w.of.equal_nan else close


def _to_onnx_infinite(x: Term) -> Term:
    return x.node("IsInf", to=BOOL)


@to_onnx()
def _to_onnx_isclose(w: WrittenOp) -> Any:
    return _close(w).value


@to_onnx()
def _to_onnx_allclose(w: WrittenOp) -> Any:
    return _all(_close(w))


@to_onnx("isinf", "isnan")
def _any_of(w: WrittenOp) -> Any:
    x = term(w, "X")
    if not x.of.is_floating:
        return w.array([False])
    mask = x.node("IsInf" if w.op.type == "isinf" else "IsNaN", to=BOOL).cast(FP32)
    return w.reshape((mask.node("ReduceSum", keepdims=0) > 0.0).value, 1)


@to_onnx("bitwise_left_shift", "bitwise_right_shift")
def _to_onnx_shift(w: WrittenOp) -> Any:
    x, y = (Term(w, v, w.dtype("x")) for v in _pair_of(w))
    wide, y = x.cast(INT64), y.cast(INT64)
    if w.op.type == "bitwise_left_shift":
        factor = Term(w, w.node("Pow", w.number(2, INT64), y.most(0).least(62).value), INT64)
        return ((y < 0) | (y >= 8 * x.of.itemsize)).where(0, (y >= 63).where(wide * factor * 2, wide * factor)).cast(x.of).value
    factor = Term(w, w.node("Pow", w.number(2, INT64), ((y < 0) | (y > 62)).where(62, y).value), INT64)
    if not w.of.is_arithmetic and x.of.name != "uint8":
        raise Refused("a number with a sign that is shifted as one without")
    return ((wide - wide % factor) / factor).cast(x.of).value


def _pair_of(w: WrittenOp) -> tuple[OnnxValue, OnnxValue]:
    return w.x("x"), w.x("y")


# --- from torch


_COMPARED: Final = {"eq": "equal", "ne": "not_equal", "lt": "less_than", "le": "less_equal", "gt": "greater_than", "ge": "greater_equal"}


_LOGICAL: Final[dict[str, Any]] = {"logical_and": layer.logical_and, "logical_or": layer.logical_or, "logical_xor": layer.logical_xor}


_BITS: Final = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "__and__": "and", "__or__": "or", "__xor__": "xor"}


@from_torch(*_COMPARED)
def _compare(t: TorchCall, x: Any, y: Any) -> Any:
    dtype = t.promoted()
    return getattr(layer, _COMPARED[t.name])(*from_torch_pair(t, x, y, INT32 if dtype is BOOL and t.name not in ("eq", "ne") else dtype))


@from_torch(*_LOGICAL)
def _logical(t: TorchCall, x: Any, y: Any) -> Any:
    return _LOGICAL[t.name](*from_torch_pair(t, x, y, BOOL))


@from_torch()
def _from_torch_logical_not(t: TorchCall, x: Variable) -> Any:
    return layer.logical_not(t.cast(x, BOOL))


@from_torch(*_BITS)
def _bits(t: TorchCall, x: Any, y: Any) -> Any:
    return getattr(layer, f"bitwise_{_BITS[t.name]}")(*from_torch_pair(t, x, y, t.dtype))


@from_torch()
def _from_torch_bitwise_not(t: TorchCall, x: Variable) -> Any:
    return layer.logical_not(x) if t.dtype is BOOL else layer.bitwise_not(x)


@from_torch("isnan", "isinf", "isfinite")
def _is(t: TorchCall, x: Variable) -> Any:
    return {"isnan": layer.is_nan, "isinf": layer.is_inf, "isfinite": layer.is_finite}[t.name](x)


@from_torch()
def _from_torch_where(t: TorchCall, condition: Variable, x: Any = None, y: Any = None) -> Any:
    if x is None:
        rows = layer.nonzero(condition)
        return [layer.squeeze(column, [1]) for column in layer.split(rows, t.rank(condition), 1)]
    x, y = from_torch_pair(t, x, y, t.dtype)
    return t.where(condition, x, y)


@from_torch()
def _from_torch_masked_fill(t: TorchCall, x: Variable, mask: Variable, value: Any) -> Any:
    x, value = from_torch_pair(t, x, value, t.dtype)
    return t.where(mask, value, x)


@from_torch("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
def _from_torch_shift(t: TorchCall, x: Any, y: Any) -> Any:
    left = t.name in ("__lshift__", "bitwise_left_shift")
    return (layer.bitwise_left_shift if left else layer.bitwise_right_shift)(*from_torch_pair(t, x, y, t.dtype))


# --- to torch's code


# --- to torch


def _tolerance(w: PlainOp, slot: str, text: str) -> str:
    return f"float({w.x(slot)})" if w.has(slot) else number_code(float(text))


@to_torch("isclose", "allclose")
def _to_torch_isclose(w: PlainOp) -> str:
    tolerances = f"rtol={_tolerance(w, 'Rtol', w.of.rtol)}, atol={_tolerance(w, 'Atol', w.of.atol)}"
    code = f"torch.isclose({w.x('Input')}, {w.x('Other')}, {tolerances}, equal_nan={w.of.equal_nan})"
    return f"{code}.all()" if w.op.type == "allclose" else code


@to_torch()
def _to_torch_equal_all(w: PlainOp) -> str:
    if w.dims("X") != w.dims("Y"):
        return w.call(helpers.extra_functions.all_equal, w.x("X"), w.x("Y"))
    if not w.dtype("X").is_floating:
        return f"torch.all({w.x('X')} == {w.x('Y')})"
    x, y = w.let(w.x("X")), w.let(w.x("Y"))
    return f"torch.all(({x} == {y}) | (torch.abs({x} - {y}) < 1e-8))"


@to_torch()
def _to_torch_bitwise_right_shift(w: PlainOp) -> str:
    if w.of.is_arithmetic:
        return f"torch.bitwise_right_shift({w.x('x')}, {w.x('y')})"
    return w.call(helpers.extra_functions.logical_right_shift, w.x("x"), w.x("y"))
