"""Rules for operators of PaddlePaddle 3 with several in 2.x: normalizations, gates, products with a bias, variances."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import BOOL, FP32, DType
from foreshape.interop.pir.constants import KnownTensor, code_of, element_type_of, integer, numbers_of, real
from foreshape.interop.pir.pir_graph import GraphOp
from foreshape.interop.pir.rule_registry import rule
from foreshape.interop.pir.translation import Translation
from foreshape.interop.refused import Refused


def _put(t: Translation, type: str, inputs: dict[str, str], attrs: dict[str, Any] | None = None, out: str | None = None) -> str:
    """Write an op of one result, ``Out``, and return its name: ``out``, or a new one."""
    name = t.temporary(type, None) if out is None else out
    t.write(type, {slot: (operand,) for slot, operand in inputs.items()}, {"Out": (name,)}, attrs)
    return name


def _two(t: Translation, type: str, x: str, y: str, out: str | None = None) -> str:
    return _put(t, f"elementwise_{type}", {"X": x, "Y": y}, {"axis": -1}, out)


@rule("zeros", "ones")
def filled(t: Translation, op: GraphOp) -> None:
    dims = tuple(integer(d) for d in numbers_of(op.attributes.get("shape")))
    t.give(op, 0, KnownTensor(element_type_of(op, FP32), dims, [int(op.name == "ones")], True, t.block.idx, t.scope))


@rule("zeros_like", "ones_like", "empty_like")
def filled_like(t: Translation, op: GraphOp) -> None:
    code = code_of(str(op.attributes.get("dtype") or "Undefined"))
    _put(t, "fill_any_like", {"X": t.tensor(op, 0)}, {"value": float(op.name == "ones_like"), "dtype": code}, t.output(op, 0))


@rule("rms_norm", "fast_rms_norm")
def rms_norm(t: Translation, op: GraphOp) -> None:
    """Write X / sqrt(mean(X^2) + epsilon) * scale over the last dims (Zhang and Sennrich, 2019)."""
    if len(op.results) > 1 and op.results[1] in t.used:
        raise Refused("its inverse deviation has no counterpart")
    x = t.tensor(op, 0)
    count = len(numbers_of(op.attributes.get("normalized_shape"))) or 1
    mean = _put(t, "reduce_mean", {"X": _put(t, "square", {"X": x})}, {"dim": [-k for k in range(count, 0, -1)], "keep_dim": True})
    shifted = _put(t, "scale", {"X": mean}, {"scale": 1.0, "bias": real(op.attributes.get("epsilon", 1e-5)), "bias_after_scale": True})
    inverse = _put(t, "rsqrt", {"X": shifted})
    scale = t.optional(op, 1)
    out = t.output(op, 0)
    if scale is None:
        _two(t, "mul", x, inverse, out)
    else:
        _two(t, "mul", _two(t, "mul", x, inverse), scale, out)


@rule("swiglu")
def swiglu(t: Translation, op: GraphOp) -> None:
    """Write silu(X) * Y; without Y both are halves of X (Shazeer, 2020)."""
    x, y = t.tensor(op, 0), t.optional(op, 1)
    if y is None:
        x, y = halves = t.temporary("split", None), t.temporary("split", None)
        t.write("split", {"X": (t.tensor(op, 0),)}, {"Out": halves}, {"num": 2, "axis": -1})
    _two(t, "mul", _put(t, "silu", {"X": x}), y, t.output(op, 0))


@rule("linear_v2")
def linear(t: Translation, op: GraphOp) -> None:
    """Write a product and the sum with its bias."""
    transposed, bias = op.attributes.get("transpose_weight", False) is True, t.optional(op, 2)
    out = t.output(op, 0)
    product = _put(t, "matmul_v2", {"X": t.tensor(op, 0), "Y": t.tensor(op, 1)}, {"trans_x": False, "trans_y": transposed}, out if bias is None else None)
    if bias is not None:
        _two(t, "add", product, bias, out)


@rule("baddbmm")
def baddbmm(t: Translation, op: GraphOp) -> None:
    """Write beta * Input + alpha * X Y, of batches of matrices."""
    product = _put(t, "bmm", {"X": t.tensor(op, 1), "Y": t.tensor(op, 2)})
    scaled = [_put(t, "scale", {"X": name}, {"scale": real(op.attributes.get(key, 1.0))}) for name, key in ((t.tensor(op, 0), "beta"), (product, "alpha"))]
    _two(t, "add", scaled[0], scaled[1], t.output(op, 0))


@rule("depthwise_conv2d_bias", "conv2d_transpose_bias", without=("use_cudnn",))
def convolution_with_bias(t: Translation, op: GraphOp) -> None:
    """Write a convolution and the sum with its bias, one number for each channel."""
    from foreshape.interop.pir.by_table import write_by_row
    from foreshape.interop.pir.table import row_of

    row = row_of(op.name.removesuffix("_bias"))
    assert row is not None
    convolution = op._replace(operands=tuple(n for index, n in enumerate(op.operands) if index != 2))
    write_by_row(t, convolution, row)
    name = str(t.value(op.results[0]))
    raw = t.temporary(row.type, None)
    t.block.ops[-1].rename_output(name, raw)
    axis = 3 if op.attributes.get("data_format") == "NHWC" else 1
    _put(t, "elementwise_add", {"X": raw, "Y": t.tensor(op, 2)}, {"axis": axis}, name)


@rule("copysign")
def copysign(t: Translation, op: GraphOp) -> None:
    """Write X with the sign of Y; 1 / Y tells the sign of a zero, too."""
    x, y = t.tensor(op, 0), t.tensor(op, 1)
    zero = _put(t, "fill_any_like", {"X": y}, {"value": 0.0, "dtype": -1})
    below, inverse_below = (_put(t, "less_than", {"X": operand, "Y": zero}) for operand in (y, _put(t, "reciprocal", {"X": y})))
    size = _put(t, "abs", {"X": x})
    negative = _put(t, "logical_or", {"X": below, "Y": inverse_below})
    t.write("where", {"Condition": (negative,), "X": (_put(t, "scale", {"X": size}, {"scale": -1.0}),), "Y": (size,)}, {"Out": (t.output(op, 0),)})


@rule("view_shape")
def view_shape(t: Translation, op: GraphOp) -> None:
    dims = [integer(d) for d in numbers_of(op.attributes.get("dims"))]
    t.write("reshape2", {"X": (t.tensor(op, 0),)}, {"Out": (t.output(op, 0),)}, {"shape": dims})


@rule("rint")
def rint(t: Translation, op: GraphOp) -> None:
    _put(t, "round", {"X": t.tensor(op, 0)}, {"round_type": 0}, t.output(op, 0))


@rule("gammaln")
def gammaln(t: Translation, op: GraphOp) -> None:
    _put(t, "lgamma", {"X": t.tensor(op, 0)}, None, t.output(op, 0))


@rule("max_with_index", "min_with_index")
def extreme_with_index(t: Translation, op: GraphOp) -> None:
    """Write an extreme along a dim and its place as two ops."""
    kind, x, keep = op.name[:3], t.tensor(op, 0), op.attributes.get("keepdim", False) is True
    flat, dim = op.attributes.get("flatten", False) is True, integer(op.attributes.get("dim", 0))
    _put(t, f"reduce_{kind}", {"X": x}, {"dim": [0 if flat else dim], "keep_dim": keep, "reduce_all": flat}, t.output(op, 0))
    if len(op.results) > 1 and op.results[1] in t.used:
        _put(t, f"arg_{kind}", {"X": x}, {"axis": dim, "keepdims": keep, "flatten": flat, "dtype": 3}, t.output(op, 1))


@rule("nansum")
def nansum(t: Translation, op: GraphOp) -> None:
    """Write the sum of the elements, without any NaN."""
    x = t.tensor(op, 0)
    zero = _put(t, "fill_any_like", {"X": x}, {"value": 0.0, "dtype": -1})
    numbers = t.temporary("where", None)
    t.write("where", {"Condition": (_put(t, "isnan_v2", {"X": x}),), "X": (zero,), "Y": (x,)}, {"Out": (numbers,)})
    code = code_of(str(op.attributes.get("dtype") or "Undefined"))
    _put(t, "reduce_sum", {"X": numbers}, {**_reduction(op), "out_dtype": code, "in_dtype": t.type_of(op, 0).code if code >= 0 else -1}, t.output(op, 0))


def _reduction(op: GraphOp) -> dict[str, Any]:
    axes = [integer(a) for a in numbers_of(op.attributes.get("axis"))]
    return {"dim": axes or [0], "reduce_all": not axes, "keep_dim": op.attributes.get("keepdim", False) is True}


def _number_of(t: Translation, x: str, dtype: DType, attrs: dict[str, Any]) -> str:
    """Write the number of elements reduced to one."""
    return _put(t, "reduce_sum", {"X": _put(t, "fill_any_like", {"X": x}, {"value": 1.0, "dtype": dtype.code})}, attrs)


@rule("variance", "var", "std")
def variance(t: Translation, op: GraphOp) -> None:
    """Write sum((X - mean)^2) / (n - correction), or its root."""
    x, dtype, attrs = t.tensor(op, 0), t.type_of(op, 0), _reduction(op)
    unbiased, correction = op.attributes.get("unbiased", op.name != "variance") is True, real(op.attributes.get("correction", 1.0))
    if dtype is BOOL or dtype.is_integer:
        raise Refused(f"a variance of {dtype.name} has no counterpart")
    mean = _put(t, "reduce_mean", {"X": x}, {**attrs, "keep_dim": True})
    squares = _put(t, "reduce_sum", {"X": _put(t, "square", {"X": _two(t, "sub", x, mean)})}, attrs)
    count = _number_of(t, x, dtype, attrs)
    divisor = _put(t, "scale", {"X": count}, {"scale": 1.0, "bias": -correction if unbiased else 0.0})
    out = t.output(op, 0)
    if op.name == "std":
        _put(t, "sqrt", {"X": _two(t, "div", squares, divisor)}, None, out)
    else:
        _two(t, "div", squares, divisor, out)
