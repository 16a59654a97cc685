"""Shape and order: layers that move, join, pick and order elements. Sizes may be numbers, or variables of one number each."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from foreshape.core.dims import Dim
from foreshape.core.spec import INT32, UNK
from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator.attributes import several
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.functions import apply, several_tensors

Sizes = Sequence[Any] | Variable
_OPEN = 2**31 - 1


def sizes(layer: str, values: Sizes, slot: str, list_slot: str, keep: Sequence[Any] = (), unchanged: int = -1) -> tuple[list[int], dict[str, Any]]:
    """Return the attribute and the operands of an operator for sizes.

    A symbolic size equal to the one in ``keep`` at its place is written as ``unchanged``: "the same" for the operator.
    """
    if isinstance(values, Variable):
        return [], {slot: values}
    numbers: list[int] = []
    for index, size in enumerate(values):
        if isinstance(size, Variable) or size is UNK:
            numbers.append(-1)
        elif isinstance(size, Dim):
            if index >= len(keep) or keep[index] is not size:
                raise ShapeError(f"{layer}: the size {size} is not a number; say -1, or take it from layer.shape")
            numbers.append(unchanged)
        else:
            numbers.append(size)
    if not any(isinstance(size, Variable) for size in values):
        return numbers, {}
    tensors = [s if isinstance(s, Variable) else _number(n) for s, n in zip(values, numbers, strict=True)]
    return numbers, {list_slot: tensors}


def _number(n: int) -> Variable:
    return apply("fill_constant", {}, shape=[1], dtype=INT32, value=float(n), str_value=str(n))


def reshape(x: Variable, shape: Sizes) -> Variable:
    """Return the elements of ``x`` in row-major order, in other dims.

    Args:
        x: of any shape.
        shape: numbers (0 copies the dim of ``x`` at the same place, one -1 is the rest) and one-number variables, or one variable.

    Raises:
        ShapeError: another number of elements; in the run, if a branch decides the number of dims of ``x``.
    """
    numbers, operands = sizes(f"reshape({x.name})", shape, "Shape", "ShapeTensor", x.spec.dims or (), 0)
    return apply("reshape2", {"X": x, **operands}, shape=numbers)[0]


def transpose(x: Variable, perm: Sequence[int] | None = None) -> Variable:
    """Return ``x`` with axis ``perm[k]`` as axis ``k``; the axes reversed where ``perm`` is left out.

    Args:
        x: of any shape.
        perm: for each axis of the result the axis of x; reversed if omitted.
    """
    return apply("transpose2", {"X": x}, axis=list(range(x.spec.rank))[::-1] if perm is None else perm)[0]


def flatten(x: Variable, start_axis: int = 1, stop_axis: int = -1) -> Variable:
    """Return ``x`` with the dims from ``start_axis`` to ``stop_axis``, both included, merged into one.

    Args:
        x: of any shape.
        start_axis, stop_axis: the first and the last of the merged axes; negative ones count from the end.
    """
    return apply("flatten_contiguous_range", {"X": x}, start_axis=start_axis, stop_axis=stop_axis)[0]


def squeeze(x: Variable, axes: Sequence[int] | int | None = None) -> Variable:
    """Return ``x`` without the dims of 1 at ``axes``, or without all dims of 1.

    Args:
        x: of any shape.
        axes: of size 1; by default all such.
    """
    return apply("squeeze2", {"X": x}, axes=_list(axes))[0]


def unsqueeze(x: Variable, axes: Sequence[int] | int | Variable) -> Variable:
    """Return ``x`` with a dim of 1 put in at each of ``axes``, one after the other.

    Args:
        x: of any shape.
        axes: where axes of size 1 are in the result: numbers and one-number variables.
    """
    if isinstance(axes, Variable):
        return apply("unsqueeze2", {"X": x, "AxesTensor": axes})[0]
    return apply("unsqueeze2", {"X": x}, axes=_list(axes))[0]


def _list(axes: Sequence[int] | int | None) -> list[int]:
    return [] if axes is None else several(axes)


def concat(xs: Sequence[Variable], axis: int | Variable = 0) -> Variable:
    """Return the tensors ``xs`` one after the other along ``axis``; their other dims are the same.

    Args:
        xs: tensors of one element type, with dims different in ``axis`` alone.
        axis: the axis; a number, or a variable of one.
    """
    tensors = several_tensors("concat", xs)
    if isinstance(axis, Variable):
        return apply("concat", {"X": tensors, "AxisTensor": axis})
    return apply("concat", {"X": tensors}, axis=axis)


def split(x: Variable, num_or_sections: int | Sequence[int], axis: int = 0) -> list[Variable]:
    """Return ``x`` cut along ``axis``: a number of equal parts, or parts of these sizes, one of which may be -1, the rest.

    Args:
        x: of any shape.
        num_or_sections: the number, a divisor of the axis, or the sizes.
        axis: the axis.
    """
    if hasattr(num_or_sections, "__len__"):
        return apply("split", {"X": x}, sections=list(cast("Sequence[int]", num_or_sections)), axis=axis)
    return apply("split", {"X": x}, num=num_or_sections, axis=axis)


def stack(xs: Sequence[Variable], axis: int = 0) -> Variable:
    """Return the tensors ``xs``, all of one shape, as the entries of a new axis.

    Args:
        xs: tensors of the same dims and element type.
        axis: where the new one is in the result.
    """
    return apply("stack", {"X": several_tensors("stack", xs)}, axis=axis)


def unstack(x: Variable, axis: int = 0) -> list[Variable]:
    """Return the entries of ``axis`` of ``x``, each without the axis, whose dim must be known.

    Args:
        x: of any shape, with a known size along ``axis``.
        axis: the axis; negative ones count from the end.
    """
    return apply("unstack", {"X": x}, axis=axis)


def expand(x: Variable, shape: Sizes) -> Variable:
    """Return ``x`` repeated along its dims of 1 to ``shape``, last dims lined up; -1 keeps a dim.

    Args:
        x: of any shape.
        shape: the dims of the result: numbers and one-number variables, or an integer variable with them; -1 keeps a dim of x.
    """
    dims = x.spec.known_dims
    lead = () if isinstance(shape, Variable) else (None,) * (len(shape) - len(dims))
    numbers, operands = sizes(f"expand({x.name})", shape, "Shape", "expand_shapes_tensor", (*lead, *dims))
    return apply("expand_v2", {"X": x, **operands}, shape=numbers)


def expand_as(x: Variable, y: Variable) -> Variable:
    """Return ``x`` repeated along its dims of 1 to the dims of ``y``.

    Args:
        x: of any shape.
        y: the tensor whose dims are taken.
    """
    target = [d if isinstance(d, int) else -1 for d in y.spec.known_dims]
    return apply("expand_as_v2", {"X": x, "Y": y}, target_shape=target)


def tile(x: Variable, repeats: Sizes) -> Variable:
    """Return ``x`` repeated along each axis, last axes lined up.

    Args:
        x: of any shape.
        repeats: the repetitions along each axis: numbers and one-number variables, or an integer variable with all of them.
    """
    numbers, operands = sizes(f"tile({x.name})", repeats, "RepeatTimes", "repeat_times_tensor")
    return apply("tile", {"X": x, **operands}, repeat_times=numbers)


def flip(x: Variable, axis: Sequence[int] | int) -> Variable:
    """Return ``x`` with the order along ``axis`` reversed.

    Args:
        x: of any shape.
        axis: one axis, or several; negative ones count from the end.
    """
    return apply("flip", {"X": x}, axis=_list(axis))


def roll(x: Variable, shifts: Sequence[int] | int, axis: Sequence[int] | int | None = None) -> Variable:
    """Return ``x`` with its elements moved on by ``shifts`` along ``axis``, from the end back to the start.

    Args:
        x: of any shape.
        shifts: how far, for each of ``axis``.
        axis: one, several, or None: all elements in row-major order.
    """
    return apply("roll", {"X": x}, shifts=_list(shifts), axis=_list(axis))


def pad(x: Variable, padding: Sequence[int], mode: str = "constant", pad_value: float = 0.0, data_format: str = "NCHW") -> Variable:
    """Add a border to ``x``.

    Args:
        x: of any shape.
        padding: [before, after] of each axis, first axis first, for any ``x``; or of an ``x`` of 3 to 5 dims, [batch, channels, ...space],
            [left, right], [left, right, top, bottom] or [left, right, top, bottom, front, back].
        mode: "constant", "reflect", "replicate" or "circular"; the last three are for the space only.
        pad_value: the value of a constant border.
        data_format: "NCHW", or "NHWC" with the channels last, of rows and volumes too.

    Raises:
        SchemaError: another number of numbers in padding.
    """
    rank = x.spec.rank
    if mode == "constant" and len(padding) == 2 * rank:
        return apply("pad", {"X": x}, paddings=padding, pad_value=pad_value)
    if not 3 <= rank <= 5 or len(padding) != 2 * (rank - 2):
        raise SchemaError(
            f"pad({x.name}): padding of {x.spec.text()} is {2 * rank} numbers, two for each axis"
            + (f", or {2 * (rank - 2)}, two for each axis of the space" if 3 <= rank <= 5 else "")
            + f"; seen {len(padding)}"
        )
    last = data_format.endswith("C")
    first = 1 if last else 2
    new = list(range(first, first + 5 - rank))
    spatial = unsqueeze(x, new) if new else x
    numbers = [*padding, *[0] * (6 - len(padding))]
    out = apply("pad3d", {"X": spatial}, paddings=numbers, mode=mode, value=pad_value, data_format="NDHWC" if last else "NCDHW")
    return squeeze(out, new) if new else out


def slice(x: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes) -> Variable:
    """Return the entries ``starts`` to ``ends`` (not included) of ``axes``. Negative ones count from the back; ``x[1:3]`` is shorter.

    Args:
        x: of any shape.
        axes: the axes to cut; the others stay whole.
        starts, ends: numbers and one-number variables, one for each of ``axes``.
    """
    inputs, attrs = _ranges(x, axes, starts, ends)
    return current_block().apply("slice", inputs, attrs)


def strided_slice(x: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes, strides: Sequence[int]) -> Variable:
    """Return every ``strides``-th entry from ``starts`` to ``ends`` (not included) of ``axes``; with a negative stride, an end of -1 is past the first.

    Args:
        x: of any shape.
        axes: the axes to cut; the others stay whole.
        starts, ends: numbers and one-number variables, one for each of ``axes``; negative ones count from the back.
        strides: one for each of ``axes``, not 0.
    """
    inputs, attrs = _ranges(x, axes, starts, ends)
    return current_block().apply("strided_slice", inputs, attrs | {"strides": strides})


def _ranges(x: Variable, axes: Sequence[int], starts: Sizes, ends: Sizes) -> tuple[dict[str, Any], dict[str, Any]]:
    first, first_operands = sizes(f"slice({x.name})", starts, "StartsTensor", "StartsTensorList")
    last, last_operands = sizes(f"slice({x.name})", ends, "EndsTensor", "EndsTensorList")
    flag = -1 if first_operands or last_operands else 1
    attrs = {"axes": axes, "starts": first, "ends": [min(e, _OPEN) for e in last], "infer_flags": [flag] * len(axes)}
    return {"Input": x, **first_operands, **last_operands}, attrs


def gather(x: Variable, index: Variable, axis: int | Variable = 0) -> Variable:
    """Return the entries of ``axis`` at the indices ``index`` (``[n]``, or one number, which drops the axis).

    Args:
        x: of any shape.
        index: int32 or int64.
        axis: a number, or a variable of one.
    """
    if isinstance(axis, Variable):
        return apply("gather", {"X": x, "Index": index, "Axis": axis})
    return apply("gather", {"X": x, "Index": index}, axis=axis)


def gather_nd(x: Variable, index: Variable) -> Variable:
    """Return the elements (or parts) of ``x`` at the places in the rows of ``index``, ``[..., k]``, along its first k axes.

    Args:
        x: of any shape.
        index: int32 or int64 ``[..., k]``, k at most the rank of x.
    """
    return apply("gather_nd", {"X": x, "Index": index})


def scatter(x: Variable, index: Variable, updates: Variable, overwrite: bool = True) -> Variable:
    """Return ``x`` with its rows ``index`` replaced by ``updates``; without ``overwrite``, by the sum of all updates for the row.

    Args:
        x: ``[rows, ...]``.
        index: ``[n]``, int32 or int64: rows of x.
        updates: ``[n, ...]``, of the element type of x.
        overwrite: the last update of a row stands; otherwise the sum of all.
    """
    return apply("scatter", {"X": x, "Ids": index, "Updates": updates}, overwrite=overwrite)


def masked_select(x: Variable, mask: Variable) -> Variable:
    """Return the elements of ``x`` where ``mask`` is true, ``[n]``; how many there are only the run tells.

    Args:
        x: of any shape.
        mask: bools of the dims of x.
    """
    return apply("masked_select", {"X": x, "Mask": mask})


def one_hot(x: Variable, depth: int | Variable, dtype: Any = "fp32", allow_out_of_range: bool = False) -> Variable:
    """Return for each number in ``x`` a row of ``depth`` zeros with a one at the number: ``[*x, depth]``.

    Args:
        x: integers from 0 to depth - 1, of any shape.
        depth: the number of columns; a number, or a variable of one.
        dtype: of the result.
        allow_out_of_range: a number outside gives a row of zeros; otherwise it is an error of the run.
    """
    attrs = {"dtype": dtype_of(dtype), "allow_out_of_range": allow_out_of_range}
    if isinstance(depth, Variable):
        return apply("one_hot_v2", {"X": x, "depth_tensor": depth}, **attrs)
    return apply("one_hot_v2", {"X": x}, depth=depth, **attrs)


def shape(x: Variable) -> Variable:
    """Return the dims of ``x`` as a tensor ``[rank]``, int32. Shapes made with it keep their symbols."""
    return apply("shape", {"Input": x})


def tril(x: Variable, diagonal: int = 0) -> Variable:
    """Return ``x`` with zeros above the diagonal of its last two dims; ``diagonal`` counts from the main one, upwards.

    Args:
        x: ``[..., rows, columns]``.
        diagonal: how far above the main one; below it where negative.
    """
    return apply("tril_triu", {"X": x}, diagonal=diagonal, lower=True)


def triu(x: Variable, diagonal: int = 0) -> Variable:
    """Return ``x`` with zeros below the diagonal of its last two dims; ``diagonal`` counts from the main one, upwards.

    Args:
        x: ``[..., rows, columns]``.
        diagonal: how far above the main one; below it where negative.
    """
    return apply("tril_triu", {"X": x}, diagonal=diagonal, lower=False)


def interpolate(
    x: Variable, output_size: Sizes | None = None, scale: float | Sequence[float] | None = None, mode: str = "nearest", align_corners: bool = False,
    align_mode: int = 0, data_format: str = "NCHW",
) -> Variable:  # fmt: skip
    """Resize an image, a row or a volume.

    Args:
        x: ``[batch, channels, height, width]``; of rows and volumes as at ``mode``.
        output_size: the new sizes, of an image height and width; or ``scale``: their factor, one number or one for each.
        scale: in place of output_size: the factor of the sizes, one number or one for each.
        mode: of images "nearest", "bilinear" or "bicubic"; of rows ``[batch, channels, width]`` "linear"; of volumes ``[batch, channels, depth,
            height, width]`` "nearest" or "trilinear".
        align_corners: the corner pixels of the old and the new image lie on each other.
        align_mode: of linear, bilinear and trilinear without ``align_corners``; 0: pixels are areas, 1: pixels are points.
        data_format: "NCHW", or "NHWC" with the channels last, of rows and volumes too.

    Raises:
        SchemaError: not one of output_size and scale, or another mode.
    """
    if mode not in _INTERPOLATIONS:
        raise SchemaError.one_of(f"interpolate({x.name}): mode", _INTERPOLATIONS, mode)
    if (output_size is None) == (scale is None):
        raise SchemaError(f"interpolate({x.name}) takes one of output_size and scale")
    axes = len(x.spec.known_dims) - 2
    if axes not in _INTERPOLATIONS[mode]:
        ranks = " or ".join(str(n + 2) for n in _INTERPOLATIONS[mode])
        raise ShapeError(f"interpolate({x.name}): mode {mode!r} takes {ranks} dims; it is {x.spec.text()}")
    attrs: dict[str, Any] = {"interp_method": mode, "align_corners": align_corners, "align_mode": align_mode, "data_layout": data_format}
    operands: dict[str, Any] = {}
    if output_size is not None:
        numbers, operands = sizes(f"interpolate({x.name})", output_size, "OutSize", "SizeTensor")
        if not operands:
            if len(numbers) != axes:
                raise SchemaError(f"interpolate({x.name}): output_size must have {axes} numbers; seen {numbers}")
            attrs |= dict(zip(("out_d", "out_h", "out_w")[3 - axes :], numbers, strict=True))
    elif scale is not None:
        attrs["scale"] = list(cast("Sequence[float]", scale)) if hasattr(scale, "__len__") else [float(cast("float", scale))] * axes
    return current_block().apply(f"{mode}_interp_v2", {"X": x, **operands}, attrs)


_INTERPOLATIONS = {"nearest": (2, 3), "bilinear": (2,), "bicubic": (2,), "linear": (1,), "trilinear": (3,)}
"""By the mode, how many axes an image may have."""
