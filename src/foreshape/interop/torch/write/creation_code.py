"""Torch code of new tensors: constants, rows of numbers, draws."""

from __future__ import annotations

from math import prod
from typing import Any

from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import number_rows
from foreshape.interop.torch.write.numbers_code import nested
from foreshape.interop.torch.write.plain_op import PlainOp, number_code, tuple_of
from foreshape.interop.torch.write.plain_writer import LONG_CONSTANT
from foreshape.spec import BOOL, LOD_TENSOR, DType


def _made(w: PlainOp, of: DType) -> str:
    return f"dtype={w.type(of)}, device={w.device()}"


def _shape(w: PlainOp) -> str:
    """Return the dims of the result, as a tuple or a list."""
    dims = w.result("Out").known_dims
    if all(w.writer.has_size(d) for d in dims):
        return tuple_of([w.size(d) for d in dims]) if dims else "()"
    if w.count("ShapeTensorList"):
        return f"[{', '.join(w.int('ShapeTensorList', at) for at in range(w.count('ShapeTensorList')))}]"
    if w.has("ShapeTensor"):
        return w.list("ShapeTensor")
    raise Refused(f"the shape {list(map(str, dims))} is not known")


def _number(w: PlainOp, of: DType) -> str:
    text = getattr(w.of, "str_value", "")
    if text and of.is_integer:
        return str(int(float(text))) if "." in text or "e" in text.lower() else str(int(text))
    return w.number(float(text or w.of.value), of)


@writes("fill_constant")
def _fill(w: PlainOp) -> str:
    of = w.result("Out").known_dtype
    if w.has("ValueTensor"):
        return f"{w.cast(w.x('ValueTensor') + '.reshape(())', w.dtype('ValueTensor'), of)}.expand({_shape(w)}).clone()"
    dims = [d for d in w.result("Out").known_dims if isinstance(d, int)]
    if w.writer.flow != "python" and not of.is_floating and len(dims) == w.result("Out").rank and 0 < prod(dims) <= LONG_CONSTANT:
        return f"torch.tensor({nested([_number(w, of)] * prod(dims), dims)}, {_made(w, of)})"  # a trace takes it for a constant
    return f"torch.full({_shape(w)}, {_number(w, of)}, {_made(w, of)})"


@writes("fill_any_like", "fill_zeros_like")
def _like(w: PlainOp) -> str:
    if w.spec("X").kind is not LOD_TENSOR:
        raise Refused("X is an array")
    to = w.result("Out").known_dtype
    of = "" if to is w.dtype("X") else f", dtype={w.type(to)}"
    if w.op.type == "fill_zeros_like":
        return f"torch.zeros_like({w.x('X')}{of})"
    value = w.of.value if to.is_floating or to is BOOL else int(w.of.value)
    return f"torch.full_like({w.x('X')}, {w.number(value, to)}{of})"


@writes("fill_constant_batch_size_like")
def _batch_like(w: PlainOp) -> str:
    of = w.result("Out").known_dtype
    return f"torch.full({_shape(w)}, {_number(w, of)}, {_made(w, of)})"


@writes("empty")
def _empty(w: PlainOp) -> str:
    return f"torch.zeros({_shape(w)}, {_made(w, w.result('Out').known_dtype)})"


@writes("assign_value")
def _values(w: PlainOp) -> str:
    import numpy

    spec = w.result("Out")
    dims = [d for d in spec.known_dims if isinstance(d, int)]
    of = spec.known_dtype
    slots = ("values", "bool_values", "fp32_values", "fp64_values", "int8_values", "int32_values", "int64_values")
    given: Any = next((v for n in slots if (v := getattr(w.of, n, ()))), ())
    array: Any = numpy.asarray(given, "bool" if of is BOOL else of.numpy_name or "float32").reshape(dims)
    if array.size > LONG_CONSTANT:
        return w.writer.constant(w.op.output_slots["Out"][0], array)
    if not array.size:
        return f"torch.zeros({tuple(dims)}, {_made(w, of)})"
    return f"torch.tensor({array.tolist()}, {_made(w, of)})".replace("inf", 'float("inf")').replace("nan", 'float("nan")')


@writes("range")
def _range(w: PlainOp) -> str:
    of = w.dtype("Start")
    if of.is_integer:
        start, end, step = (w.int(slot) for slot in ("Start", "End", "Step"))
        numbers = [int(n) for n in (start, end, step) if n.lstrip("-").isdigit()]
        rises = len(numbers) == 3 and (numbers[1] - numbers[0]) * numbers[2] > 0
        if rises or ((start, step) == ("0", "1") and w.ints("End") is not None):
            return f"torch.arange({', '.join([end] if (start, step) == ('0', '1') else [start, end, step])}, {_made(w, of)})"
        return w.call(number_rows.whole_numbers, start, end, step, w.type(of), w.device())
    (size,) = w.result("Out").known_dims
    if w.writer.has_size(size):
        return w.call(number_rows.counted, w.x("Start"), w.x("Step"), w.size(size))
    return w.call(number_rows.evenly, w.x("Start"), w.x("End"), w.x("Step"))


@writes("linspace")
def _linspace(w: PlainOp) -> str:
    return w.call(number_rows.spaced, w.x("Start"), w.x("Stop"), w.int("Num"), w.type(w.result("Out").known_dtype))


@writes("eye")
def _eye(w: PlainOp) -> str:
    columns = w.of.num_rows if w.of.num_columns == -1 else w.of.num_columns
    return f"torch.eye({w.of.num_rows}, {columns}, {_made(w, w.result('Out').known_dtype)})"


@writes("shape")
def _shape_of(w: PlainOp) -> str:
    return f"torch.tensor({w.x('Input')}.shape, {_made(w, w.result('Out').known_dtype)})"


@writes("size")
def _size_of(w: PlainOp) -> str:
    made = f"torch.tensor({w.x('Input')}.numel(), {_made(w, w.result('Out').known_dtype)})"
    return made if not w.result("Out").known_dims else f"{made}.reshape(1)"


# --- draws, of torch's own generator


@writes("uniform_random", "uniform_random_batch_size_like")
def _uniform(w: PlainOp) -> str:
    if w.of.diag_num:
        raise Refused("it overwrites a diagonal")
    return f"torch.empty({_shape(w)}, {_made(w, w.result('Out').known_dtype)}).uniform_({number_code(w.of.min)}, {number_code(w.of.max)})"


@writes("gaussian_random")
def _normal(w: PlainOp) -> str:
    return f"torch.empty({_shape(w)}, {_made(w, w.result('Out').known_dtype)}).normal_({number_code(w.of.mean)}, {number_code(w.of.std)})"


@writes("randint")
def _randint(w: PlainOp) -> str:
    return f"torch.randint({w.of.low}, {w.of.high}, {_shape(w)}, {_made(w, w.result('Out').known_dtype)})"


@writes("randperm")
def _randperm(w: PlainOp) -> str:
    return f"torch.randperm({w.of.n}, {_made(w, w.result('Out').known_dtype)})"


@writes("bernoulli")
def _bernoulli(w: PlainOp) -> str:
    return f"torch.bernoulli({w.x('X')})"
