"""Sliding windows over images: paddings, the number of windows, and the axis of the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

from foreshape.core.dims import Size, ceildiv, maximum
from foreshape.core.spec import Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator.require import fail, require, require_at_most
from foreshape.machine.kernels.window_steps import lacking

Pad: TypeAlias = "tuple[Size, Size]"
"""The padding before and after an axis."""
ALGORITHMS = ("EXPLICIT", "SAME", "VALID")
IMAGE_FORMATS = ("NCHW", "NHWC", "AnyLayout")
VOLUME_FORMATS = ("NCDHW", "NDHWC", "AnyLayout")


def is_channels_last(data_format: str) -> bool:
    """Tell whether the channels are the last dim. AnyLayout, of old programs, means they are not."""
    return data_format.endswith("C")


def channels_first(x: Tensor, last: bool) -> Tensor:
    """Return ``x`` as a view with its channels at axis 1."""
    return x.movedim(-1, 1) if last else x


def channels_first_dims(spec: Spec, last: bool) -> tuple[Size, ...]:
    """Return the dims of an image with the channels at axis 1."""
    dims = spec.known_dims
    return (dims[0], dims[-1], *dims[1:-1]) if last else dims


def channels_back(x: Tensor, last: bool) -> Tensor:
    """Return the inverse of `channels_first`, contiguous if ``last``: most kernels make channels-last results so."""
    return x.movedim(1, -1).contiguous() if last else x


def image_of(spec: Spec, rank: int, last: bool, slot: str) -> tuple[Size, Size, tuple[Size, ...]]:
    """Return batch, channels and image sizes of a tensor of ``rank`` dims, none of the last two empty."""
    dims = spec.known_dims
    require(len(dims) == rank, f"{slot} must have {rank} dims, not {len(dims)}", **{slot: None})
    channels, image = (dims[-1], dims[1:-1]) if last else (dims[1], dims[2:])
    require_at_most(1, channels, f"{slot} must have at least one channel", **{slot: rank - 1 if last else 1})
    for axis, size in enumerate(image, 1 if last else 2):
        require_at_most(1, size, f"the images in {slot} must not be empty", **{slot: axis})
    return dims[0], channels, image


def with_image(spec: Spec, channels: Size, image: Sequence[Size], last: bool) -> Spec:
    """Return ``spec`` with other channels and image sizes."""
    batch = spec.known_dims[0]
    return spec.with_dims((batch, *image, channels) if last else (batch, channels, *image))


def check_count(values: Sequence[Size | None], count: int, name: str) -> None:
    """Require one number per image axis in the attribute ``name``."""
    require(len(values) == count, f"{name} must have {count} numbers; seen {list(values)}")


def check_paddings(values: Sequence[int], count: int) -> None:
    """Require one number per image axis in the attribute ``paddings``, or two: before and after."""
    if len(values) not in (count, 2 * count):
        fail(f"paddings must have {count} numbers, or {2 * count} (before and after each axis); seen {list(values)}")


def pads_of(paddings: Sequence[int], algorithm: str, image: Sequence[Size], kernel: Sequence[Size], strides: Sequence[int]) -> tuple[Pad, ...]:
    """Return the padding before and after each axis.

    SAME pads for n = ceil(size / stride) windows: ``max((n - 1) * stride + kernel - size, 0)`` in all, the odd one at the end, as PaddlePaddle does; VALID pads
    nothing.
    """
    if algorithm == "SAME":
        out: list[Pad] = []
        for size, k, s in zip(image, kernel, strides, strict=True):
            total = maximum((ceildiv(size, s) - 1) * s + k - size, 0)
            out.append((total // 2, total - total // 2))
        return tuple(out)
    if algorithm == "VALID":
        return ((0, 0),) * len(image)
    if len(paddings) == len(image):
        return tuple((p, p) for p in paddings)
    return tuple((paddings[index], paddings[index + 1]) for index in range(0, len(paddings), 2))


def count_windows(size: Size, span: Size, pad: Pad, stride: int, subject: str, ceil: bool = False, **sides: int | None) -> Size:
    """Return the number of windows of ``span`` elements in a padded axis; ``ceil`` counts one with only its beginning inside.

    At least one must fit, but for less than a stride: ``subject`` names the window in the error. This is PaddlePaddle's count: with ``ceil`` its last window
    begins behind the elements if the stride is larger than the window.
    """
    around = pad[0] + pad[1] + (stride - 1 if ceil else 0)
    but = f", but for less than a stride of {stride}" if stride > 1 else ""
    require_at_most(span, size + around + stride - 1, f"{subject} must fit into the padded image{but}", **sides)
    count = (size + around - span) // stride + 1
    return count if lacking(size, span, around, stride) == 0 else maximum(count, 1)
