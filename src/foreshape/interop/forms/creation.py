"""New tensors: constants, ranges, identity matrices, triangles, in the other formats."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import TYPE_CHECKING, Any

import numpy as np

from foreshape import layer
from foreshape.core.spec import BF16, BOOL, FP32, FP64, INT32, INT64, LOD_TENSOR, DType
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx import computed
from foreshape.interop.onnx.call import Call, element_type, made_of
from foreshape.interop.onnx.constant_roles import OnnxConstant
from foreshape.interop.onnx.write.padded_rows import levels_of
from foreshape.interop.onnx.write.terms import count_to, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.open_size import OpenSize, as_variable
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.numbers_code import LONG_CONSTANT, nested
from foreshape.interop.torch.write.plain_op import PlainOp, tuple_of
from foreshape.language.operator.computations import Reshape
from foreshape.language.program.variable import Variable
from foreshape.language.wire.onnx_encode import tensor_of
from foreshape.language.wire.onnx_records import TensorRecord

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("Constant")
def from_onnx_constant(c: Call) -> Any:
    """Numbers of the file wait to be used: as an attribute, by an op, or as a parameter."""
    attributes = c.node.attributes
    name = c.node.outputs[0] if c.node.outputs else ""
    if "value" in attributes:
        return OnnxConstant(name, TensorRecord(name, *attributes["value"][1:]), uses=c.importer.uses)
    for key, kind in (("value_float", "float32"), ("value_floats", "float32"), ("value_int", "int64"), ("value_ints", "int64")):
        if key in attributes:
            return OnnxConstant(name, None, np.array(attributes[key], kind), uses=c.importer.uses)
    raise Refused(f"a constant of the kind {next(iter(attributes), 'none')}")


@from_onnx("ConstantOfShape")
def constant_of_shape(c: Call) -> Any:
    value = c.attribute("value")
    array = np.zeros(1, "float32") if value is None else value.reshape(-1)
    dtype = c.importer.type_of(array) if value is None else element_type(c.node.attributes["value"].code)
    number = array[0].item()
    sizes = c.sizes(0)
    if sizes is not None and all(isinstance(n, int) for n in sizes):
        return c.full([int(n) for n in sizes if isinstance(n, int)], dtype, number)
    text = repr(number) if dtype is not BOOL else ""
    return c.op("fill_constant", {"shape": [], "dtype": dtype.code, "value": float(number), "str_value": text}, ShapeTensor=c.x(0))


def _row_of_one(x: Variable) -> Variable:
    """Return a number without dims as the row of one number that it was made of, if it was."""
    source, _ = made_of(x, Reshape)
    return source if source is not None and x.spec.dims == () and source.spec.dims == (1,) else x


@from_onnx("Range")
def range_(c: Call) -> Any:
    start, end, step = (_row_of_one(c.x(index)) for index in range(3))
    dtype = start.spec.known_dtype
    work_dtype = (
        dtype
        if dtype in (INT32, INT64, FP32, FP64)
        else FP64
        if dtype.is_floating and c.attribute("stash_type", 1) == 11
        else FP32
        if dtype.is_floating
        else INT32
    )
    return c.cast(layer.range(c.cast(start, work_dtype), c.cast(end, work_dtype), c.cast(step, work_dtype), work_dtype), dtype)


@from_onnx("EyeLike")
def eye_like(c: Call) -> Any:
    x = c.x()
    dtype = element_type(int(c.attribute("dtype"))) if c.attribute("dtype") is not None else x.spec.known_dtype
    k = int(c.attribute("k", 0))
    ones = layer.fill_like(x, 1.0, FP32)
    upper = layer.triu(ones, k)
    return c.cast(layer.tril(upper, k), dtype)


@from_onnx("Trilu")
def from_onnx_triangle(c: Call) -> Any:
    diagonal = c.computed(1)
    if diagonal is not None:
        return computed.triangle(c, c.x(), diagonal, bool(c.attribute("upper", 1)))
    x, k = c.x(), (c.ints(1) or [0])[0]
    dtype = x.spec.known_dtype
    operand = c.cast(x, INT32) if dtype is BOOL else x
    limit = 2**31 - 1
    return c.cast(c.op("tril_triu", {"diagonal": max(-limit, min(limit, k)), "lower": not c.attribute("upper", 1)}, X=operand), dtype)


# --- to ONNX


def to_onnx_filled(w: WrittenOp, shape: OnnxValue | Sequence[int], value: Any, dtype: DType) -> OnnxValue:
    """Return a tensor of equal numbers: ``shape`` as numbers, or as a row of int64."""
    import numpy

    if isinstance(shape, OnnxValue):
        out = w.node("ConstantOfShape", shape, value=_one_number(w, value, dtype))
        return w.cast(out, FP32, BF16) if dtype is BF16 else out
    size = 1
    for d in shape:
        size *= d
    if dtype is BF16:
        return w.cast(to_onnx_filled(w, shape, value, FP32), FP32, BF16)
    if size <= 64:
        return w.array(numpy.full(tuple(shape), value, "bool" if dtype is BOOL else dtype.numpy_name))
    return w.node("ConstantOfShape", w.ints(*shape), value=_one_number(w, value, dtype))


def _one_number(w: WrittenOp, value: Any, dtype: DType) -> Any:
    import numpy

    stored_dtype = FP32 if dtype is BF16 else dtype
    return tensor_of("", w.writer.code_of(stored_dtype), (1,), numpy.array([value], "bool" if stored_dtype is BOOL else stored_dtype.numpy_name).tobytes())


def _result_shape(w: WrittenOp) -> Any:
    """Return the shape of the attribute, or the row of int64 that its tensors say instead."""
    if w.has("ShapeTensor"):
        return w.row("ShapeTensor")
    return w.row_of("ShapeTensorList") if w.op.input_slots.get("ShapeTensorList") else [int(d) for d in w.of.shape]


def number_of(dtype: DType, value: float, text: str) -> Any:
    """Return the filling number of ``value`` or, more exact, ``str_value``."""
    if text:
        low = text.strip().lower()
        if low in ("inf", "-inf", "nan"):
            return float(low)
        return int(low) if dtype.is_integer and low.lstrip("+-").isdigit() else float(low) if dtype.is_floating or dtype is BOOL else int(float(low))
    return value if dtype.is_floating else bool(value) if dtype is BOOL else int(value)


@to_onnx()
def _to_onnx_fill_constant(w: WrittenOp) -> OnnxValue:
    dtype = w.result("Out").known_dtype
    shape = _result_shape(w)
    if w.has("ValueTensor"):
        value = w.cast(w.reshape(w.x("ValueTensor"), 1), w.dtype("ValueTensor"), dtype)
        return w.node("Expand", value, shape if isinstance(shape, OnnxValue) else w.ints(*shape))
    return to_onnx_filled(w, shape, number_of(dtype, w.of.value, w.of.str_value), dtype)


@to_onnx()
def _to_onnx_fill_any_like(w: WrittenOp) -> OnnxValue:
    dtype = w.result("Out").known_dtype
    dims = w.spec("X").dims
    if dims is not None and all(isinstance(d, int) for d in dims):
        return to_onnx_filled(w, [d for d in dims if isinstance(d, int)], number_of(dtype, w.of.value, ""), dtype)
    return to_onnx_filled(w, w.shape(w.x("X")), number_of(dtype, w.of.value, ""), dtype)


@to_onnx()
def _to_onnx_fill_zeros_like(w: WrittenOp) -> OnnxValue:
    return to_onnx_filled(w, w.shape(w.x("X")), number_of(w.dtype("X"), 0.0, ""), w.dtype("X"))


def size_like(w: WrittenOp, slot: str, axis: int) -> OnnxValue:
    """Return a size of an operand as a row of one number; the first of ragged rows is the number of their sequences."""
    lod = w.spec(slot).lod
    lengths = None if lod is None or axis else levels_of(w.writer, lod)
    return w.shape(w.x(slot), axis, axis + 1) if lengths is None else w.shape(lengths[-1])


@to_onnx()
def _to_onnx_fill_constant_batch_size_like(w: WrittenOp) -> OnnxValue:
    dtype = w.result("Out").known_dtype
    shape, axis = [int(d) for d in w.of.shape], int(w.of.output_dim_idx)
    size = size_like(w, "Input", int(w.of.input_dim_idx))
    parts = [v for v in (w.ints(*shape[:axis]) if axis else None, size, w.ints(*shape[axis + 1 :]) if axis + 1 < len(shape) else None) if v is not None]
    return to_onnx_filled(w, w.node("Concat", *parts, axis=0) if len(parts) > 1 else size, number_of(dtype, w.of.value, w.of.str_value), dtype)


@to_onnx()
def _to_onnx_assign_value(w: WrittenOp) -> OnnxValue:
    import numpy

    dtype = w.result("Out").known_dtype
    values = next((v for name, v in w.op.attributes.values.items() if name.endswith("values") and v.__class__ in (tuple, list) and len(v)), ())
    array = numpy.array([*values]).astype("bool" if dtype is BOOL else dtype.numpy_name).reshape([int(d) for d in w.of.shape])
    return w.array(array)


@to_onnx()
def _to_onnx_range(w: WrittenOp) -> OnnxValue:
    dtype = w.dtype("Start")
    ends = [w.reshape(w.x(slot)) if w.rank(slot) else w.x(slot) for slot in ("Start", "End", "Step")]
    if dtype.name in ("fp16", "bf16", "int8", "uint8"):
        work_dtype = FP32 if dtype.is_floating else INT64
        return w.cast(w.node("Range", *[w.cast(e, dtype, work_dtype) for e in ends]), work_dtype, dtype)
    return w.node("Range", *ends)


@to_onnx()
def _to_onnx_linspace(w: WrittenOp) -> OnnxValue:
    dtype = w.result("Out").known_dtype
    inner = dtype if dtype.is_floating and dtype.itemsize >= 4 else FP32
    start, stop = (w.cast(w.reshape(w.x(s)) if w.rank(s) else w.x(s), w.dtype(s), inner) for s in ("Start", "Stop"))
    constant = w.known("Num")
    count = w.number(int(constant.reshape(-1)[0]), INT64) if constant is not None else w.cast(w.reshape(w.x("Num")), w.dtype("Num"), INT64)
    steps = w.node("Max", w.node("Sub", count, w.number(1, INT64)), w.number(1, INT64))
    step = w.node("Div", w.node("Sub", stop, start), w.cast(steps, INT64, inner))
    positions = w.cast(w.node("Range", w.number(0, INT64), count, w.number(1, INT64)), INT64, inner)
    return w.cast(w.node("Add", start, w.node("Mul", positions, step)), inner, dtype)


@to_onnx()
def _to_onnx_eye(w: WrittenOp) -> OnnxValue:
    import numpy

    dtype = w.result("Out").known_dtype
    rows, columns = int(w.of.num_rows), int(w.of.num_columns)
    return w.array(numpy.eye(rows, columns if columns >= 0 else rows, dtype="bool" if dtype is BOOL else dtype.numpy_name))


@to_onnx()
def _to_onnx_tril_triu(w: WrittenOp) -> OnnxValue:
    w.needs(14)
    return w.node("Trilu", w.x("X"), w.number(int(w.of.diagonal), INT64), upper=int(not w.of.lower))


@to_onnx()
def _to_onnx_logspace(w: WrittenOp) -> Any:
    count = term(w, "Num").cast(INT64).shaped(1)
    start, stop, base = (term(w, s).cast(FP64).shaped(1) for s in ("Start", "Stop", "Base"))
    exponents = start + (stop - start) / (count - 1).most(1).cast(FP64) * count_to(count).cast(FP64)
    return (base**exponents).cast(w.result("Out").known_dtype).value


@to_onnx()
def _to_onnx_empty(w: WrittenOp) -> Any:
    return to_onnx_filled(w, _result_shape(w), 0, w.result("Out").known_dtype)


# --- from PaddlePaddle 3


@from_pir("full_with_tensor")
def _from_pir_full(p: PirCall) -> Any:
    """Fill a computed shape, or one with a computed number."""
    dtype, value, sizes = p.element_type(FP32), p.constant(0), p.numbers(1)
    shape = {} if sizes is not None else {"ShapeTensorList" if p.is_list(1) else "ShapeTensor": p.all(1)}
    dims = sizes.integers if sizes is not None else [-1] * len(shape.get("ShapeTensorList", ()))
    if value is None:
        return p.apply("fill_constant", {"shape": dims, "dtype": dtype.code}, **shape, ValueTensor=p.x())
    return p.fill(dtype, dims, value.number, shape)


@from_pir("full_like")
def _from_pir_full_like(p: PirCall) -> Any:
    """Fill a tensor of the shape of another one; a computed number, or one of more than 32 bits, is added to zeros."""
    dtype, value = p.element_type(p.dtype()), p.constant(1)
    if value is not None and value.is_single:
        return layer.fill_like(p.x(), value.real, dtype)
    number = p.cast(p.x(1), p.dtype(1), dtype)
    return layer.fill_like(p.x(), 0.0, dtype) + number


@from_pir("arange")
def _from_pir_range(p: PirCall) -> Any:
    """Count from a start to an end, in the element type of the result."""
    dtype = p.element_type(INT64)
    bounds: list[Variable] = []
    for index in range(3):
        bound = p.constant(index)
        number = None if bound is None else bound.integer if dtype.is_integer else bound.real
        bounds.append(p.cast(p.x(index), p.dtype(index), dtype) if number is None else p.constant_tensor(dtype, (1,), number))
    return p.apply("range", Start=bounds[0], End=bounds[1], Step=bounds[2])


# --- from torch


def _from_torch_filled(t: TorchCall, size: Any, value: Any, dtype: DType) -> Any:
    if isinstance(value, (Variable, OpenSize)):
        return layer.expand(t.tensor(value, dtype), t.sizes(size)) if size else t.tensor(value, dtype)
    return layer.fill_constant(t.sizes(size), dtype, value)


@from_torch("zeros", "ones", "empty")
def _from_torch_constant(t: TorchCall, size: Any, **_: Any) -> Any:
    return _from_torch_filled(t, size, 1 if t.name == "ones" else 0, t.dtype)


@from_torch()
def _from_torch_full(t: TorchCall, size: Any, value: Any, **_: Any) -> Any:
    return _from_torch_filled(t, size, value, t.dtype)


@from_torch("new_zeros", "new_ones", "new_empty")
def _new(t: TorchCall, x: Variable, size: Any, **_: Any) -> Any:
    return _from_torch_filled(t, size, 1 if t.name == "new_ones" else 0, t.dtype)


@from_torch()
def _from_torch_new_full(t: TorchCall, x: Variable, size: Any, value: Any, **_: Any) -> Any:
    return _from_torch_filled(t, size, value, t.dtype)


@from_torch("zeros_like", "ones_like", "empty_like", "zero")
def _from_torch_like(t: TorchCall, x: Variable, **_: Any) -> Any:
    return layer.fill_like(x, 1.0 if t.name == "ones_like" else 0.0, t.dtype)


@from_torch("full_like", "fill")
def _full_like(t: TorchCall, x: Variable, value: Any, **_: Any) -> Any:
    return layer.expand_as(t.tensor(value, t.dtype), x) if isinstance(value, (Variable, OpenSize)) else layer.fill_like(x, float(value), t.dtype)


@from_torch("scalar_tensor", "lift_fresh_number")
def _scalar(t: TorchCall, value: Any, **_: Any) -> Any:
    return t.tensor(value, t.dtype)


@from_torch()
def _from_torch_arange(t: TorchCall, start: Any, end: Any = None, step: Any = 1, **_: Any) -> Any:
    if end is None:
        start, end = 0, start
    ends = [layer.cast(as_variable(v), t.dtype) if isinstance(v, OpenSize) else v for v in (start, end, step)]
    return layer.range(*ends, dtype=t.dtype)


@from_torch()
def _from_torch_linspace(t: TorchCall, start: Any, end: Any, steps: Any, **_: Any) -> Any:
    return layer.linspace(start, end, as_variable(steps) if isinstance(steps, OpenSize) else steps, t.dtype)


@from_torch()
def _from_torch_eye(t: TorchCall, n: Any, m: Any = None, **_: Any) -> Any:
    if not isinstance(n, OpenSize) and not isinstance(m, OpenSize):
        return layer.eye(n, m, t.dtype)
    rows, columns = (layer.range(0, as_variable(size), 1, dtype=INT64) for size in (n, n if m is None else m))
    return layer.cast(layer.equal(layer.unsqueeze(rows, [1]), columns), t.dtype)


@from_torch("tril", "triu")
def _from_torch_triangle(t: TorchCall, x: Variable, diagonal: int = 0) -> Any:
    function = layer.tril if t.name == "tril" else layer.triu
    return layer.cast(function(layer.cast(x, INT32), diagonal), BOOL) if t.dtype is BOOL else function(x, diagonal)


# --- to torch's code


def tensor_options(w: PlainOp, dtype: DType) -> str:
    return f"dtype={w.type(dtype)}, device={w.device()}"


def shape(w: PlainOp) -> str:
    """Return the dims of the result, as a tuple or a list."""
    dims = w.result("Out").known_dims
    if all(w.writer.has_size(d) for d in dims):
        return tuple_of([w.size(d) for d in dims]) if dims else "()"
    if w.count("ShapeTensorList"):
        return f"[{', '.join(w.int('ShapeTensorList', index) for index in range(w.count('ShapeTensorList')))}]"
    if w.has("ShapeTensor"):
        return w.list("ShapeTensor")
    raise Refused(f"the shape {list(map(str, dims))} is not known")


def _number(w: PlainOp, dtype: DType) -> str:
    text = getattr(w.of, "str_value", "")
    if text and dtype.is_integer:
        return str(int(float(text))) if "." in text or "e" in text.lower() else str(int(text))
    return w.number(float(text or w.of.value), dtype)


@to_torch()
def _to_torch_fill_constant(w: PlainOp) -> str:
    dtype = w.result("Out").known_dtype
    if w.has("ValueTensor"):
        return f"{w.cast(w.x('ValueTensor') + '.reshape(())', w.dtype('ValueTensor'), dtype)}.expand({shape(w)}).clone()"
    dims = [d for d in w.result("Out").known_dims if isinstance(d, int)]
    if w.writer.flow != "python" and not dtype.is_floating and len(dims) == w.result("Out").rank and 0 < prod(dims) <= LONG_CONSTANT:
        return f"torch.tensor({nested([_number(w, dtype)] * prod(dims), dims)}, {tensor_options(w, dtype)})"  # a trace takes it for a constant
    return f"torch.full({shape(w)}, {_number(w, dtype)}, {tensor_options(w, dtype)})"


@to_torch("fill_any_like", "fill_zeros_like")
def _to_torch_like(w: PlainOp) -> str:
    if w.spec("X").kind is not LOD_TENSOR:
        raise Refused("X is an array")
    dtype = w.result("Out").known_dtype
    option = "" if dtype is w.dtype("X") else f", dtype={w.type(dtype)}"
    if w.op.type == "fill_zeros_like":
        return f"torch.zeros_like({w.x('X')}{option})"
    value = w.of.value if dtype.is_floating or dtype is BOOL else int(w.of.value)
    return f"torch.full_like({w.x('X')}, {w.number(value, dtype)}{option})"


@to_torch()
def _to_torch_fill_constant_batch_size_like(w: PlainOp) -> str:
    dtype = w.result("Out").known_dtype
    return f"torch.full({shape(w)}, {_number(w, dtype)}, {tensor_options(w, dtype)})"


@to_torch()
def _to_torch_empty(w: PlainOp) -> str:
    return f"torch.zeros({shape(w)}, {tensor_options(w, w.result('Out').known_dtype)})"


@to_torch()
def _to_torch_assign_value(w: PlainOp) -> str:
    import numpy

    spec = w.result("Out")
    dims = [d for d in spec.known_dims if isinstance(d, int)]
    dtype = spec.known_dtype
    slots = ("values", "bool_values", "fp32_values", "fp64_values", "int8_values", "int32_values", "int64_values")
    numbers: Any = next((v for n in slots if (v := getattr(w.of, n, ()))), ())
    array: Any = numpy.asarray(numbers, "bool" if dtype is BOOL else dtype.numpy_name or "float32").reshape(dims)
    if array.size > LONG_CONSTANT:
        return w.writer.constant(w.op.output_slots["Out"][0], array)
    if not array.size:
        return f"torch.zeros({tuple(dims)}, {tensor_options(w, dtype)})"
    return f"torch.tensor({array.tolist()}, {tensor_options(w, dtype)})".replace("inf", 'float("inf")').replace("nan", 'float("nan")')


@to_torch()
def _to_torch_range(w: PlainOp) -> str:
    dtype = w.dtype("Start")
    if dtype.is_integer:
        start, end, step = (w.int(slot) for slot in ("Start", "End", "Step"))
        numbers = [int(n) for n in (start, end, step) if n.lstrip("-").isdigit()]
        rises = len(numbers) == 3 and (numbers[1] - numbers[0]) * numbers[2] > 0
        if rises or ((start, step) == ("0", "1") and w.ints("End") is not None):
            return f"torch.arange({', '.join([end] if (start, step) == ('0', '1') else [start, end, step])}, {tensor_options(w, dtype)})"
        return w.call(helpers.number_rows.whole_numbers, start, end, step, w.type(dtype), w.device())
    (size,) = w.result("Out").known_dims
    if w.writer.has_size(size):
        return w.call(helpers.number_rows.counted, w.x("Start"), w.x("Step"), w.size(size))
    return w.call(helpers.number_rows.evenly, w.x("Start"), w.x("End"), w.x("Step"))


@to_torch()
def _to_torch_linspace(w: PlainOp) -> str:
    return w.call(helpers.number_rows.spaced, w.x("Start"), w.x("Stop"), w.int("Num"), w.type(w.result("Out").known_dtype))


@to_torch()
def _to_torch_eye(w: PlainOp) -> str:
    columns = w.of.num_rows if w.of.num_columns == -1 else w.of.num_columns
    return f"torch.eye({w.of.num_rows}, {columns}, {tensor_options(w, w.result('Out').known_dtype)})"


@to_torch()
def _to_torch_tril_triu(w: PlainOp) -> str:
    return f"torch.{'tril' if w.of.lower else 'triu'}({w.x('X')}, {w.of.diagonal})"


@to_torch()
def _to_torch_logspace(w: PlainOp) -> str:
    return w.call(helpers.number_rows.log_spaced, w.x("Start"), w.x("Stop"), w.int("Num"), w.x("Base"), w.type(w.result("Out").known_dtype))
