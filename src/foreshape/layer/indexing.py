"""Indexing: layers that pick, set and add elements at places, or make places: grids, diagonals, distinct elements, true elements."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import SchemaError
from foreshape.language.program.arithmetic import index_parts, turned_around
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.creation import Shape, fill_constant
from foreshape.layer.functions import apply, several_tensors
from foreshape.layer.manipulation import Sizes, sizes


@tells_line
def setitem(x: Variable, index: Any, value: Variable | float | int | bool) -> Variable:
    """Return ``x`` after ``x[index] = value``; ``x`` itself stays as it is.

    Args:
        x: of any shape.
        index: integers, slices and an Ellipsis, as of numpy.
        value: a number, or a tensor of the element type of ``x``, broadcast to ``x[index]`` as in numpy.

    Raises:
        ShapeError: an index outside of ``x``, or a value that does not broadcast to it.
    """
    axes, starts, ends, steps, dropped, reversed_axes = index_parts(index, x)
    return turned_around(set_value(turned_around(x, reversed_axes), axes, starts, ends, value, steps, dropped), reversed_axes)


@tells_line
def set_value(
    x: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes, value: Variable | float | int | bool, steps: Sequence[int] | None = None,
    dropped: Sequence[int] = (),
) -> Variable:  # fmt: skip
    """Return ``x`` with the entries ``starts`` to ``ends`` (not included) of ``axes`` replaced; `setitem` is shorter for numbers.

    Args:
        x: of any shape.
        axes: the axes of the ranges; the others are set whole.
        starts, ends: numbers and one-number variables; negative ones count from the back. With a negative step an end of -1 is past the first.
        value: a number, or a tensor, broadcast to the range.
        steps: one for each of ``axes``, not 0; by default ones.
        dropped: the axes with one entry, missing in the value.
    """
    first, first_operands = sizes(f"set_value({x.name})", starts, "StartsTensorList", "StartsTensorList")
    last, last_operands = sizes(f"set_value({x.name})", ends, "EndsTensorList", "EndsTensorList")
    if isinstance(starts, Variable) or isinstance(ends, Variable):
        raise SchemaError("set_value: starts and ends are lists, of numbers and of variables of one number each")
    inputs: dict[str, Any] = {"Input": x, **first_operands, **last_operands}
    attrs: dict[str, Any] = {"axes": axes, "starts": first, "ends": last, "steps": steps or [1] * len(axes), "decrease_axes": dropped,
                             "dtype": x.spec.known_dtype.code}  # fmt: skip
    if isinstance(value, Variable):
        inputs["ValueTensor"] = value
    else:
        attrs |= {"values": [value], "shape": [1]}
    return current_block().apply("set_value", inputs, attrs)


def meshgrid(*xs: Variable) -> list[Variable]:
    """Return the coordinates of a grid over vectors: of n vectors n tensors of n dims, the k-th changing along axis k only.

    Args:
        xs: vectors, each ``[n]``.
    """
    return apply("meshgrid", {"X": list(xs)})


def broadcast_tensors(xs: Sequence[Variable]) -> list[Variable]:
    """Return the tensors ``xs``, each repeated along its dims of 1 until all have the same dims."""
    return apply("broadcast_tensors", {"X": several_tensors("broadcast_tensors", xs)})


def repeat_interleave(x: Variable, repeats: int | Variable, axis: int = 0) -> Variable:
    """Return ``x`` with each entry of ``axis`` repeated ``repeats`` times, one after the other; a variable has a number for each entry.

    Args:
        x: of any shape.
        repeats: a number, or int32 or int64 ``[n]``, one for each entry.
        axis: the axis; negative ones count from the end.
    """
    if isinstance(repeats, Variable):
        return apply("repeat_interleave", {"X": x, "RepeatsTensor": repeats}, dim=axis)
    return apply("repeat_interleave", {"X": x}, Repeats=repeats, dim=axis)


def crop(x: Variable, shape: Sizes, offsets: Sizes | None = None) -> Variable:
    """Return the part of ``x`` of these dims from ``offsets``, or 0, on; -1 in ``shape`` is the rest.

    Args:
        x: of any shape.
        shape: the dims of the part: numbers and one-number variables, or an integer variable with them.
        offsets: its begin along each axis, likewise; by default zeros.
    """
    numbers, operands = sizes(f"crop({x.name})", shape, "Shape", "ShapeTensor", x.spec.known_dims)
    first, first_operands = sizes(f"crop({x.name})", [0] * x.spec.rank if offsets is None else offsets, "Offsets", "OffsetsTensor")
    return apply("crop_tensor", {"X": x, **operands, **first_operands}, shape=numbers, offsets=first)


def diag(x: Variable, offset: int = 0, pad_value: float = 0.0) -> Variable:
    """Return the matrix with a vector as its diagonal ``offset`` and ``pad_value`` elsewhere; of a matrix, the diagonal.

    Args:
        x: ``[n]`` or ``[rows, columns]``.
        offset: how far above the main diagonal; below it where negative.
        pad_value: of the other elements of the matrix.
    """
    return apply("diag_v2", {"X": x}, offset=offset, padding_value=pad_value)


def diag_embed(x: Variable, offset: int = 0, axis1: int = -2, axis2: int = -1) -> Variable:
    """Return the last axis of ``x`` as the diagonal of matrices over the axes ``axis1`` and ``axis2``, zeros elsewhere.

    Args:
        x: of any shape.
        offset: how far above the main diagonal; below it where negative.
        axis1, axis2: the axes of rows and columns in the result.
    """
    return apply("diag_embed", {"Input": x}, offset=offset, dim1=axis1, dim2=axis2)


def diagonal(x: Variable, offset: int = 0, axis1: int = 0, axis2: int = 1) -> Variable:
    """Return the diagonals of the matrices over two axes of ``x``, as a last axis; ``offset`` counts from the main one, upwards.

    Args:
        x: of at least two dims.
        offset: below it where negative.
        axis1, axis2: the axes of rows and columns.
    """
    return apply("diagonal", {"Input": x}, offset=offset, axis1=axis1, axis2=axis2)


def fill_diagonal(x: Variable, value: float, offset: int = 0, wrap: bool = False) -> Variable:
    """Return ``x`` with ``value`` on a diagonal; with ``wrap`` the diagonal of a tall matrix begins again at its end.

    Args:
        x: ``[rows, columns]``; or more dims, all alike, with only the first element set.
        value: a number of the element type.
        offset: how far above the main diagonal; below it where negative, of matrices.
        wrap: of tall matrices.
    """
    return apply("fill_diagonal", {"X": x}, value=value, offset=offset, wrap=wrap)


def tril_indices(rows: int, columns: int | None = None, offset: int = 0, dtype: Any = "int64") -> Variable:
    """Return the places of the elements on and below a diagonal of a matrix: ``[2, n]``, the rows and the columns.

    Args:
        rows, columns: of the matrix; square where columns is left out.
        offset: how far above the main diagonal; below it where negative.
        dtype: of the result: "int64" or "int32".
    """
    return apply("tril_indices", {}, rows=rows, cols=rows if columns is None else columns, offset=offset, dtype=dtype_of(dtype))


def triu_indices(rows: int, columns: int | None = None, offset: int = 0, dtype: Any = "int64") -> Variable:
    """Return the places of the elements on and above a diagonal of a matrix: ``[2, n]``, the rows and the columns.

    Args:
        rows, columns: of the matrix; square where columns is left out.
        offset: how far above the main diagonal; below it where negative.
        dtype: of the result: "int64" or "int32".
    """
    return apply("triu_indices", {}, row=rows, col=rows if columns is None else columns, offset=offset, dtype=dtype_of(dtype))


@tells_line
def unique(
    x: Variable, return_index: bool = False, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None, dtype: Any = "int64"
) -> Variable | tuple[Variable, ...]:
    """Return the different elements of ``x``, sorted, or the different entries of ``axis``; how many there are only the run tells.

    Args:
        x: numbers of any shape.
        return_index, return_inverse, return_counts: give these, too.
        axis: None for elements.
        dtype: of places and counts: "int64" or "int32".

    Returns:
        These; with the flags also where each is first in ``x``, where each element of ``x`` is among them, and how often each is there.
    """
    slots = {"Out": True, "Indices": return_index, "Index": return_inverse, "Counts": return_counts}
    attrs: dict[str, Any] = {"return_index": return_index, "return_inverse": return_inverse, "return_counts": return_counts}
    return _with_places("unique", x, slots, {**attrs, "axis": [] if axis is None else [axis], "dtype": dtype_of(dtype), "is_sorted": True})


@tells_line
def unique_consecutive(
    x: Variable, return_inverse: bool = False, return_counts: bool = False, axis: int | None = None, dtype: Any = "int64"
) -> Variable | tuple[Variable, ...]:
    """Return ``x`` as a vector without elements (or without entries of ``axis``) equal to the one before them.

    Args:
        x: numbers of any shape.
        return_inverse, return_counts: return these, too.
        axis: None for elements.
        dtype: of places and counts: "int64" or "int32".

    Returns:
        The remaining elements; with the flags also the place of each element of ``x`` among them, and the count of each.
    """
    slots = {"Out": True, "Index": return_inverse, "Counts": return_counts}
    attrs: dict[str, Any] = {"return_inverse": return_inverse, "return_counts": return_counts}
    return _with_places("unique_consecutive", x, slots, {**attrs, "axis": [] if axis is None else [axis], "dtype": dtype_of(dtype)})


def _with_places(type: str, x: Variable, slots: dict[str, bool], attrs: dict[str, Any]) -> Variable | tuple[Variable, ...]:
    block = current_block()
    name = block.program.layer_name(type)
    outputs = {slot: f"{name}.tmp_{index}" for index, (slot, is_output) in enumerate(slots.items()) if is_output}
    block.append_op(type, {"X": x}, outputs, attrs)
    results = tuple(block.var(n) for n in outputs.values())
    return results[0] if len(results) == 1 else results


def nonzero(x: Variable) -> Variable:
    """Return the places of the nonzero (or true) elements, one in each row: ``[n, rank of x]``, int64."""
    return apply("where_index", {"Condition": x})


def index_select(x: Variable, index: Variable, axis: int = 0) -> Variable:
    """Return the entries of ``axis`` at the indices ``index``, ``[n]``.

    Args:
        x: of any shape.
        index: int32 or int64; a negative one counts from the back.
        axis: the axis.
    """
    return apply("index_select", {"X": x, "Index": index}, dim=axis)


def index_sample(x: Variable, index: Variable) -> Variable:
    """Return the elements of each row of ``x`` at the places in its row of ``index``: ``[rows, n]``.

    Args:
        x: ``[rows, columns]``.
        index: ``[rows, n]``, int32 or int64: columns of x.
    """
    return apply("index_sample", {"X": x, "Index": index})


def index_add(x: Variable, index: Variable, axis: int, value: Variable) -> Variable:
    """Add the k-th entry of ``value`` along ``axis`` to the entry ``index[k]`` of ``x``, for each k.

    Args:
        x: of any shape.
        index: ``[n]``, int32 or int64.
        axis: the axis of x; negative ones count from the end.
        value: of the dims of x, but n along ``axis``.
    """
    return apply("index_add", {"X": x, "Index": index, "AddValue": value}, axis=axis)


def index_put(x: Variable, indices: Sequence[Variable], value: Variable, accumulate: bool = False) -> Variable:
    """Return ``x`` with ``x[indices]`` replaced by ``value`` (or with it added there), as numpy indexes by tensors of integers or of bools.

    Args:
        x: of any shape.
        indices: int32 or int64 tensors, broadcast with each other, one for each of the first axes; or one of bools.
        value: of x's element type; broadcast to the replaced elements.
        accumulate: add, also for repeated places.
    """
    return apply("index_put", {"x": x, "indices": list(indices), "value": value}, accumulate=accumulate)


def take_along_axis(x: Variable, index: Variable, axis: int) -> Variable:
    """Return for each element of ``index`` the element of ``x`` at this index along ``axis``, as numpy's.

    Args:
        x: of any shape.
        index: int32 or int64, of as many dims as x.
        axis: the axis; negative ones count from the end.
    """
    return apply("take_along_axis", {"Input": x, "Index": index}, Axis=axis % max(x.spec.rank, 1))


def put_along_axis(x: Variable, index: Variable, value: Variable | float, axis: int, reduce: str = "assign", include_self: bool = True) -> Variable:
    """Return ``x`` with ``value`` at the indices ``index`` along ``axis``.

    Args:
        x: of any shape.
        index: int32 or int64, of as many dims as x.
        value: as ``index``; or one number.
        axis: the axis; negative ones count from the end.
        reduce: "assign", "add", "mul" or "multiply", "mean", "amin" or "amax".
        include_self: False to leave former values out, for all but "assign".
    """
    values = value if isinstance(value, Variable) else apply("fill_any_like", {"X": index}, value=value, dtype=x.spec.known_dtype.code)
    attrs: dict[str, Any] = {"Axis": axis % max(x.spec.rank, 1), "Reduce": reduce, "Include_self": include_self}
    return apply("put_along_axis", {"Input": x, "Index": index, "Value": values}, **attrs)


def scatter_nd_add(x: Variable, index: Variable, updates: Variable) -> Variable:
    """Return ``x`` with ``updates`` added at the places in the rows of ``index``, ``[..., k]``, along its first k axes.

    Args:
        x: of any shape.
        index: int32 or int64 ``[..., k]``, k at most the rank of x.
        updates: ``[..., *the other dims]``, of the element type of x.
    """
    return apply("scatter_nd_add", {"X": x, "Index": index, "Updates": updates})


@tells_line
def scatter_nd(index: Variable, updates: Variable, shape: Shape) -> Variable:
    """Return zeros of ``shape`` with ``updates`` added at the places in the rows of ``index`` along its first axes.

    Args:
        index: int32 or int64 ``[..., k]``, k at most the rank of the result.
        updates: ``[..., *the other dims]``.
        shape: as for `fill_constant`.
    """
    return scatter_nd_add(fill_constant(shape, updates.spec.known_dtype), index, updates)


def multiplex(xs: Sequence[Variable], index: Variable) -> Variable:
    """Take each row from the tensor with its number in ``index``, ``[rows, 1]``.

    Args:
        xs: at least two tensors ``[rows, ...]`` of the same dims.
        index: int32 or int64.
    """
    return apply("multiplex", {"X": several_tensors("multiplex", xs), "Ids": index})


def shard_index(x: Variable, index_num: int, nshards: int, shard_id: int, ignore_value: int = -1) -> Variable:
    """Number the indices in ``x``, ``[..., 1]``, within the shard ``shard_id``; indices of other shards become ``ignore_value``.

    Args:
        x: int32 or int64.
        index_num: the number of indices in all shards.
        nshards: the number of shards: each has index_num / nshards of them, rounded up.
        shard_id: the shard, from 0.
        ignore_value: the value for indices of other shards.
    """
    return apply("shard_index", {"X": x}, index_num=index_num, nshards=nshards, shard_id=shard_id, ignore_value=ignore_value)


def temporal_shift(x: Variable, seg_num: int, shift_ratio: float = 0.25, data_format: str = "NCHW") -> Variable:
    """Return ``x``, ``[videos * seg_num, channels, height, width]``, with some channels of the image before and some of the next.

    Args:
        x: the images of each video one after the other.
        seg_num: the number of images of a video.
        shift_ratio: the fraction of the channels from the image before, and from the next; above 0 and below a half.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    return apply("temporal_shift", {"X": x}, seg_num=seg_num, shift_ratio=shift_ratio, data_format=data_format)
