"""Arrays of tensors: written and read by number."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import LOD_TENSOR_ARRAY, Spec
from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import TypeMismatchError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable


@tells_line
def create_array(dtype: Any = "float32") -> Variable:
    """Return an empty array of tensors, to be written with `array_write`.

    Args:
        dtype: the element type of its tensors; the first write decides.
    """
    block = current_block()
    return block.create_variable(block.program.layer_name("array"), Spec(LOD_TENSOR_ARRAY, dtype_of(dtype), None))


@tells_line
def array_write(x: Variable, i: Variable, array: Variable | None = None) -> Variable:
    """Write ``x`` to element ``i`` of ``array``, in place; a shorter array is lengthened.

    Args:
        x: dense or ragged. All elements have one element type, number of dims and of levels.
        i: one position, int32 or int64, from 0.
        array: the array to write; by default a new one.

    Returns:
        The array.

    Raises:
        TypeMismatchError, ShapeError: ``array`` is none, or its other elements are not like ``x``.
    """
    if array is None:
        array = create_array(x.spec.known_dtype)
    elif array.kind is not LOD_TENSOR_ARRAY:
        raise TypeMismatchError(f"array must be an array of tensors; {array.name} is {array.spec.text()}")
    current_block().append_op("write_to_array", {"X": x, "I": i}, {"Out": array})
    return array


def array_read(array: Variable, i: Variable) -> Variable:
    """Return element ``i`` of an array, written before; a size that differs between elements is set by the run.

    Args:
        array: an array of tensors.
        i: one position, int32 or int64, from 0.
    """
    return current_block().apply("read_from_array", {"X": array, "I": i})


def array_length(array: Variable) -> Variable:
    """Return the number of positions of an array, int64 ``[1]``."""
    return current_block().apply("lod_array_length", {"X": array})


def tensor_array_to_tensor(x: Variable, axis: int = 0, use_stack: bool = False) -> tuple[Variable, Variable]:
    """Return all elements of an array as one tensor.

    Args:
        x: an array of tensors.
        axis: the dim of the join, or the new dim of the stack.
        use_stack: stack them; all must have the same dims then.

    Returns:
        The tensor, and int32 ``[elements]``: the size of each along ``axis``.
    """
    return current_block().apply("tensor_array_to_tensor", {"X": x}, {"axis": axis, "use_stack": use_stack})
