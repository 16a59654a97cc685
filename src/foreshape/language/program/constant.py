"""Arrays whose numbers are written in a program."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import BOOL, FP64, INT64
from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import SchemaError

MAX_CONSTANT_ELEMENTS = 1 << 20
"""The largest array written into a program, in elements: larger ones are fed, or are parameters."""


def value_attributes(array: Any) -> dict[str, Any]:
    """Return the attributes of ``assign_value`` for an array, or for nested lists of numbers.

    Raises:
        SchemaError: more than `MAX_CONSTANT_ELEMENTS`. TypeMismatchError: an element type unknown to programs.
    """
    import numpy

    values: Any = numpy.asarray(array)
    if not isinstance(array, (numpy.ndarray, numpy.generic)) and values.dtype == numpy.float64:
        values = values.astype(numpy.float32)  # Python's own numbers do not ask for doubles
    element = dtype_of(values.dtype)
    if values.size > MAX_CONSTANT_ELEMENTS:
        raise SchemaError(f"an array of {values.size} elements is too large to be written in a program: feed it, or make it a parameter")
    numbers = values.reshape(-1).tolist()
    slot = (
        "bool_values"
        if element is BOOL
        else "int64_values"
        if element is INT64
        else "int32_values"
        if element.is_integer
        else "values"
        if element is FP64
        else "fp32_values"
    )
    return {"shape": list(values.shape), "dtype": element.code, slot: [int(v) for v in numbers] if element is BOOL else numbers}
