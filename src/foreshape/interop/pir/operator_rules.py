"""Rules for the operators of PaddlePaddle 3 with another form in 2.x, one function for each."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import FP32, INT32, INT64, LOD_TENSOR, UINT8, DType
from foreshape.interop.pir.by_table import write_by_row
from foreshape.interop.pir.constants import KnownTensor, as_numbers, code_of, element_type_of, exact, fitted, integer, numbers_of, real
from foreshape.interop.pir.pir_graph import NOTHING, GraphOp
from foreshape.interop.pir.rule_registry import IGNORED, rule
from foreshape.interop.pir.table import TableRow, row_of
from foreshape.interop.pir.translation import Translation, operator_of
from foreshape.interop.refused import Refused
from foreshape.language.program.declared import Declared
from foreshape.language.program.op import Slots


def _row(name: str) -> TableRow:
    row = row_of(name)
    assert row is not None, name
    return row


@rule("grid_sample")
def grid_sample(t: Translation, op: GraphOp) -> None:
    """Write a read at points: the nearest pixel of a half is the even one, and in 2.x the one away from 0."""
    write_by_row(t, op, _row(op.name), {"halves_to_even": True} if op.attributes.get("mode") == "nearest" else {})


@rule("full_with_tensor")
def full_with_tensor(t: Translation, op: GraphOp) -> None:
    dtype = element_type_of(op, FP32)
    value, shape = t.constant(op, 0), as_numbers(t.operand(op, 1))
    inputs: Slots = {}
    dims = [integer(d) for d in shape.elements] if shape is not None else [-1]
    if shape is None:
        inputs["ShapeTensorList" if isinstance(t.operand(op, 1), tuple) else "ShapeTensor"] = t.tensors(op, 1)
        dims = [-1] * len(inputs.get("ShapeTensorList", ())) or []
    if value is None:
        inputs["ValueTensor"] = (t.tensor(op, 0),)
        t.write("fill_constant", inputs, {"Out": (t.output(op, 0),)}, {"shape": dims, "dtype": dtype.code})
        return
    t.fill(dtype, dims, value.number, t.output(op, 0), inputs)


@rule("full_like")
def full_like(t: Translation, op: GraphOp) -> None:
    dtype = element_type_of(op, t.type_of(op, 0))
    value = t.constant(op, 1)
    if value is not None and exact(value.number):
        t.write("fill_any_like", {"X": (t.tensor(op, 0),)}, {"Out": (t.output(op, 0),)}, {"value": real(value.number), "dtype": dtype.code})
        return
    zeros, number = t.temporary("fill_any_like", None), t.tensor(op, 1)
    if t.type_of(op, 1) is not dtype:
        number = _cast(t, number, t.type_of(op, 1), dtype)
    t.write("fill_any_like", {"X": (t.tensor(op, 0),)}, {"Out": (zeros,)}, {"value": 0.0, "dtype": dtype.code})
    t.write("elementwise_add", {"X": (zeros,), "Y": (number,)}, {"Out": (t.output(op, 0),)}, {"axis": -1})


@rule("fill")
def fill_whole(t: Translation, op: GraphOp) -> None:
    value = t.constant(op, 1)
    if value is None:
        raise Refused("its value is computed, and an attribute in 2.x")
    t.write("fill_any_like", {"X": (t.tensor(op, 0),)}, {"Out": (t.output(op, 0),)}, {"value": real(value.number), "dtype": -1})


def _cast(t: Translation, name: str, source: DType, target: DType) -> str:
    out = t.temporary("cast", Declared(LOD_TENSOR, target, None))
    t.write("cast", {"X": (name,)}, {"Out": (out,)}, {"in_dtype": source.code, "out_dtype": target.code})
    return out


@rule("arange")
def arange(t: Translation, op: GraphOp) -> None:
    dtype = element_type_of(op, INT64)
    inputs: Slots = {}
    for index, slot in enumerate(("Start", "End", "Step")):
        constant = t.constant(op, index)
        if constant is not None:
            number = constant.number
            name = t.constant_tensor(None, KnownTensor(dtype, (1,), [integer(number) if dtype.is_integer else real(number)], True, t.block.idx, t.scope))
        else:
            name = t.tensor(op, index)
            if t.type_of(op, index) is not dtype:
                name = _cast(t, name, t.type_of(op, index), dtype)
        inputs[slot] = (name,)
    t.write("range", inputs, {"Out": (t.output(op, 0),)})


# --- one operator, other attributes


@rule("cast")
def cast(t: Translation, op: GraphOp) -> None:
    code = code_of(str(op.attributes.get("dtype")))
    t.write("cast", {"X": (t.tensor(op, 0),)}, {"Out": (t.output(op, 0),)}, {"in_dtype": t.type_of(op, 0).code, "out_dtype": code})


def _reduced(t: Translation, op: GraphOp, type: str, extras: dict[str, Any]) -> None:
    axes = as_numbers(t.operand(op, 1)) if len(op.operands) > 1 else None
    if len(op.operands) > 1 and axes is None:
        raise Refused("its axes are computed, and an attribute in 2.x")
    values = axes.elements if axes is not None else op.attributes.get("axis")
    dims = [integer(a) for a in (numbers_of(values) if values is None or values.__class__ is list else [values])]
    every = op.attributes.get("reduce_all") is True or not dims
    attrs = {"dim": dims or [0], "keep_dim": op.attributes.get("keepdim", False) is True, "reduce_all": every, **extras}
    t.write(type, {"X": (t.tensor(op, 0),)}, {"Out": (t.output(op, 0),)}, attrs)


@rule("sum")
def reduce_sum(t: Translation, op: GraphOp) -> None:
    code = code_of(str(op.attributes.get("dtype") or "Undefined"))
    _reduced(t, op, "reduce_sum", {"out_dtype": code, "in_dtype": t.type_of(op, 0).code if code >= 0 else -1})


@rule("mean", "max", "min", "prod", "all", "any", "amax", "amin")
def reduction(t: Translation, op: GraphOp) -> None:
    _reduced(t, op, f"reduce_{op.name}", {})


@rule("matrix_rank", "matrix_rank_tol")
def matrix_rank(t: Translation, op: GraphOp) -> None:
    """Write a rank of int64, as PaddlePaddle 3 computes it."""
    write_by_row(t, op, _row(op.name))
    _as_type(t, op, 0, INT32, INT64)


@rule("accuracy")
def accuracy(t: Translation, op: GraphOp) -> None:
    """Write an accuracy with its counts of int32, as PaddlePaddle 3 computes them."""
    dtype = t.type_of(op, 0)
    write_by_row(t, op, _row(op.name))
    for index in (1, 2):
        _as_type(t, op, index, dtype, INT32)


def _as_type(t: Translation, op: GraphOp, index: int, source: DType, target: DType) -> None:
    """Give a result in another element type, under its own name."""
    if index < len(op.results) and op.results[index] in t.used:
        name = str(t.value(op.results[index]))
        raw = t.temporary(op.name, Declared(LOD_TENSOR, source, None))
        next(o for o in reversed(t.block.ops) if o.type == _row(op.name).type).rename_output(name, raw)
        t.write("cast", {"X": (raw,)}, {"Out": (name,)}, {"in_dtype": source.code, "out_dtype": target.code})


@rule("lu")
def lu(t: Translation, op: GraphOp) -> None:
    """Write the factors of matrices: of one matrix PaddlePaddle 3 gives one number as Infos, without dims."""
    write_by_row(t, op, _row("lu"))
    if len(op.results) > 2 and op.results[2] in t.used and len(t.dims_of(op, 0)) == 2:
        name = str(t.value(op.results[2]))
        raw = t.temporary("lu", Declared(LOD_TENSOR, INT32, (1,)))
        t.block.ops[-1].rename_output(name, raw)
        t.write("reshape2", {"X": (raw,)}, {"Out": (name,)}, {"shape": []})


@rule("fused_elemwise_activation", "fused_elemwise_add_activation")
def fused_elementwise(t: Translation, op: GraphOp) -> None:
    """Write unary(binary(X, Y)) or binary(X, unary(Y)), by the order of the two names, as two ops."""
    names = [str(f) for f in op.attributes.get("functor_list") or ()]
    binary = next((n for n in names if n.startswith("elementwise_")), None)
    if len(names) != 2 or binary is None:
        raise Refused(f"its functor_list is {names}")
    unary = next(n for n in names if n != binary)
    settings = {name: op.attributes.get(name) for name in ("scale", "save_intermediate_out")}
    attrs = {"scale": settings["scale"]} if unary == "scale" else {}
    x, y = t.tensor(op, 0), t.tensor(op, 1)
    between = len(op.results) > 1 and op.results[1] in t.used
    inner = t.output(op, 1) if between else t.temporary(op.name, None)
    axis = {"axis": op.attributes.get("axis", -1)}
    if names[0] == binary:
        t.write(unary, {"X": (y,)}, {"Out": (inner,)}, attrs)
        t.write(binary, {"X": (x,), "Y": (inner,)}, {"Out": (t.output(op, 0),)}, axis)
    else:
        t.write(binary, {"X": (x,), "Y": (y,)}, {"Out": (inner,)}, axis)
        t.write(unary, {"X": (inner,)}, {"Out": (t.output(op, 0),)}, attrs)


@rule("select_input")
def select_input(t: Translation, op: GraphOp) -> None:
    inputs: Slots = {"X": tuple([t.tensor(op, index) for index in range(1, len(op.operands))]), "Mask": (t.tensor(op, 0),)}
    t.write("select_input", inputs, {"Out": (t.output(op, 0),)})


@rule("deformable_conv")
def deformable_conv(t: Translation, op: GraphOp) -> None:
    row = _row("deformable_conv")
    if t.operand(op, 3) is None:
        row = row._replace(type="deformable_conv_v1")
    write_by_row(t, op, row)


@rule("sigmoid_cross_entropy_with_logits")
def sigmoid_cross_entropy(t: Translation, op: GraphOp) -> None:
    """Write a weighted loss as PaddlePaddle 3 computes it: (1 - Label) * X + pos_weight * log(1 + exp(-X)).

    In 2.x pos_weight multiplies another part of the sum. So 2.x has (pos_weight - 1) * log(1 + exp(-X)) added to the plain loss.
    """
    if t.operand(op, 2) is None:
        write_by_row(t, op, _row(op.name))
        return
    if op.attributes.get("normalize", False) or op.attributes.get("ignore_index", -100) != -100:
        raise Refused("a weighted loss that ignores labels has no counterpart")
    x, label, weight = (t.tensor(op, index) for index in range(3))
    plain, minus, soft, excess, part = (t.temporary(op.name, None) for _ in range(5))
    t.write(op.name, {"X": (x,), "Label": (label,)}, {"Out": (plain,)})
    t.write("scale", {"X": (x,)}, {"Out": (minus,)}, {"scale": -1.0})
    t.write("softplus", {"X": (minus,)}, {"Out": (soft,)})
    t.write("scale", {"X": (weight,)}, {"Out": (excess,)}, {"bias": -1.0})
    t.write("elementwise_mul", {"X": (soft,), "Y": (excess,)}, {"Out": (part,)}, {"axis": -1})
    t.write("elementwise_add", {"X": (plain,), "Y": (part,)}, {"Out": (t.output(op, 0),)}, {"axis": -1})


@rule("quantize_linear", "quantize_linear_", "dequantize_linear", "dequantize_linear_")
def quantize_linear(t: Translation, op: GraphOp) -> None:
    """Write a (de)quantization with its range of levels.

    Of floating-point numbers PaddlePaddle 3.3.1 computes quantize_linear in the place of dequantize_linear, too: both are bound to one kernel there.
    """
    row = _row(op.name)
    if op.name.startswith("dequantize") and t.type_of(op, 0).is_floating:
        row = row._replace(type="quantize_linear")
    levels = 2 ** (integer(op.attributes.get("bit_length", 8)) - 1) - 1
    means_nothing = {"qmin": None, **({"qmax": None} if op.attributes.get("qmax", levels) == levels else {})}  # qmin is not read there
    write_by_row(t, op, row._replace(only={**row.only, **means_nothing}))


@rule("round")
def round_(t: Translation, op: GraphOp) -> None:
    """Write a rounding of halves to even, as PaddlePaddle 3 does it; 2.x rounds them away from zero."""
    write_by_row(t, op, _row("round"), {"round_type": 0})


@rule("histogram")
def histogram(t: Translation, op: GraphOp) -> None:
    """Write a histogram: its range is of whole numbers in 2.x, and of others in `low` and `high`."""
    low, high = real(op.attributes.get("min", 0.0)), real(op.attributes.get("max", 0.0))
    whole_range = low.is_integer() and high.is_integer()
    bounds = {"min": int(low), "max": int(high)} if whole_range else {"low": low, "high": high}
    row = _row("histogram")
    write_by_row(t, op, row._replace(only={**row.only, "min": None, "max": None}), bounds)


@rule("tril", "triu")
def triangle(t: Translation, op: GraphOp) -> None:
    attrs = {"diagonal": op.attributes.get("diagonal", 0), "lower": op.name == "tril"}
    t.write("tril_triu", {"X": (t.tensor(op, 0),)}, {"Out": (t.output(op, 0),)}, attrs)


@rule("shape")
def shape(t: Translation, op: GraphOp) -> None:
    t.write("shape", {"Input": (t.tensor(op, 0),)}, {"Out": (t.output(op, 0),)})


@rule("shape64")
def shape64(t: Translation, op: GraphOp) -> None:
    short = t.temporary("shape", Declared(LOD_TENSOR, INT32, None))
    t.write("shape", {"Input": (t.tensor(op, 0),)}, {"Out": (short,)})
    t.write("cast", {"X": (short,)}, {"Out": (t.output(op, 0),)}, {"in_dtype": INT32.code, "out_dtype": INT64.code})


@rule("split", "split_with_num")
def split(t: Translation, op: GraphOp) -> None:
    inputs: Slots = {"X": (t.tensor(op, 0),)}
    attrs: dict[str, Any] = {}
    last = len(op.operands) - 1
    axis = t.constant(op, last)
    if axis is not None:
        attrs["axis"] = integer(axis.number)
    else:
        inputs["AxisTensor"] = (t.tensor(op, last),)
    if op.name == "split_with_num":
        attrs["num"] = op.attributes.get("num")
    else:
        sections = as_numbers(t.operand(op, 1))
        if sections is not None:
            attrs["sections"] = [integer(s) for s in sections.elements]
        elif isinstance(t.operand(op, 1), tuple):
            inputs["SectionsTensorList"] = t.tensors(op, 1)
            attrs["sections"] = [-1] * len(inputs["SectionsTensorList"])
        else:
            raise Refused("its sections are computed as one tensor; in 2.x they are one tensor each")
    t.write("split", inputs, {"Out": t.outputs(op, 0)}, attrs)


@rule("batch_norm_", "batch_norm")
def batch_norm(t: Translation, op: GraphOp) -> None:
    """Write a batch norm: its running mean and variance are written where they are read."""
    row = _row("batch_norm_")
    schema = operator_of("batch_norm").schema.attributes
    attrs: dict[str, Any] = {}
    for name in op.attributes:
        key = row.renamed.get(name, name)
        if name not in IGNORED and key in schema:
            attrs[key] = fitted(op.attributes.get(name), schema[key].type)
    inputs: Slots = {}
    for index, operand in enumerate(row.operands):
        name = t.tensor(op, index) if operand.slot in ("X", "Mean", "Variance") else t.optional(op, index)
        if name is not None:
            inputs[operand.slot] = (name,)
    outputs: Slots = {"Y": (t.output(op, 0),), "MeanOut": inputs["Mean"], "VarianceOut": inputs["Variance"]}
    for index, slot in enumerate(row.results[1:], 1):
        if index >= len(op.results) or op.results[index] == NOTHING or op.types[index] is None:
            continue
        if slot in outputs:
            t.give(op, index, outputs[slot][0])
        else:
            outputs[slot] = (t.output(op, index),)
    t.write("batch_norm", inputs, outputs, attrs)
    if "ReserveSpace" in outputs and not attrs.get("is_test") and not attrs.get("use_global_stats"):
        _as_type(t, op, 5, FP32, UINT8)


@rule("einsum")
def einsum(t: Translation, op: GraphOp) -> None:
    operands = t.tensors(op, 0)
    caches: Slots = {}
    for index, slot in enumerate(("InnerCache", "XShape"), 1):
        is_used = index < len(op.results) and op.results[index] in t.used
        caches[slot] = t.outputs(op, index) if is_used else tuple([t.temporary("einsum", None) for _ in operands])
    t.write("einsum", {"Operands": operands}, {"Out": (t.output(op, 0),), **caches}, {"equation": op.attributes.get("equation")})
