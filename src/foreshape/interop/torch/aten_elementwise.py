"""Import of elementwise arithmetic, comparisons, activations, casts and fillings."""

from __future__ import annotations

import functools
import math
import operator
from typing import Any, Final

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.open_size import OpenSize, as_variable, compute, size_of, value_of
from foreshape.interop.torch.torch_call import TorchCall, is_held
from foreshape.interop.torch.written_gelu import gelu_operand
from foreshape.program import Variable
from foreshape.spec import BOOL, COMPLEX, FP64, INT32, INT64, DType

_SAME: Final = (
    "relu sigmoid tanh exp log log1p log2 log10 expm1 sqrt rsqrt sin cos tan asin acos atan sinh cosh asinh acosh atanh erf reciprocal silu mish "
    "log_sigmoid relu6 softsign lgamma digamma erfinv"
)
"""The operators of one tensor of floats with the same name in `foreshape.layer`."""


@aten(*_SAME.split())
def _unary(t: TorchCall, x: Any) -> Variable:
    return getattr(layer, t.name)(t.tensor(x, t.dtype))


@aten("abs", "square", "neg", "floor", "ceil", "sign", "sgn")
def _of_numbers(t: TorchCall, x: Variable) -> Variable:
    name = t.name
    if name == "neg":
        return layer.scale(x, -1.0)
    if name in ("sign", "sgn") and not t.dtype.is_floating:
        return layer.subtract(layer.cast(layer.greater_than(x, 0), t.dtype), layer.cast(layer.less_than(x, 0), t.dtype))
    if name in ("floor", "ceil") and not t.dtype.is_floating:
        return layer.assign(x)
    made = {"abs": layer.abs, "square": layer.square, "floor": layer.floor, "ceil": layer.ceil}.get(name, layer.sign)(x)
    made.stop_gradient = made.stop_gradient or name in ("sign", "sgn")  # not 0 times a slope that may be infinite
    return made


@aten("round")
def _round(t: TorchCall, x: Variable, decimals: int = 0) -> Variable:
    if not t.dtype.is_floating:
        return layer.assign(x)
    return t.op("round", {"round_type": 0, "decimals": decimals} if decimals else {"round_type": 0}, X=x)


@aten("trunc", "fix")
def _trunc(t: TorchCall, x: Variable) -> Variable:
    return layer.trunc(x) if t.dtype.is_floating else layer.assign(x)


# --- two tensors


def pair(t: TorchCall, x: Any, y: Any, of: DType) -> tuple[Variable, Variable]:
    """Return two operands in an element type, numbers among them."""
    return t.tensor(x, of), t.tensor(y, of)


def scaled(t: TorchCall, y: Any, alpha: Any, of: DType) -> Any:
    """Return ``alpha * y``."""
    if isinstance(alpha, (int, float)) and abs(alpha) < 2**24:
        return y * alpha if isinstance(y, (int, float)) else t.scale(t.tensor(y, of), alpha)
    return layer.multiply(*pair(t, y, alpha, of))


@aten("add", "sub", "rsub")
def _add(t: TorchCall, x: Any, y: Any, alpha: Any = 1) -> Any:
    of, name = t.dtype, t.name
    if name == "rsub":
        x, y = y, x
    if of is BOOL:
        return layer.logical_or(*pair(t, x, y, BOOL))
    y = scaled(t, y, alpha, of)
    if is_held(y, of) and isinstance(x, Variable):
        return layer.scale(t.cast(x, of), 1.0, float(y if name == "add" else -y))
    if is_held(x, of) and name != "add":
        return layer.scale(t.tensor(y, of), -1.0, float(x))
    return (layer.add if name == "add" else layer.subtract)(*pair(t, x, y, of))


@aten("mul")
def _multiply(t: TorchCall, x: Any, y: Any) -> Any:
    if t.dtype is BOOL:
        return layer.logical_and(*pair(t, x, y, BOOL))
    if is_held(y, t.dtype) and isinstance(x, Variable):
        return layer.scale(t.cast(x, t.dtype), float(y))
    of = gelu_operand(t.node) if t.importer.rolled is None else None
    return layer.multiply(*pair(t, x, y, t.dtype)) if of is None or t.importer.writes.has_any else layer.gelu(t.importer.found[of], True)


@aten("div", "true_divide")
def _divide(t: TorchCall, x: Any, y: Any, rounding_mode: str | None = None) -> Any:
    of = t.dtype
    if rounding_mode is None:
        return layer.divide(*pair(t, x, y, of))
    if rounding_mode == "floor":
        return layer.floor_divide(*pair(t, x, y, of))
    if of.is_floating:
        return layer.trunc(layer.divide(*pair(t, x, y, of)))
    return layer.divide(*pair(t, x, y, of))


@aten("floor_divide")
def _floor_divide(t: TorchCall, x: Any, y: Any) -> Any:
    return layer.floor_divide(*pair(t, x, y, t.dtype))


@aten("remainder")
def _remainder(t: TorchCall, x: Any, y: Any) -> Any:
    return layer.remainder(*pair(t, x, y, t.dtype))


def change(x: Variable) -> Variable:
    """Return zeros with the gradient of x."""
    held = layer.assign(x)
    held.stop_gradient = True
    return layer.subtract(x, held)


@aten("maximum", "minimum")
def _extreme(t: TorchCall, x: Any, y: Any) -> Any:
    return extreme(t, t.name == "maximum", *pair(t, x, y, t.dtype))


@aten("fmod")
def _fmod(t: TorchCall, x: Any, y: Any) -> Any:
    x, y = pair(t, x, y, t.dtype)
    left = layer.remainder(layer.abs(x), layer.abs(y))
    left = layer.where(layer.less_than(x, 0), layer.scale(left, -1.0), left)
    if not t.dtype.is_floating:
        return left
    left.stop_gradient = True
    whole = layer.round(layer.divide(layer.subtract(x, left), y))
    whole.stop_gradient = True
    return layer.add(left, layer.subtract(change(x), layer.multiply(whole, change(y))))


@aten("pow")
def _power(t: TorchCall, x: Any, y: Any) -> Any:
    of = t.dtype
    if isinstance(y, (int, float)) and isinstance(x, Variable):
        x = t.cast(x, of)
        if y == 2:
            return layer.multiply(x, x) if of in COMPLEX else layer.square(x)
        if y == 0.5:
            return layer.sqrt(x)
        if y == -0.5:
            return layer.rsqrt(x)
        if y == 1:
            return layer.assign(x)
        return t.power(x, y)
    return t.op("elementwise_pow", None, X=t.tensor(x, of), Y=t.tensor(y, of))


def extreme(t: TorchCall, largest: bool, x: Variable, y: Variable, ties: str = "both") -> Variable:
    """Return the larger, or the smaller, of each two numbers; the gradient of equal ones is shared, or one's."""
    return t.op("elementwise_max" if largest else "elementwise_min", {"ties": ties} if x.spec.known_dtype.is_floating else None, X=x, Y=y)


_TWO: Final[dict[str, Any]] = {"fmax": layer.fmax, "fmin": layer.fmin, "atan2": layer.atan2}
_COMPARED: Final = {"eq": "equal", "ne": "not_equal", "lt": "less_than", "le": "less_equal", "gt": "greater_than", "ge": "greater_equal"}
_LOGICAL: Final[dict[str, Any]] = {"logical_and": layer.logical_and, "logical_or": layer.logical_or, "logical_xor": layer.logical_xor}
_BITS: Final = {"bitwise_and": "and", "bitwise_or": "or", "bitwise_xor": "xor", "__and__": "and", "__or__": "or", "__xor__": "xor"}


@aten(*_TWO)
def _two(t: TorchCall, x: Any, y: Any) -> Any:
    return _TWO[t.name](*pair(t, x, y, t.dtype))


@aten(*_COMPARED)
def _compare(t: TorchCall, x: Any, y: Any) -> Any:
    of = t.promoted()
    return getattr(layer, _COMPARED[t.name])(*pair(t, x, y, INT32 if of is BOOL and t.name not in ("eq", "ne") else of))


@aten(*_LOGICAL)
def _logical(t: TorchCall, x: Any, y: Any) -> Any:
    return _LOGICAL[t.name](*pair(t, x, y, BOOL))


@aten("logical_not")
def _logical_not(t: TorchCall, x: Variable) -> Any:
    return layer.logical_not(t.cast(x, BOOL))


@aten(*_BITS)
def _bits(t: TorchCall, x: Any, y: Any) -> Any:
    return getattr(layer, f"bitwise_{_BITS[t.name]}")(*pair(t, x, y, t.dtype))


@aten("bitwise_not")
def _bitwise_not(t: TorchCall, x: Variable) -> Any:
    return layer.logical_not(x) if t.dtype is BOOL else layer.bitwise_not(x)


@aten("isnan", "isinf", "isfinite")
def _is(t: TorchCall, x: Variable) -> Any:
    return {"isnan": layer.is_nan, "isinf": layer.is_inf, "isfinite": layer.is_finite}[t.name](x)


@aten("where")
def _where(t: TorchCall, condition: Variable, x: Any = None, y: Any = None) -> Any:
    if x is None:
        rows = layer.nonzero(condition)
        return [layer.squeeze(one, [1]) for one in layer.split(rows, t.rank(condition), 1)]
    x, y = pair(t, x, y, t.dtype)
    return t.where(condition, x, y)


@aten("masked_fill")
def _masked_fill(t: TorchCall, x: Variable, mask: Variable, value: Any) -> Any:
    x, value = pair(t, x, value, t.dtype)
    return t.where(mask, value, x)


@aten("clamp", "clamp_min", "clamp_max", "hardtanh", "clip")
def _clamp(t: TorchCall, x: Variable, min: Any = None, max: Any = None) -> Any:
    of, name = t.dtype, t.name
    x = t.cast(x, of)
    if name == "clamp_max":
        min, max = None, min
    if name == "hardtanh":
        min, max = -1.0 if min is None else min, 1.0 if max is None else max
    if isinstance(min, (int, float)) and isinstance(max, (int, float)) and min > max:
        return layer.fill_like(x, float(max), of) if is_held(max, of) else layer.expand_as(t.tensor(max, of), x)
    plain = all(b is None or is_held(b, of) for b in (min, max))
    if plain and of.is_floating:
        bounds = {"min": -math.inf if min is None else float(min), "max": math.inf if max is None else float(max)}
        return t.op("clip", bounds if name == "hardtanh" else {**bounds, "closed": True}, X=x)
    if of is FP64 and all(b is None or isinstance(b, (int, float)) for b in (min, max)):  # torch's slope at the bounds, which hardtanh has not
        for bound, below, beyond in ((min, layer.less_than, layer.less_equal), (max, layer.greater_than, layer.greater_equal)):
            if bound is not None:
                limit = t.tensor(bound, of)
                x = t.where((beyond if name == "hardtanh" else below)(x, limit), limit, x)
        return x
    if min is not None:
        x = extreme(t, True, x, t.tensor(min, of), "X")
    return x if max is None else extreme(t, False, x, t.tensor(max, of), "X")


@aten("addcmul", "addcdiv")
def _addcmul(t: TorchCall, x: Any, y: Any, z: Any, value: Any = 1) -> Any:
    y, z = pair(t, y, z, t.dtype)
    made = layer.multiply(y, z) if t.name == "addcmul" else layer.divide(y, z)
    return layer.add(t.tensor(x, t.dtype), scaled(t, made, value, t.dtype))


@aten("signbit")
def _signbit(t: TorchCall, x: Variable) -> Any:
    if not x.spec.known_dtype.is_floating:
        return layer.less_than(t.cast(x, INT64), 0)
    return layer.less_than(t.where(layer.equal(x, t.tensor(0.0, x.dtype)), layer.reciprocal(x), x), 0.0)  # -0.0 is below zero


@aten("__lshift__", "__rshift__", "bitwise_left_shift", "bitwise_right_shift")
def _shift(t: TorchCall, x: Any, y: Any) -> Any:
    left = t.name in ("__lshift__", "bitwise_left_shift")
    return (layer.bitwise_left_shift if left else layer.bitwise_right_shift)(*pair(t, x, y, t.dtype))


@aten("frac", "heaviside", "copysign")
def _parts(t: TorchCall, x: Variable, y: Any = None) -> Any:
    if t.name == "frac":
        return layer.frac(x)
    if t.name == "heaviside":
        return layer.heaviside(*layer.broadcast_tensors(pair(t, x, y, t.dtype)))
    size = layer.abs(t.tensor(x, t.dtype))
    return t.where(_signbit(t, t.tensor(y, t.dtype)), layer.scale(size, -1.0), size)


@aten("diff")
def _diff(t: TorchCall, x: Variable, n: int = 1, dim: int = -1, prepend: Any = None, append: Any = None) -> Any:
    axis = t.axis(x, dim)
    ends = [one for one in (prepend, x, append) if one is not None]
    x = layer.concat(ends, axis) if len(ends) > 1 else x
    for _ in range(n):
        after, before = layer.slice(x, [axis], [1], [2**31 - 1]), layer.slice(x, [axis], [0], [-1])
        x = layer.not_equal(after, before) if x.dtype is BOOL else layer.subtract(after, before)
    return x


@aten("hypot")
def _hypot(t: TorchCall, x: Any, y: Any) -> Any:
    x, y = pair(t, x, y, t.dtype)
    return layer.sqrt(layer.add(layer.square(x), layer.square(y)))


@aten("lerp")
def _lerp(t: TorchCall, x: Variable, y: Variable, weight: Any) -> Any:
    if isinstance(weight, Variable):  # ours has no gradient of a tensor of weights
        return layer.add(x, layer.multiply(weight, layer.subtract(y, x)))
    return layer.lerp(x, y, weight)


# --- numbers


def _filled(t: TorchCall, size: Any, value: Any, of: DType) -> Any:
    if isinstance(value, (Variable, OpenSize)):
        return layer.expand(t.tensor(value, of), t.sizes(size)) if size else t.tensor(value, of)
    return layer.fill_constant(t.sizes(size), of, value)


@aten("zeros", "ones", "empty")
def _constant(t: TorchCall, size: Any, **_: Any) -> Any:
    return _filled(t, size, 1 if t.name == "ones" else 0, t.dtype)


@aten("full")
def _full(t: TorchCall, size: Any, value: Any, **_: Any) -> Any:
    return _filled(t, size, value, t.dtype)


@aten("new_zeros", "new_ones", "new_empty")
def _new(t: TorchCall, x: Variable, size: Any, **_: Any) -> Any:
    return _filled(t, size, 1 if t.name == "new_ones" else 0, t.dtype)


@aten("new_full")
def _new_full(t: TorchCall, x: Variable, size: Any, value: Any, **_: Any) -> Any:
    return _filled(t, size, value, t.dtype)


@aten("zeros_like", "ones_like", "empty_like", "zero")
def _like(t: TorchCall, x: Variable, **_: Any) -> Any:
    return layer.fill_like(x, 1.0 if t.name == "ones_like" else 0.0, t.dtype)


@aten("full_like", "fill")
def _full_like(t: TorchCall, x: Variable, value: Any, **_: Any) -> Any:
    return layer.expand_as(t.tensor(value, t.dtype), x) if isinstance(value, (Variable, OpenSize)) else layer.fill_like(x, float(value), t.dtype)


@aten("scalar_tensor", "lift_fresh_number")
def _scalar(t: TorchCall, value: Any, **_: Any) -> Any:
    return t.tensor(value, t.dtype)


@aten("arange")
def _arange(t: TorchCall, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Any:
    if end is None:
        start, end = 0, start
    ends = [layer.cast(as_variable(v), t.dtype) if isinstance(v, OpenSize) else v for v in (start, end, step)]
    return layer.range(*ends, dtype=t.dtype)


@aten("linspace")
def _linspace(t: TorchCall, start: Any, end: Any, steps: Any, **_: Any) -> Any:
    return layer.linspace(start, end, as_variable(steps) if isinstance(steps, OpenSize) else steps, t.dtype)


@aten("eye")
def _eye(t: TorchCall, n: Any, m: Any = None, **_: Any) -> Any:
    if not isinstance(n, OpenSize) and not isinstance(m, OpenSize):
        return layer.eye(n, m, t.dtype)
    rows, columns = (layer.range(0, as_variable(size), 1, dtype=INT64) for size in (n, n if m is None else m))
    return layer.cast(layer.equal(layer.unsqueeze(rows, [1]), columns), t.dtype)


# --- sizes and demands


@aten("sym_size")
def _sym_size(t: TorchCall, x: Variable, dim: int) -> Any:
    found = x.spec.known_dims[dim]
    return size_of(*t.importer.place_of(found, x, dim))


@aten("sym_numel", "numel")
def _sym_numel(t: TorchCall, x: Variable) -> Any:
    return functools.reduce(functools.partial(compute, operator.mul), [size_of(x, axis) for axis in range(t.rank(x))], 1)


@aten("item", "_local_scalar_dense")
def _item(t: TorchCall, x: Variable) -> Any:
    if not x.spec.known_dtype.is_integer:
        raise Refused("a number of a tensor of floats, taken out of it")
    return value_of(x)


@aten(
    "_assert_scalar",
    "_assert_async",
    "_assert_tensor_metadata",
    "sym_constrain_range",
    "sym_constrain_range_for_size",
    "_check_is_size",
    "sym_constrain_range_",
)
def _demand(t: TorchCall, *_: Any, **__: Any) -> Any:
    return None
