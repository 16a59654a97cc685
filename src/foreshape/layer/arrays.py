"""Arrays of tensors: written and read by number, and ragged data taken apart into time steps by a rank table."""

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


def lod_rank_table(x: Variable, level: int = 0) -> Variable:
    """Return the sequences of ``x`` at one level, 0 the outermost, ranked by falling length; sequences of one length keep their order.

    Args:
        x: ragged rows.
        level: of sequences, 0 the outermost.
    """
    return current_block().apply("lod_rank_table", {"X": x}, {"level": level})


def max_sequence_len(rank_table: Variable) -> Variable:
    """Return the length of the longest sequence of a rank table, int64 ``[1]``.

    Args:
        rank_table: from `lod_rank_table`.
    """
    return current_block().apply("max_sequence_len", {"RankTable": rank_table})


def lod_tensor_to_array(x: Variable, rank_table: Variable) -> Variable:
    """Return ragged rows taken apart: element t of the array has step t of all sequences longer than t, in the order of the table.

    Args:
        x: ragged rows.
        rank_table: of the sequences, from `lod_rank_table`.
    """
    return current_block().apply("lod_tensor_to_array", {"X": x, "RankTable": rank_table})


def array_to_lod_tensor(x: Variable, rank_table: Variable) -> Variable:
    """Return the ragged rows whose time steps are the elements of an array: the inverse of `lod_tensor_to_array`.

    Args:
        x: an array, as from `lod_tensor_to_array`.
        rank_table: of the sequences, from `lod_rank_table`.
    """
    return current_block().apply("array_to_lod_tensor", {"X": x, "RankTable": rank_table})


def shrink_memory(x: Variable, i: Variable, rank_table: Variable) -> Variable:
    """Return the first rows of ``x``, as many as the table has sequences longer than ``i``: the state of a recurrence at step ``i``.

    Args:
        x: ``[sequences, ...]``, in the order of the table.
        i: a step, int64 ``[1]``.
        rank_table: of the sequences, from `lod_rank_table`.
    """
    return current_block().apply("shrink_rnn_memory", {"X": x, "RankTable": rank_table, "I": i})


def reorder_lod_tensor_by_rank(x: Variable, rank_table: Variable) -> Variable:
    """Return the rows of ``x``, or of a ragged x its outermost sequences, in the order of the table.

    Args:
        x: dense, one row for each sequence of the table, or ragged.
        rank_table: from `lod_rank_table`.
    """
    return current_block().apply("reorder_lod_tensor_by_rank", {"X": x, "RankTable": rank_table})
