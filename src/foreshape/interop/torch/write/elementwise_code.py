"""Torch code of elementwise arithmetic, comparisons, activations and casts."""

from __future__ import annotations

import math
from typing import Any, Final

from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import extra_functions
from foreshape.interop.torch.write.kernel_rules import kernel_rule
from foreshape.interop.torch.write.plain_op import PlainOp, number_code

_UNARY: Final = {
    "relu": "F.relu",
    "sigmoid": "torch.sigmoid",
    "tanh": "torch.tanh",
    "abs": "torch.abs",
    "sign": "torch.sign",
    "silu": "F.silu",
    "logsigmoid": "F.logsigmoid",
    "tanh_shrink": "F.tanhshrink",
    "softsign": "F.softsign",
    "square": "torch.square",
    "floor": "torch.floor",
    "ceil": "torch.ceil",
    "trunc": "torch.trunc",
    "bitwise_not": "torch.bitwise_not",
    "logical_not": "torch.logical_not",
    "isnan_v2": "torch.isnan",
    "isinf_v2": "torch.isinf",
    "isfinite_v2": "torch.isfinite",
}
_OF_FLOATS: Final = """
exp expm1 log log2 log10 log1p sqrt rsqrt reciprocal sin cos tan asin acos atan sinh cosh asinh acosh atanh erf erfinv digamma lgamma
"""
_FLOATING: Final = tuple(_OF_FLOATS.split())


@writes(*_UNARY)
def _unary(w: PlainOp) -> str:
    return f"{_UNARY[w.op.type]}({w.x('X')})"


@writes(*_FLOATING)
def _floating(w: PlainOp) -> str:
    return f"torch.{w.op.type}({w.cast(w.x('X'), w.dtype('X'), w.result('Out').known_dtype)})"


@writes("assign", "share_data", "memcpy", "memcpy_d2h")
def _same(w: PlainOp) -> str:
    return w.x("X")


_INFIX: Final = {
    "elementwise_add": "+",
    "elementwise_sub": "-",
    "elementwise_mul": "*",
    "equal": "==",
    "not_equal": "!=",
    "less_than": "<",
    "less_equal": "<=",
    "greater_than": ">",
    "greater_equal": ">=",
    "bitwise_and": "&",
    "bitwise_or": "|",
    "bitwise_xor": "^",
}
_CALLS: Final = {
    "elementwise_max": "torch.maximum",
    "elementwise_min": "torch.minimum",
    "elementwise_pow": "torch.pow",
    "elementwise_fmax": "torch.fmax",
    "elementwise_fmin": "torch.fmin",
    "elementwise_mod": "torch.remainder",
    "logical_and": "torch.logical_and",
    "logical_or": "torch.logical_or",
    "logical_xor": "torch.logical_xor",
    "atan2": "torch.atan2",
}


def pair(w: PlainOp) -> tuple[str, str]:
    """Return both operands, with dims of 1 put in for ``axis``."""
    axis = w.op.attributes.values.get("axis", -1)
    first, second = (o.name for o in w.operator.schema.operands[:2])
    x, y = w.x(first), w.x(second)
    if axis == -1:
        return x, y
    mine, others = w.rank("X"), w.rank("Y")
    low, high = min(mine, others), max(mine, others)
    more = high - axis - low
    if low == 0 or mine == others or more <= 0:
        return x, y
    behind = f"[..., {', '.join(['None'] * more)}]"
    return (x, f"{y}{behind}") if mine >= others else (f"{x}{behind}", y)


@writes(*_INFIX)
def _infix(w: PlainOp) -> str:
    x, y = pair(w)
    return f"{x} {_INFIX[w.op.type]} {y}"


@writes(*_CALLS)
def _call(w: PlainOp) -> str:
    x, y = pair(w)
    to = w.result(w.operator.schema.results[0].name).known_dtype
    if w.op.type == "atan2" and w.dtype(w.operator.schema.operands[0].name) is not to:
        x, y = f"{x}.to({w.type(to)})", f"{y}.to({w.type(to)})"
    return f"{_CALLS[w.op.type]}({x}, {y})"


@writes("elementwise_div")
def _divide(w: PlainOp) -> str:
    x, y = pair(w)
    if w.result("Out").known_dtype.is_integer:
        return w.call(extra_functions.truncated_quotient, x, y)
    return f"{x} / {y}"


@writes("elementwise_floordiv")
def _floor_divide(w: PlainOp) -> str:
    x, y = pair(w)
    return f"{x}.detach() // {y}.detach()" if w.dtype("X").is_floating else f"{x} // {y}"


@writes("scale")
def _scale(w: PlainOp) -> str:
    x, of = w.x("X"), w.dtype("X")
    scale, bias = w.number(w.of.scale, of) if not of.is_complex else repr(w.of.scale), w.number(w.of.bias, of) if not of.is_complex else repr(w.of.bias)
    zero = w.of.bias == 0.0 or (of.is_integer and int(w.of.bias) == 0)
    if w.has("ScaleTensor"):
        scale = w.cast(f"{w.x('ScaleTensor')}.reshape(())", w.dtype("ScaleTensor"), of)
    elif w.of.scale == 1.0:
        return w.x("X") if zero else f"{x} + {bias}"
    if zero:
        return f"{x} * {scale}"
    return f"{x} * {scale} + {bias}" if w.of.bias_after_scale else f"({x} + {bias}) * {scale}"


@writes("cast")
def _cast(w: PlainOp) -> str:
    return w.cast(w.x("X"), w.dtype("X"), w.result("Out").known_dtype)


@writes("pow")
def _power(w: PlainOp) -> Any:
    of = w.dtype("X")
    if w.has("FactorTensor"):
        factor = w.cast(f"{w.x('FactorTensor')}.reshape(())", w.dtype("FactorTensor"), of)
        return f"torch.pow({w.x('X')}, {factor})"
    if of.is_integer and w.of.factor < 0:
        return kernel_rule(w)
    return f"{w.x('X')} ** {w.number(w.of.factor, of)}"


@writes("clip")
def _clip(w: PlainOp) -> str:
    x, of = w.x("X"), w.dtype("X")
    bounds: list[str] = []
    for slot, name in (("Min", "min"), ("Max", "max")):
        if w.has(slot):
            bounds.append(w.cast(f"{w.x(slot)}.reshape(())", w.dtype(slot), of))
        else:
            value = float(getattr(w.of, name))
            if not of.is_floating:
                limit = 2 ** (8 * of.itemsize - 1)
                value = max(-limit, min(limit - 1, int(value))) if math.isfinite(value) else (limit - 1 if value > 0 else -limit)
            bounds.append(number_code(value) if of.is_floating else str(value))
    if w.has("Min") != w.has("Max"):
        return f"torch.minimum(torch.maximum({x}, {_tensor(w, bounds[0], w.has('Min'))}), {_tensor(w, bounds[1], w.has('Max'))})"
    return f"torch.clamp({x}, {', '.join(bounds)})"


def _tensor(w: PlainOp, bound: str, is_one: bool) -> str:
    return bound if is_one else f"torch.tensor({bound}, dtype={w.type(w.dtype('X'))}, device={w.device()})"


@writes("relu6")
def _relu6(w: PlainOp) -> str:
    if w.of.threshold == 6.0:
        return f"F.relu6({w.x('X')})"
    return f"torch.clamp({w.x('X')}, 0.0, {number_code(w.of.threshold)})"


@writes("brelu")
def _brelu(w: PlainOp) -> str:
    return f"torch.clamp({w.x('X')}, {number_code(w.of.t_min)}, {number_code(w.of.t_max)})"


_BY_NUMBER: Final = {
    "leaky_relu": ("F.leaky_relu", "alpha"),
    "elu": ("F.elu", "alpha"),
    "celu": ("F.celu", "alpha"),
    "hard_shrink": ("F.hardshrink", "threshold"),
}


@writes(*_BY_NUMBER)
def _by_number(w: PlainOp) -> str:
    function, attribute = _BY_NUMBER[w.op.type]
    return f"{function}({w.x('X')}, {number_code(getattr(w.of, attribute))})"


@writes("softshrink")
def _soft_shrink(w: PlainOp) -> str:
    return f"F.softshrink({w.x('X')}, {number_code(w.op.attributes.values.get('lambda', 0.5))})"


@writes("thresholded_relu")
def _thresholded_relu(w: PlainOp) -> str:
    x = w.x("X")
    return f"F.threshold({x}, {w.number(w.of.threshold, w.dtype('X'))}, {w.number(w.of.value, w.dtype('X'))})"


@writes("hard_sigmoid")
def _hard_sigmoid(w: PlainOp) -> str:
    return f"torch.clamp({w.x('X')} * {number_code(w.of.slope)} + {number_code(w.of.offset)}, 0.0, 1.0)"


@writes("hard_swish")
def _hard_swish(w: PlainOp) -> str:
    if (w.of.threshold, w.of.scale, w.of.offset) == (6.0, 6.0, 3.0):
        return f"F.hardswish({w.x('X')})"
    return f"{w.x('X')} * torch.clamp({w.x('X')} + {number_code(w.of.offset)}, 0.0, {number_code(w.of.threshold)}) / {number_code(w.of.scale)}"


@writes("swish")
def _swish(w: PlainOp) -> str:
    beta = float(w.op.attributes.values.get("beta", 1.0))
    return f"F.silu({w.x('X')})" if beta == 1.0 else f"{w.x('X')} * torch.sigmoid({w.x('X')} * {number_code(beta)})"


@writes("gelu")
def _gelu(w: PlainOp) -> str:
    return f'F.gelu({w.x("X")}, approximate="tanh")' if w.of.approximate else f"F.gelu({w.x('X')})"


@writes("softplus")
def _softplus(w: PlainOp) -> str:
    settings = [number_code(w.of.beta), number_code(w.of.threshold)]
    return f"F.softplus({', '.join([w.x('X'), *([] if settings == ['1.0', '20.0'] else settings)])})"


@writes("mish")
def _mish(w: PlainOp) -> str:
    if w.of.threshold == 20.0:
        return f"F.mish({w.x('X')})"
    return f"{w.x('X')} * torch.tanh(F.softplus({w.x('X')}, 1.0, {number_code(w.of.threshold)}))"


@writes("prelu")
def _prelu(w: PlainOp) -> str:
    x, alpha, rank = w.x("X"), w.x("Alpha"), w.rank("X")
    if w.of.mode == "all":
        return f"torch.where({x} > 0, {x}, {x} * {alpha}.reshape(()))"
    if w.of.mode == "channel":
        last = w.of.data_format in ("NHWC", "NDHWC", "NLC")
        if not last and w.rank("Alpha") == 1:
            return f"F.prelu({x}, {alpha})"
        shape = ", ".join(["-1", *([] if last or rank < 2 else ["1"] * (rank - 2))])
        return f"torch.where({x} > 0, {x}, {x} * {alpha}.reshape({shape}))"
    return f"torch.where({x} > 0, {x}, {x} * {alpha})"


@writes("round")
def _round(w: PlainOp) -> str:
    x, decimals = w.x("X"), int(w.of.decimals)
    if not w.dtype("X").is_floating:
        return x
    if w.of.round_type == 0:
        return f"torch.round({x})" if not decimals else f"torch.round({x}, decimals={decimals})"
    return w.call(extra_functions.round_away_from_zero, x, decimals)


@writes("where")
def _where(w: PlainOp) -> str:
    return f"torch.where({w.x('Condition')}, {w.x('X')}, {w.x('Y')})"


@writes("softmax", "log_softmax")
def _softmax(w: PlainOp) -> str:
    if w.rank("X") == 0:
        return f"torch.{'ones' if w.op.type == 'softmax' else 'zeros'}_like({w.x('X')})"
    return f"torch.{w.op.type}({w.x('X')}, {w.of.axis})"


@writes("increment")
def _increment(w: PlainOp) -> str:
    return f"{w.x('X')} + {w.number(w.of.step, w.dtype('X'))}"


@writes("sum")
def _sum(w: PlainOp) -> str:
    return " + ".join(w.all("X"))
