"""Constants, ranges and random numbers: tensors without inputs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from operator import index
from typing import Any, SupportsIndex, TypeAlias

from foreshape.core.dims import Dim
from foreshape.core.spec import INT32, DType
from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.constant import value_attributes
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable

Shape: TypeAlias = "Sequence[int | Dim | Variable] | Variable"
_LARGEST_FLOAT = (2 - 2**-23) * 2.0**127


def fill_constant(shape: Shape, dtype: Any = "fp32", value: float | int | bool = 0.0) -> Variable:
    """Return a tensor of ``shape`` whose every element is ``value``.

    Args:
        shape: ints or variables of one integer; or an integer variable with the whole shape.
        dtype: of the result.
        value: a number of the element type.

    Raises:
        SchemaError: a value outside of the element type.
    """
    inputs, sizes = _shape(shape)
    exact = str(index(value)) if isinstance(value, SupportsIndex) else repr(float(value))
    attrs = {"shape": sizes, "dtype": dtype_of(dtype).code, "value": _as_float(value), "str_value": exact}
    return current_block().apply("fill_constant", inputs, attrs)


def fill_like(x: Variable, value: float = 0.0, dtype: Any = None) -> Variable:
    """Return a tensor of the shape of ``x`` whose every element is ``value``; by default of its element type.

    Args:
        x: of any shape; its numbers are not read.
        value: a number of the element type.
        dtype: of the result; by default the type of x.
    """
    return current_block().apply("fill_any_like", {"X": x}, {"value": value, "dtype": -1 if dtype is None else dtype_of(dtype).code})


def assign(x: Any, output: Variable | None = None) -> Variable:
    """Return a copy of a variable, or an array (or number) as a tensor whose numbers are written in the program.

    Args:
        x: the variable, array or number.
        output: the variable to write; by default a new one.

    Raises:
        SchemaError: an array of more than `MAX_CONSTANT_ELEMENTS`.
    """
    outputs = None if output is None else {"Out": output}
    block = current_block()
    if isinstance(x, Variable):
        op = block.append_op("assign", {"X": x}, outputs)
    else:
        op = block.append_op("assign_value", {}, outputs, value_attributes(x))
    return block.var(next(iter(op.output_names())))


def range(start: int | float | Variable, end: int | float | Variable | None = None, step: int | float | Variable = 1, dtype: Any = "int64") -> Variable:
    """Return start, start + step, ... before ``end``; with one argument 0, 1, ... before it. Shape ``[n]``.

    ``n`` is known if the three are known integers in the description.

    Args:
        start, end, step: numbers, or variables of one, cast to ``dtype``; ``step`` is not 0.
        dtype: of the result.
    """
    element_type = dtype_of(dtype)
    first, last = (0, start) if end is None else (start, end)
    inputs = {slot: _number(number, element_type) for slot, number in (("Start", first), ("End", last), ("Step", step))}
    return current_block().apply("range", inputs)


def linspace(start: float | Variable, stop: float | Variable, num: int | Variable, dtype: Any = "fp32") -> Variable:
    """Return ``num`` numbers from start to stop, evenly spaced, both included. Shape ``[num]``.

    Args:
        start, stop: numbers, or variables of one, cast to ``dtype``.
        num: how many, likewise; at least 1.
        dtype: of the result.
    """
    element_type = dtype_of(dtype)
    inputs = {"Start": _number(start, element_type), "Stop": _number(stop, element_type), "Num": _number(num, INT32)}
    return current_block().apply("linspace", inputs, {"dtype": element_type.code})


def logspace(start: float | Variable, stop: float | Variable, num: int | Variable, base: float | Variable = 10.0, dtype: Any = "fp32") -> Variable:
    """Return ``num`` powers of ``base``, with exponents from start to stop, evenly spaced, both included. Shape ``[num]``.

    Args:
        start, stop, base: numbers, or variables of one, cast to ``dtype``.
        num: how many, likewise; at least 1.
        dtype: of the result.
    """
    element_type = dtype_of(dtype)
    inputs = {"Start": _number(start, element_type), "Stop": _number(stop, element_type), "Num": _number(num, INT32), "Base": _number(base, element_type)}
    return current_block().apply("logspace", inputs, {"dtype": element_type.code})


def eye(rows: int, columns: int | None = None, dtype: Any = "fp32") -> Variable:
    """Return a matrix of zeros with ones on the diagonal, ``[rows, columns]``.

    Args:
        rows: how many.
        columns: how many; by default as many as rows.
        dtype: of the result.
    """
    return current_block().apply("eye", {}, {"num_rows": rows, "num_columns": -1 if columns is None else columns, "dtype": dtype_of(dtype).code})


def uniform_random(shape: Shape, dtype: Any = "fp32", min: float = -1.0, max: float = 1.0, seed: int = 0) -> Variable:
    """Draw numbers uniformly from [min, max). A seed other than 0 draws the same at each run.

    Args:
        shape: as for `fill_constant`.
        dtype: of the result: floats.
        min, max: the ends; ``max`` itself is not drawn.
        seed: not 0 draws the same in each run.
    """
    inputs, sizes = _shape(shape)
    return current_block().apply("uniform_random", inputs, {"shape": sizes, "dtype": dtype_of(dtype).code, "min": min, "max": max, "seed": seed})


def gaussian_random(shape: Shape, mean: float = 0.0, std: float = 1.0, seed: int = 0, dtype: Any = "fp32") -> Variable:
    """Draw numbers from the normal distribution. A seed other than 0 draws the same at each run.

    Args:
        shape: as for `fill_constant`.
        mean, std: mean and standard deviation.
        seed: not 0 draws the same in each run.
        dtype: of the result: floats.
    """
    inputs, sizes = _shape(shape)
    return current_block().apply("gaussian_random", inputs, {"shape": sizes, "dtype": dtype_of(dtype).code, "mean": mean, "std": std, "seed": seed})


def randint(min: int, max: int, shape: Shape, dtype: Any = "int64", seed: int = 0) -> Variable:
    """Draw integers uniformly from [min, max). A seed other than 0 draws the same at each run.

    Args:
        min, max: the ends; ``max`` itself is not drawn.
        shape: as for `fill_constant`.
        dtype: of the result, of integers.
        seed: not 0 draws the same in each run.
    """
    inputs, sizes = _shape(shape)
    return current_block().apply("randint", inputs, {"shape": sizes, "dtype": dtype_of(dtype).code, "low": min, "high": max, "seed": seed})


def randperm(n: int, dtype: Any = "int64", seed: int = 0) -> Variable:
    """Return the numbers 0 to n - 1 in random order. Shape ``[n]``.

    Args:
        n: how many.
        dtype: of the result: integers or floats.
        seed: not 0 draws the same in each run.
    """
    return current_block().apply("randperm", {}, {"n": n, "dtype": dtype_of(dtype).code, "seed": seed})


def constant_like(x: Variable, number: float | int | bool) -> Variable:
    """Return ``number`` as a tensor of the element type of ``x`` that broadcasts against it."""
    dtype = x.spec.known_dtype
    if isinstance(number, float) and not dtype.is_floating:
        raise SchemaError(f"{x.name} is {dtype.name}; {number!r} needs a floating-point type: use layer.cast first")
    return fill_constant([1] if x.spec.known_dims else [], dtype, number)


def _number(value: float | int | Variable, dtype: DType) -> Variable:
    if not isinstance(value, Variable):
        return fill_constant([1], dtype, value)
    if value.dtype is dtype:
        return value
    return current_block().apply("cast", {"X": value}, {"in_dtype": value.spec.known_dtype.code, "out_dtype": dtype.code})


def _as_float(value: float | int | bool) -> float:
    """Return the value attribute, of single precision; a double past its range is told by the text beside it."""
    try:
        number = float(value)
        return math.copysign(math.inf, number) if abs(number) > _LARGEST_FLOAT else number
    except OverflowError:
        raise SchemaError(f"a constant must fit a floating-point number; seen an integer of {int(value).bit_length()} bits") from None


def _at_run(size: Dim) -> Variable:
    """Return the variable with an open size's number in a run: a size of an input, or else of the last variable with the size."""
    block = current_block()
    candidates = [
        (v, axis) for v in block.program.global_block.vars.values() for axis, dim in enumerate(v.spec.dims or ()) if dim is size and not v.persistable
    ]
    if not candidates:
        raise ShapeError(f"no variable has the size {size}, so that nothing tells it in a run; give a number, or layer.shape(x)[axis]")
    variable, axis = next((candidate for candidate in candidates if candidate[0].op is None), candidates[-1])
    sizes = block.apply("shape", {"Input": variable})
    return block.apply("slice", {"Input": sizes}, {"axes": [0], "starts": [axis], "ends": [axis + 1]})


def _shape(shape: Shape) -> tuple[dict[str, Any], list[int]]:
    """Return the inputs and the attribute of a shape, as PaddlePaddle writes them: -1 for the sizes of tensors."""
    if isinstance(shape, Variable):
        return {"ShapeTensor": shape}, []
    sizes: list[int] = []
    shape = [_at_run(size) if isinstance(size, Dim) else size for size in shape]
    for size in shape:
        if isinstance(size, Variable):
            sizes.append(-1)
        elif hasattr(size, "__index__") and (number := index(size)) >= 0:
            sizes.append(number)
        else:
            raise ShapeError.must("a size", "an int of at least 0, or a variable of one integer", f"{size!r}")
    if not any(isinstance(size, Variable) for size in shape):
        return {}, sizes
    return {"ShapeTensorList": [_number(size, INT32) for size in shape]}, sizes
