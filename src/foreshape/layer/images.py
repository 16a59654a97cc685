"""Patches, grids and regions: layers that cut images, read them at places, or mix channels."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import product
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.operator.attributes import several
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.basic import Activation, activate
from foreshape.layer.functions import apply
from foreshape.layer.initializer import Normal
from foreshape.layer.parameter import ParamAttr, create_parameter
from foreshape.layer.vision import Pair, known_channels, pair, unpooled, with_bias


def _around(padding: Pair) -> list[int]:
    """Return top, left, bottom and right, from one number, two (height, width) or all four."""
    borders = several(padding, 4)
    if len(borders) == 2:
        borders = [*borders, *borders]
    if len(borders) != 4:
        raise SchemaError.must("padding", "one number, two (height, width) or four (top, left, bottom, right)", f"{padding!r}")
    return borders


def unfold(x: Variable, kernel_size: Pair, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1) -> Variable:
    """Return the patches of images ``[batch, channels, height, width]`` as columns: ``[batch, channels * kh * kw, patches]``.

    Args:
        x: floats.
        kernel_size, stride, dilation: one number, or height and width.
        padding: zeros around an image: one number, height and width, or top, left, bottom and right.
    """
    return apply("unfold", {"X": x}, kernel_sizes=pair(kernel_size, "kernel_size"), strides=pair(stride, "stride"), paddings=_around(padding),
                  dilations=pair(dilation, "dilation"))  # fmt: skip


def fold(x: Variable, output_size: Pair, kernel_size: Pair, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1) -> Variable:
    """Return images of ``output_size`` made of patches ``[batch, channels * kh * kw, patches]``: numbers on one pixel are summed.

    Args:
        x: the patches, in row-major order.
        output_size: of the images: one number, or height and width.
        kernel_size, stride, padding, dilation: as for `unfold`, whose transpose this is.
    """
    return apply("fold", {"X": x}, output_sizes=pair(output_size, "output_size"), kernel_sizes=pair(kernel_size, "kernel_size"),
                  strides=pair(stride, "stride"), paddings=_around(padding), dilations=pair(dilation, "dilation"))  # fmt: skip


def im2sequence(x: Variable, kernel_size: Pair, stride: Pair = 1, padding: Pair = 0) -> Variable:
    """Return the patches of each image as a sequence of rows ``[channels * kh * kw]``: a ragged value of one level.

    Args:
        x: ``[batch, channels, height, width]``.
        kernel_size, stride: of the patches: one number, or height and width.
        padding: zeros around an image: one number, height and width, or top, left, bottom and right.
    """
    return apply("im2sequence", {"X": x}, kernels=pair(kernel_size, "kernel_size"), strides=pair(stride, "stride"), paddings=_around(padding))


def grid_sample(
    x: Variable, grid: Variable, mode: str = "bilinear", padding_mode: str = "zeros", align_corners: bool = True, halves_to_even: bool = False
) -> Variable:
    """Read images (or volumes) at the points of a grid.

    Args:
        x: ``[batch, channels, height, width]``, or with a depth before the height.
        grid: ``[batch, *points, 2]``, points as ``(x, y)`` from -1 to 1 across the image; of volumes ``[batch, *points, 3]``, ``(x, y, z)``.
        mode: "bilinear" or "nearest".
        padding_mode: the value outside: "zeros", "border" or "reflection".
        align_corners: -1 and 1 are the middle of the outer pixels, not their outer edges.
        halves_to_even: of "nearest", a point between two pixels takes the even one, as in torch and PaddlePaddle 3; otherwise the one away from 0.

    Returns:
        ``[batch, channels, *points]``.
    """
    attrs = {"mode": mode, "padding_mode": padding_mode, "align_corners": align_corners}
    return apply("grid_sampler", {"X": x, "Grid": grid}, **attrs, **({"halves_to_even": True} if halves_to_even else {}))


def affine_grid(theta: Variable, shape: Sequence[int] | Variable, align_corners: bool = True) -> Variable:
    """Return the grid of an affine map for `grid_sample`.

    Args:
        theta: ``[batch, 2, 3]``, or ``[batch, 3, 4]`` of volumes.
        shape: batch, channels and the sizes of the image: numbers, or a variable of them.
        align_corners: -1 and 1 are the middles of the outermost pixels; otherwise their outer edges.
    """
    if isinstance(shape, Variable):
        return apply("affine_grid", {"Theta": theta, "OutputShape": shape}, align_corners=align_corners)
    return apply("affine_grid", {"Theta": theta}, output_shape=list(shape), align_corners=align_corners)


def max_pool2d_with_index(x: Variable, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0, ceil_mode: bool = False) -> tuple[Variable, Variable]:
    """Return the maximum of each window, and its place in the image, ``row * width + column``, for `max_unpool2d`.

    Args:
        x: ``[batch, channels, height, width]``.
        kernel_size: one number, or height and width of a window.
        stride: from window to window; by default as kernel_size.
        padding: around an image, one number, or height and width; never the maximum.
        ceil_mode: count a last window partly outside of the image.
    """
    size = pair(kernel_size, "kernel_size")
    out, mask = apply(
        "max_pool2d_with_index", {"X": x}, ksize=size, strides=size if stride is None else pair(stride, "stride"), paddings=pair(padding, "padding"),
        ceil_mode=ceil_mode,
    )  # fmt: skip
    return out, mask


def max_unpool2d(x: Variable, indices: Variable, kernel_size: Pair, stride: Pair | None = None, padding: Pair = 0, output_size: Pair | None = None) -> Variable:
    """Return images with the numbers of ``x`` at ``indices``, and zeros elsewhere.

    ``output_size`` is by default ``(n - 1) * stride - 2 * padding + kernel_size`` for each axis; the sizes must be known then.

    Args:
        x: ``[batch, channels, height, width]``, floats.
        indices: of the dims of x, int32: places in an image, as from `max_pool2d_with_index`.
        kernel_size, stride, padding: as for the pooling.
        output_size: height and width of the images.
    """
    size = pair(kernel_size, "kernel_size")
    return unpooled("unpool", x, indices, size, size if stride is None else pair(stride, "stride"), pair(padding, "padding"), output_size)


def _regions(type: str, x: Variable, boxes: Variable, boxes_num: Variable | None, output_size: Pair, spatial_scale: float, **attrs: Any) -> Any:
    high, wide = pair(output_size, "output_size")
    inputs = {"X": x, "ROIs": boxes} | ({} if boxes_num is None else {"RoisNum": boxes_num})
    return apply(type, inputs, pooled_height=high, pooled_width=wide, spatial_scale=spatial_scale, **attrs)


def roi_align(
    x: Variable, boxes: Variable, boxes_num: Variable | None, output_size: Pair, spatial_scale: float = 1.0, sampling_ratio: int = -1, aligned: bool = True
) -> Variable:
    """Pool regions of images to one size, each part the mean of points read between pixels.

    Args:
        x: ``[batch, channels, height, width]``.
        boxes: ``[regions, 4]``: left, top, right, bottom; the first image's first.
        boxes_num: ``[batch]``, int32: the number of regions of each image; None if ``boxes`` is ragged.
        output_size: one number, or height and width.
        spatial_scale: the factor from boxes to pixels of x.
        sampling_ratio: the number of points of a part along each axis; by its size if not above 0.
        aligned: coordinates are half a pixel less.

    Returns:
        ``[regions, channels, *output_size]``.
    """
    return _regions("roi_align", x, boxes, boxes_num, output_size, spatial_scale, sampling_ratio=sampling_ratio, aligned=aligned)


def roi_pool(x: Variable, boxes: Variable, boxes_num: Variable | None, output_size: Pair, spatial_scale: float = 1.0) -> Variable:
    """Pool regions of images to one size, each part the maximum of its pixels; arguments as for `roi_align`.

    Args:
        x, boxes, boxes_num, output_size, spatial_scale: as for `roi_align`; the result has its shape.
    """
    return _regions("roi_pool", x, boxes, boxes_num, output_size, spatial_scale)[0]


def psroi_pool(x: Variable, boxes: Variable, boxes_num: Variable | None, output_size: Pair, spatial_scale: float = 1.0) -> Variable:
    """Pool regions of images to one size, each part the mean of its pixels in channels of its own: ``[regions, channels / (h * w), h, w]``.

    Args:
        x: ``[batch, channels, height, width]``; the parts divide the channels, whose number must be known.
        boxes, boxes_num, output_size, spatial_scale: as for `roi_align`.
    """
    high, wide = pair(output_size, "output_size")
    channels = known_channels("psroi_pool", x, rank=4)
    if channels % (high * wide):
        raise ShapeError(f"psroi_pool({x.name}): the {channels} channels must be divisible by the {high} times {wide} parts")
    return _regions("psroi_pool", x, boxes, boxes_num, output_size, spatial_scale, output_channels=channels // (high * wide))


def deform_conv2d(
    x: Variable, offset: Variable, mask: Variable | None, num_filters: int, kernel_size: Pair, stride: Pair = 1, padding: Pair = 0, dilation: Pair = 1,
    groups: int = 1, deformable_groups: int = 1, activation: Activation = None, *, weight: Any = None, bias: Any = None, name: str | None = None,
) -> Variable:  # fmt: skip
    """Apply a convolutional layer with the pixels of windows moved by offsets.

    Args:
        x: ``[batch, channels, height, width]``; the number of channels must be known.
        offset: ``[batch, 2 * deformable_groups * kh * kw, *image]``, the image as it comes out: rows, then columns, of each pixel of a window.
        mask: ``[batch, deformable_groups * kh * kw, *image]``, the factor of each pixel; or None.
        num_filters, kernel_size, stride, dilation, groups, activation, weight, bias, name: as for `conv2d`.
        padding: zeros around an image: one number, or height and width.
        deformable_groups: the channels are divided into so many groups, each with offsets and a mask of its own.
        Errors as for `conv2d`.
    """
    channels = known_channels("deform_conv2d", x, rank=4)
    if groups < 1 or channels % groups or num_filters % groups:
        raise ShapeError(f"deform_conv2d({x.name}): groups must divide the {channels} channels and the {num_filters} filters; seen {groups}")
    window = pair(kernel_size, "kernel_size")
    block = current_block()
    prefix = block.program.layer_name("deformable_conv", name)
    start = Normal(0.0, math.sqrt(2.0 / max(1, window[0] * window[1] * channels)))
    w = create_parameter((num_filters, channels // groups, *window), x.spec.known_dtype, weight, prefix=prefix, initializer=start)
    attrs = {
        "strides": pair(stride, "stride"),
        "paddings": pair(padding, "padding"),
        "dilations": pair(dilation, "dilation"),
        "groups": groups,
        "deformable_groups": deformable_groups,
        "im2col_step": 1,
    }
    inputs = {"Input": x, "Offset": offset, "Filter": w}
    out = block.apply("deformable_conv_v1", inputs, attrs, prefix) if mask is None else block.apply("deformable_conv", {**inputs, "Mask": mask}, attrs, prefix)
    return activate(with_bias(out, num_filters, bias, "NCHW", prefix), activation, prefix)


def lrn(x: Variable, n: int = 5, k: float = 1.0, alpha: float = 1e-4, beta: float = 0.75, data_format: str = "NCHW") -> Variable:
    """Apply local response normalization: ``x / (k + alpha * the sum of the squares of the n channels around) ** beta``; ``n`` is odd.

    Args:
        x: ``[batch, channels, height, width]``.
        n, k, alpha, beta: of the formula.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    return apply("lrn", {"X": x}, n=n, k=k, alpha=alpha, beta=beta, data_format=data_format)[0]


def maxout(x: Variable, groups: int, axis: int = 1) -> Variable:
    """Return the maximum of each ``groups`` consecutive channels; ``axis`` is the channels', 1 or -1.

    Args:
        x: ``[batch, channels, height, width]``; ``groups`` divides the channels.
        groups: the number of channels for one.
        axis: of the channels.
    """
    return apply("maxout", {"X": x}, groups=groups, axis=axis)


def pixel_shuffle(x: Variable, upscale_factor: int, data_format: str = "NCHW") -> Variable:
    """Return an image ``upscale_factor`` times as high and wide, whose new pixels were channels.

    Args:
        x: ``[batch, channels, height, width]``; the factor's square divides the channels.
        upscale_factor: how many times larger.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    return apply("pixel_shuffle", {"X": x}, upscale_factor=upscale_factor, data_format=data_format)


def pixel_unshuffle(x: Variable, downscale_factor: int, data_format: str = "NCHW") -> Variable:
    """Return an image ``downscale_factor`` times less high and wide, with squares of pixels as channels: the inverse of `pixel_shuffle`.

    Args:
        x: ``[batch, channels, height, width]``; the factor divides height and width.
        downscale_factor: the factor of the sizes.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    return apply("pixel_unshuffle", {"X": x}, downscale_factor=downscale_factor, data_format=data_format)


def channel_shuffle(x: Variable, groups: int, data_format: str = "NCHW") -> Variable:
    """Return the channels in another order: first the first of each of ``groups`` groups, then the second of each, and so on.

    Args:
        x: ``[batch, channels, height, width]``.
        groups: divides the channels.
        data_format: "NCHW", or "NHWC" with the channels last.
    """
    return apply("channel_shuffle", {"X": x}, groups=groups, data_format=data_format)


def spectral_norm(x: Variable, axis: int = 0, power_iters: int = 1, epsilon: float = 1e-12, name: str | None = None) -> Variable:
    """Return a weight divided by its largest singular value, with ``axis`` as the rows of a matrix.

    The two vectors approaching the singular ones are variables of the program, normal at first and not trained; every run makes ``power_iters`` steps
    from them.

    Args:
        x: a variable of known size, as from `create_parameter`.
        axis: 0 or 1.
        power_iters: the number of steps of each run.
        epsilon: is added to a norm before it divides.
        name: the prefix of the two vectors' names.
    """
    dims = x.spec.known_dims
    if not all(isinstance(d, int) for d in dims) or not 0 <= axis < min(2, len(dims)):
        raise ShapeError(f"spectral_norm({x.name}): the dims must be known and axis must be 0 or 1; it is {x.spec.text()}, axis {axis}")
    rows: Any = dims[axis]
    columns: Any = product([d for index, d in enumerate(dims) if index != axis])
    block = current_block()
    prefix = block.program.layer_name("spectral_norm", name)
    u, v = (create_parameter((n,), x.spec.known_dtype, ParamAttr(trainable=False), prefix=prefix, initializer=Normal(0.0, 1.0)) for n in (rows, columns))
    u.stop_gradient = v.stop_gradient = True
    return block.apply("spectral_norm", {"Weight": x, "U": u, "V": v}, {"dim": axis, "power_iters": power_iters, "eps": epsilon}, prefix)
