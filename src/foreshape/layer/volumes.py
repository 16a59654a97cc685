"""Convolutions and poolings of rows and volumes: along one axis, and along three."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from foreshape.language.operator.attributes import several
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.basic import Activation, activate
from foreshape.layer.initializer import Normal
from foreshape.layer.parameter import create_parameter
from foreshape.layer.vision import check_groups, convolved, known_channels, numbers, padding_attributes, placing, unpooled, with_bias

Sizes = int | Sequence[int]


def conv1d(
    x: Variable, num_filters: int, kernel_size: int, stride: int = 1, padding: int | Sequence[int] | str = 0, dilation: int = 1, groups: int = 1,
    activation: Activation = None, *, weight: Any = None, bias: Any = None, data_format: str = "NCL", name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a convolutional layer along one axis: activation(conv(input, W) + b).

    Examples:
        >>> signal = layer.data("signal", ["batch", 4, 100])
        >>> layer.conv1d(signal, 8, 5, padding=2, activation="relu")  # [batch, 8, 100]

    Args:
        x: ``[batch, channels, width]``, or ``[batch, width, channels]`` with ``data_format="NLC"``.
        num_filters, groups, activation: as for `conv2d`.
        kernel_size, stride, dilation: one number.
        padding: one number, two (before, after), "SAME" or "VALID".
        weight, bias, name: as for `conv2d`; ``bias=False`` leaves the bias out.
        data_format: "NCL", or "NLC" with the channels last.
        Errors as for `conv2d`.

    Returns:
        ``[batch, num_filters, width]``. W is ``[num_filters, channels / groups, kernel_size]``: the op itself is a conv2d of images one pixel
        high.
    """
    channels = known_channels("conv1d", x, data_format, 3)
    check_groups("conv1d", x, groups, channels, num_filters)
    last = data_format.endswith("C")
    block = current_block()
    prefix = block.program.layer_name("conv1d", name)
    start = Normal(0.0, math.sqrt(2.0 / max(1, kernel_size * channels)))
    w = create_parameter((num_filters, channels // groups, kernel_size), x.spec.known_dtype, weight, prefix=prefix, initializer=start)
    sides = [] if isinstance(padding, str) else several(padding)
    ends: Any = [0] * len(sides) + sides if sides else padding
    attrs = {
        "strides": [1, stride],
        "dilations": [1, dilation],
        "groups": groups,
        "data_format": "NHWC" if last else "NCHW",
        **padding_attributes(ends, 2, dilation),
    }
    axis = 1 if last else 2
    image, _ = block.apply("unsqueeze2", {"X": x}, {"axes": [axis]}, prefix)
    window, _ = block.apply("unsqueeze2", {"X": w}, {"axes": [2]}, prefix)
    out = block.apply("conv2d", {"Input": image, "Filter": window}, attrs, prefix)
    row, _ = block.apply("squeeze2", {"X": out}, {"axes": [axis]}, prefix)
    return activate(with_bias(row, num_filters, bias, data_format, prefix), activation, prefix)


def conv3d(
    x: Variable, num_filters: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
    activation: Activation = None, *, weight: Any = None, bias: Any = None, data_format: str = "NCDHW", name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a convolutional layer over volumes: activation(conv(input, W) + b).

    Examples:
        >>> scan = layer.data("scan", ["batch", 1, 16, 32, 32])
        >>> layer.conv3d(scan, 8, 3, stride=2, padding=1)  # [batch, 8, 8, 16, 16]

    Args:
        x: ``[batch, channels, depth, height, width]``, or with the channels last and ``data_format="NDHWC"``.
        num_filters, groups, activation: as for `conv2d`.
        kernel_size, stride, dilation: one number, or depth, height and width.
        padding: one number, three, six (before and after each axis), "SAME" or "VALID".
        weight, bias, name: as for `conv2d`; ``bias=False`` leaves the bias out.
        data_format: "NCDHW", or "NDHWC" with the channels last.
        Errors as for `conv2d`.

    Returns:
        ``[batch, num_filters, *volume]``. W is ``[num_filters, channels / groups, *kernel_size]``, b is ``[num_filters]``.
    """
    attrs = placing(3, stride, padding, dilation)
    return convolved("conv3d", x, num_filters, kernel_size, groups, activation, weight, bias, data_format, name, attrs)


def conv3d_transpose(
    x: Variable, num_filters: int, kernel_size: Sizes, stride: Sizes = 1, padding: Sizes | str = 0, dilation: Sizes = 1, groups: int = 1,
    activation: Activation = None, *, output_size: Sizes | None = None, output_padding: Sizes | None = None, weight: Any = None, bias: Any = None,
    data_format: str = "NCHW", name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a transposed convolutional layer, to larger volumes, as `conv2d_transpose` for images.

    ``data_format`` is written as for images, "NHWC" with the channels last. W is ``[channels, num_filters / groups, *kernel_size]``.

    Args:
        x: ``[batch, channels, depth, height, width]``; the number of channels must be known.
        num_filters: the channels of the result.
        kernel_size, stride, padding, dilation: as for `conv3d`.
        groups: divides the channels of the input and of the result.
        activation, weight, bias, name: as for `conv2d`.
        output_size, output_padding: as for `conv2d_transpose`, with three numbers.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    attrs = placing(3, stride, padding, dilation, output_size=output_size, output_padding=output_padding)
    return convolved("conv3d_transpose", x, num_filters, kernel_size, groups, activation, weight, bias, data_format, name, attrs)


def pool3d(
    x: Variable, kernel_size: Sizes = -1, pool_type: str = "max", stride: Sizes | None = None, padding: Sizes | str = 0, ceil_mode: bool = False,
    exclusive: bool = True, global_pooling: bool = False, *, data_format: str = "NCDHW",
) -> Variable:  # fmt: skip
    """Return the maximum ("max") or mean ("avg") of windows of volumes; arguments as for `pool2d` with a number more for each.

    Args:
        x: ``[batch, channels, depth, height, width]``.
        kernel_size, stride: one number, or depth, height and width.
        pool_type: "max" or "avg".
        padding: as for `conv3d`.
        ceil_mode, exclusive, global_pooling: as for `pool2d`.
        data_format: "NCDHW", or "NDHWC" with the channels last.
    """
    size = numbers(kernel_size, "kernel_size", 3)
    attrs: dict[str, Any] = {
        "ksize": size, "pooling_type": pool_type, "ceil_mode": ceil_mode, "exclusive": exclusive, "global_pooling": global_pooling,
        "strides": numbers(stride, "stride", 3) if stride is not None else [1, 1, 1] if global_pooling else size, "data_format": data_format,
        **padding_attributes(padding, 3),
    }  # fmt: skip
    return current_block().apply("pool3d", {"X": x}, attrs)


def max_pool3d_with_index(
    x: Variable, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, ceil_mode: bool = False
) -> tuple[Variable, Variable]:
    """Return the maximum of each window, and where in its volume it is, as `max_unpool3d` takes it.

    Args:
        x: ``[batch, channels, depth, height, width]``, floats.
        kernel_size: one number, or depth, height and width of a window.
        stride: from window to window; by default as kernel_size.
        padding: around a volume, one number, or depth, height and width.
        ceil_mode: count a last window partly outside of the volume.
    """
    size = numbers(kernel_size, "kernel_size", 3)
    attrs: dict[str, Any] = {"ksize": size, "strides": size if stride is None else numbers(stride, "stride", 3)}
    attrs |= {"paddings": numbers(padding, "padding", 3), "ceil_mode": ceil_mode}
    return current_block().apply("max_pool3d_with_index", {"X": x}, attrs)


def max_unpool3d(
    x: Variable, indices: Variable, kernel_size: Sizes, stride: Sizes | None = None, padding: Sizes = 0, output_size: Sizes | None = None
) -> Variable:
    """Return volumes with the numbers of x at ``indices``, and zeros elsewhere.

    Args:
        x: ``[batch, channels, depth, height, width]``, floats.
        indices: of the dims of x, int32: places in a volume, as from `max_pool3d_with_index`.
        kernel_size, stride, padding: as for the pooling.
        output_size: the sizes of the volumes; by default ``(n - 1) * stride - 2 * padding + kernel_size`` for each axis.
    """
    size = numbers(kernel_size, "kernel_size", 3)
    steps = size if stride is None else numbers(stride, "stride", 3)
    return unpooled("unpool3d", x, indices, size, steps, numbers(padding, "padding", 3), output_size)
