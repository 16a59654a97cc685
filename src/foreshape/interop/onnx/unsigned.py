"""Numbers of 16, 32 and 64 bits without a sign: few kernels take them, and nodes work with wider numbers, or with the same bits as numbers with a sign."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Final

from foreshape import layer
from foreshape.core.spec import INT32, INT64, UINT16, UINT32, UINT64, UNSIGNED, DType
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.onnx.call import Call

_WORKED_IN: Final = {UINT16: INT32, UINT32: INT64, UINT64: INT64}
_AS_THEY_ARE: Final = frozenset({"Identity", "Cast", "CastLike", "BitCast", "If", "Loop", "Scan", "Optional", "OptionalGetElement"})
"""Operators for them."""
_COMPARISONS = ("Equal", "Greater", "Less", "GreaterOrEqual", "LessOrEqual")
_BY_ORDER: Final = frozenset((*_COMPARISONS, "Max", "Min", "Clip", "TopK", "ArgMax", "ArgMin", "ReduceMax", "ReduceMin", "Unique"))
"""Operators for which the order alone counts: numbers of 64 bits, less 2^63, have it too."""
_LIKE: Final = {"Where": 1, "OneHot": 2}
"""The operand whose element type the results have, where it is not the first."""
_RESULTS: Final = {"TopK": 1, "Unique": 1, **dict.fromkeys(("Shape", "Size", "NonZero", "ArgMax", "ArgMin", "QuantizeLinear", "DequantizeLinear"), 0)}
"""The number of results of the operand's type, where it is not all of them."""


def _shift(c: Call, x: Variable) -> Variable:
    return x + c.like(-(2**63), x)  # 2^63 is the same, in 64 bits


def widened(c: Call, x: Variable) -> Variable:
    """Return an operand in the element type of the node's work; ``x`` itself if a kernel takes it."""
    dtype = x.spec.dtype
    if dtype not in UNSIGNED or c.node.operator in _AS_THEY_ARE:
        return x
    out = c.cast(x, _WORKED_IN[dtype])
    return _shift(c, out) if dtype is UINT64 and c.node.operator in _BY_ORDER else out


def own_type(c: Call, index: int) -> DType | None:
    """Return the element type of an operand in the file; None if it is left out, or unknown."""
    value = c.value(index)
    return c.importer.type_in_file(value) if value is not None and not isinstance(value, (list, tuple)) else None


def narrowed(c: Call, results: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the results of a node in the element type of its operand."""
    operator = c.node.operator
    if operator in _AS_THEY_ARE or not c.node.inputs:
        return results
    dtype = own_type(c, _LIKE.get(operator, 0))
    if dtype not in UNSIGNED:
        return results
    out = list(results)
    for index, result in enumerate(out[: _RESULTS.get(operator, len(out))]):
        if isinstance(result, Variable) and result.spec.dtype is _WORKED_IN[dtype]:
            out[index] = c.cast(_shift(c, result) if dtype is UINT64 and operator in _BY_ORDER else result, dtype)
    return tuple(out)


def quotient(c: Call, x: Variable, y: Variable) -> Variable:
    """Return x / y of numbers of 64 bits without a sign, rounded down, held as the same bits with one."""
    zero, unit = c.like(0, x), c.like(1, x)
    half = c.op("bitwise_right_shift", {"is_arithmetic": False}, x=x, y=c.cast(unit, INT64))
    low = layer.divide(half, y) * c.like(2, x)
    remainder = x - low * y
    carry = c.cast(_shift(c, remainder) >= _shift(c, y), INT64)
    large = c.cast(_shift(c, x) >= _shift(c, y), INT64)
    return layer.where(y < zero, large, low + carry)
