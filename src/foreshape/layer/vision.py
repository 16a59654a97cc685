"""Convolutions and poolings of images: plain, transposed, and by channel."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator.attributes import several
from foreshape.language.program.call_site import warn_user
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.basic import Activation, activate
from foreshape.layer.initializer import Normal
from foreshape.layer.parameter import check_count, create_parameter

Pair = int | Sequence[int]


def pair(values: Pair, name: str) -> list[int]:
    """Return a number per image axis, height and width, from one number or two. Raises `SchemaError` for anything else."""
    return numbers(values, name, 2)


def numbers(values: Pair, name: str, axes: int) -> list[int]:
    """Return a number per image axis, from one number or as many. Raises `SchemaError` for anything else."""
    out = several(values, axes)
    if len(out) != axes:
        counts = "two (height, width)" if axes == 2 else "three (depth, height, width)"
        raise SchemaError.must(name, f"one number or {counts}", f"{values!r}")
    return out


def padding_attributes(padding: Pair | str, axes: int = 2, dilation: Pair = 1) -> dict[str, Any]:
    """Return the attributes of a padding: one number, one for each axis, two for each (before, after), "SAME" or "VALID".

    Raises:
        SchemaError: "SAME" with a dilation: PaddlePaddle's operator would take it as 1 without a word.
    """
    if isinstance(padding, str):
        if padding.upper() == "SAME" and any(n != 1 for n in several(dilation)):
            raise SchemaError(
                f"padding='SAME' has no dilation, as PaddlePaddle computes it; seen dilation={dilation!r}: give the padding as numbers, "
                "dilation * (kernel_size - 1) // 2 for an odd window and a stride of 1"
            )
        return {"paddings": [0] * axes, "padding_algorithm": padding.upper()}
    return {"paddings": several(padding, axes), "padding_algorithm": "EXPLICIT"}


def known_channels(layer: str, x: Variable, data_format: str = "NCHW", rank: int | None = None) -> int:
    """Return the number of channels, needed for a parameter. Raises `ShapeError` if unknown."""
    spec = x.spec
    dims = spec.known_dims
    if len(dims) != rank if rank is not None else len(dims) < 2:
        raise ShapeError(f"{layer}({x.name}): the input must have {rank or 'at least 2'} dims; it is {spec.text()}{_missing_channels(dims, rank)}")
    channels = dims[-1] if data_format.endswith("C") else dims[1]
    last = not data_format.endswith("C") and _look_last(dims)
    advice = f"data_format={data_format[:1] + data_format[2:] + 'C'!r} takes images with their channels last, and layer.transpose moves them"
    if not isinstance(channels, int):
        hint = f": {advice}" if last else ""
        raise ShapeError(f"{layer}({x.name}): the channels must be known to make a weight; the input is {spec.text()}{hint}")
    if last and x.op is None:
        warn_user(f"{layer}({x.name}): {spec.text()} looks like images with their channels last, and dim 1 counts the channels: {advice}")
    return channels


def _look_last(dims: Sequence[Size]) -> bool:
    """Tell whether dims seem to be of images with their channels last: few at the end, and sides before."""
    sides = dims[1:-1]
    return len(dims) > 3 and dims[-1] in (1, 3, 4) and all(not isinstance(s, int) or s > 4 for s in sides) and len(set(map(str, sides))) == 1


def _missing_channels(dims: Sequence[Size], rank: int | None) -> str:
    """Return the code for images without the dim of their only channel, or without their sides."""
    if rank is None or rank < 4 or len(dims) >= rank:
        return ""
    if len(dims) == rank - 1:
        return ": layer.unsqueeze(x, [1]) has the dim of the one channel"
    return f": layer.reshape(x, [0, channels, {', '.join(('depth', 'height', 'width')[5 - rank :])}]) has one for each" if len(dims) == 2 else ""


def placing(axes: int, stride: Pair, padding: Pair | str, dilation: Pair, **pairs: Pair | None) -> dict[str, Any]:
    """Return the attributes for the places of a convolution's windows; of ``pairs`` an empty list for None."""
    extras = {name: [] if value is None else numbers(value, name, axes) for name, value in pairs.items()}
    return {
        "strides": numbers(stride, "stride", axes),
        "dilations": numbers(dilation, "dilation", axes),
        **extras,
        **padding_attributes(padding, axes, dilation),
    }


def check_groups(layer: str, x: Variable, groups: int, channels: int, num_filters: int) -> None:
    """Raise `ShapeError` for a number of groups that does not divide the channels and the filters."""
    check_count(f"{layer}({x.name}): num_filters", num_filters)
    if groups < 1 or channels % groups or num_filters % groups:
        raise ShapeError(f"{layer}({x.name}): groups must divide the {channels} channels and the {num_filters} filters; seen {groups}")


def convolved(
    layer: str, x: Variable, num_filters: int, kernel_size: Pair, groups: int, activation: Activation, weight: Any, bias: Any, data_format: str,
    name: str | None, attrs: dict[str, Any],
) -> Variable:  # fmt: skip
    """Apply a convolutional layer, plain or transposed, over as many axes as ``attrs`` has strides."""
    axes = len(attrs["strides"])
    channels = known_channels(layer, x, data_format, axes + 2)
    check_groups(layer, x, groups, channels, num_filters)
    type = "depthwise_conv2d" if layer == "conv2d" and groups == channels != 1 else layer
    window = numbers(kernel_size, "kernel_size", axes)
    block = current_block()
    prefix = block.program.layer_name(type, name)
    transposed = layer.endswith("transpose")
    shape = (channels, num_filters // groups) if transposed else (num_filters, channels // groups)
    start = None if transposed else Normal(0.0, math.sqrt(2.0 / max(1, math.prod(window) * channels)))
    w = create_parameter((*shape, *window), x.spec.known_dtype, weight, prefix=prefix, initializer=start)
    out = block.apply(type, {"Input": x, "Filter": w}, {"groups": groups, "data_format": data_format, **attrs}, prefix)
    return activate(with_bias(out, num_filters, bias, data_format, prefix), activation, prefix)


def conv2d(
    x: Variable, num_filters: int, kernel_size: Pair, stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1, groups: int = 1,
    activation: Activation = None, *, weight: Any = None, bias: Any = None, data_format: str = "NCHW", name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a convolutional layer: activation(conv(input, W) + b).

    Examples:
        >>> pixels = layer.data("pixels", ["batch", 3, 32, 32])
        >>> layer.conv2d(pixels, 16, 3, padding=1, activation="relu")  # [batch, 16, 32, 32]
        >>> layer.conv2d(pixels, 16, (3, 5), stride=2)  # [batch, 16, 15, 14]
        >>> layer.conv2d(pixels, 12, 3, groups=3, bias=False)  # [batch, 12, 30, 30]

    Args:
        x: ``[batch, channels, height, width]``, or ``[batch, height, width, channels]`` with ``data_format="NHWC"``.
        num_filters: the output channels.
        kernel_size, stride, dilation: one number, or height and width.
        padding: one number, height and width, all four (top, bottom, left, right), "SAME" or "VALID".
        groups: the channels are divided into so many groups, each with filters of its own.
        activation: the activation, as for `activate`.
        weight, bias: a name, an initializer or a `ParamAttr`; ``bias=False`` leaves the bias out.
        data_format: "NCHW", or "NHWC" with the channels last.
        name: the prefix of the parameters' names.

    Returns:
        ``[batch, num_filters, *image]``. W is ``[num_filters, channels / groups, *kernel_size]``, normal with variance
        2 / (channels * window) at first; b is ``[num_filters]``.

    Raises:
        ShapeError: unknown channels, groups that do not divide them, or a filter larger than the image.
    """
    attrs = placing(2, stride, padding, dilation)
    return convolved("conv2d", x, num_filters, kernel_size, groups, activation, weight, bias, data_format, name, attrs)


def conv2d_transpose(
    x: Variable, num_filters: int, kernel_size: Pair, stride: Pair = 1, padding: Pair | str = 0, dilation: Pair = 1, groups: int = 1,
    activation: Activation = None, *, output_size: Pair | None = None, output_padding: Pair | None = None, weight: Any = None, bias: Any = None,
    data_format: str = "NCHW", name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a transposed convolutional layer, to larger images: ``(n - 1) * stride - pads + dilation * (filter - 1) + 1``.

    Examples:
        >>> maps = layer.data("maps", ["batch", 16, 8, 8])
        >>> layer.conv2d_transpose(maps, 8, 2, stride=2)  # [batch, 8, 16, 16]
        >>> layer.conv2d_transpose(maps, 8, 3, stride=2, output_size=18)  # [batch, 8, 18, 18]

    Args:
        x: ``[batch, channels, height, width]``, floats; the number of channels must be known.
        num_filters: the channels of the result; ``groups`` divides them and the input's.
        kernel_size, stride, dilation, groups: as for `conv2d`.
        padding: as for `conv2d`: cut from the result at each side.
        activation, weight, bias, data_format, name: as for `conv2d`.
        output_size: the exact size, less than one stride above the formula's.
        output_padding: the pixels added at the end instead.

    Returns:
        ``[batch, num_filters, *image]``. W is ``[channels, num_filters / groups, *kernel_size]``, b is ``[num_filters]``; the
        other arguments and errors as for `conv2d`.
    """
    attrs = placing(2, stride, padding, dilation, output_size=output_size, output_padding=output_padding)
    return convolved("conv2d_transpose", x, num_filters, kernel_size, groups, activation, weight, bias, data_format, name, attrs)


def with_bias(out: Variable, channels: int, bias: Any, data_format: str, prefix: str) -> Variable:
    """Return ``out`` plus a number for each channel, a parameter; ``bias=False`` leaves it out."""
    if bias is False:
        return out
    b = create_parameter((channels,), out.spec.known_dtype, bias, prefix=prefix, suffix="b", is_bias=True)
    axis = len(out.spec.known_dims) - 1 if data_format.endswith("C") else 1
    return current_block().apply("elementwise_add", {"X": out, "Y": b}, {"axis": axis}, prefix)


def pool2d(
    x: Variable, kernel_size: Pair = -1, pool_type: str = "max", stride: Pair | None = None, padding: Pair | str = 0, ceil_mode: bool = False,
    exclusive: bool = True, global_pooling: bool = False, *, data_format: str = "NCHW",
) -> Variable:  # fmt: skip
    """Return the maximum ("max") or mean ("avg") of windows of images.

    Examples:
        >>> maps = layer.data("maps", ["batch", 16, 8, 8])
        >>> layer.pool2d(maps, 2, "max", stride=2)  # [batch, 16, 4, 4]
        >>> layer.pool2d(maps, 3, "avg", stride=1, padding=1)  # [batch, 16, 8, 8]

    Args:
        x: ``[batch, channels, height, width]``.
        kernel_size: one number, or height and width of a window.
        pool_type: "max" or "avg".
        stride: from window to window; by default as kernel_size.
        padding: as in `conv2d`.
        ceil_mode: count a last window partly outside of the image.
        exclusive: a mean is over the elements inside the image, not over its padding.
        global_pooling: one window, the whole image.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    size = pair(kernel_size, "kernel_size")
    attrs: dict[str, Any] = {
        "ksize": size, "pooling_type": pool_type, "ceil_mode": ceil_mode, "exclusive": exclusive, "global_pooling": global_pooling,
        "strides": pair(stride, "stride") if stride is not None else [1, 1] if global_pooling else size, "data_format": data_format,
        **padding_attributes(padding),
    }  # fmt: skip
    return current_block().apply("pool2d", {"X": x}, attrs)


def lp_pool2d(
    x: Variable, norm_type: float, kernel_size: Pair, stride: Pair | None = None, padding: Pair | str = 0, ceil_mode: bool = False, *, data_format: str = "NCHW"
) -> Variable:
    """Return the p-norm of windows of images, without absolute values: an odd p wants no negative sums. An operator of PaddlePaddle 3.

    Args:
        x: ``[batch, channels, height, width]``.
        norm_type: p, other than 0; the maximum if it is infinite.
        kernel_size: one number, or height and width of a window.
        stride: from window to window; by default as kernel_size.
        padding: as in `conv2d`, counted as 0.
        ceil_mode: count a last window partly outside of the image.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    size = pair(kernel_size, "kernel_size")
    attrs: dict[str, Any] = {
        "kernel_size": size, "norm_type": norm_type, "ceil_mode": ceil_mode, "strides": size if stride is None else pair(stride, "stride"),
        "data_format": data_format, **padding_attributes(padding),
    }  # fmt: skip
    return current_block().apply("lp_pool2d", {"x": x}, attrs)


def adaptive_pool2d(x: Variable, output_size: Pair, pool_type: str = "avg", *, data_format: str = "NCHW") -> Variable:
    """Return the mean ("avg") or maximum ("max") of ``output_size`` windows, of about equal size.

    Args:
        x: ``[batch, channels, height, width]``.
        output_size: the number of windows: one number, or the numbers down and across.
        pool_type: "avg" or "max".
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    size = pair(output_size, "output_size")
    is_global = pool_type == "max" and size == [1, 1]
    if pool_type == "max" and not is_global and data_format == "NCHW":  # PaddlePaddle's pool2d takes the numbers of such windows for their sizes
        results: tuple[Variable, Variable] = current_block().apply("max_pool2d_with_index", {"X": x}, {"ksize": size, "adaptive": True})
        return results[0]
    attrs = {"ksize": size, "pooling_type": pool_type, "global_pooling" if is_global else "adaptive": True, "data_format": data_format}
    return current_block().apply("pool2d", {"X": x}, attrs)


def unpooled(type: str, x: Variable, indices: Variable, size: list[int], steps: list[int], pads: list[int], output_size: Pair | None) -> Variable:
    """Append an operator that inverts a pooling of windows of ``size``; by default the output size follows from the pooling."""
    layer, image = f"max_unpool{len(size)}d({x.name})", x.spec.known_dims[2:]
    if len(image) != len(size):
        raise ShapeError(f"{layer}: x must have {len(size) + 2} dims; it is {x.spec.text()}")
    if output_size is None:
        if not all(isinstance(n, int) for n in image):
            raise ShapeError(f"{layer}: without output_size the sizes of x must be known; they are {x.spec.text()}")
        sizes: Any = [(n - 1) * s - 2 * p + k for n, s, p, k in zip(image, steps, pads, size, strict=True)]
    else:
        sizes = numbers(output_size, "output_size", len(size))
    attrs = {"ksize": size, "strides": steps, "paddings": pads, "output_size": sizes, "unpooling_type": "max"}
    return current_block().apply(type, {"X": x, "Indices": indices}, attrs)
