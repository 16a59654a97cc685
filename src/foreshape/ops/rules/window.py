"""Windows that slide over images, once: paddings, how many windows there are, and which axis holds the channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from foreshape.dims import Size, ceildiv, maximum
from foreshape.operator.require import fail, require, require_at_most
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor

Pad: TypeAlias = "tuple[Size, Size]"
"""What is put before and after an axis."""
ALGORITHMS = ("EXPLICIT", "SAME", "VALID")
IMAGE_FORMATS = ("NCHW", "NHWC", "AnyLayout")
VOLUME_FORMATS = ("NCDHW", "NDHWC", "AnyLayout")


def is_channels_last(data_format: str) -> bool:
    """Whether the channels are the last dim. AnyLayout, of old programs, says that they are not."""
    return data_format.endswith("C")


def channels_first(x: Tensor, last: bool) -> Tensor:
    """``x`` as a view with its channels at axis 1."""
    return x.movedim(-1, 1) if last else x


def channels_first_dims(spec: Spec, last: bool) -> tuple[Size, ...]:
    """The dims of an image with the channels at axis 1."""
    dims = spec.known_dims
    return (dims[0], dims[-1], *dims[1:-1]) if last else dims


def channels_back(x: Tensor, last: bool) -> Tensor:
    """The inverse of `channels_first`, in a row where ``last``: so most kernels lay out what they make of channels that come last."""
    return x.movedim(1, -1).contiguous() if last else x


def image_of(spec: Spec, rank: int, last: bool, slot: str) -> tuple[Size, Size, tuple[Size, ...]]:
    """Batch, channels and image sizes of a tensor of ``rank`` dims, none of the last two empty."""
    dims = spec.known_dims
    require(len(dims) == rank, f"{slot} must have {rank} dims, not {len(dims)}", **{slot: None})
    channels, image = (dims[-1], dims[1:-1]) if last else (dims[1], dims[2:])
    require_at_most(1, channels, f"{slot} must have at least one channel", **{slot: rank - 1 if last else 1})
    for at, size in enumerate(image, 1 if last else 2):
        require_at_most(1, size, f"the images in {slot} must not be empty", **{slot: at})
    return dims[0], channels, image


def with_image(spec: Spec, channels: Size, image: Sequence[Size], last: bool) -> Spec:
    """``spec`` with other channels and image sizes."""
    batch = spec.known_dims[0]
    return spec.with_dims((batch, *image, channels) if last else (batch, channels, *image))


def check_count(values: Sequence[Size | None], count: int, name: str) -> None:
    """The attribute ``name`` must have one number per image axis."""
    require(len(values) == count, f"{name} must have {count} numbers; seen {list(values)}")


def check_paddings(values: Sequence[int], count: int) -> None:
    """The attribute ``paddings`` has one number per image axis, or two: before and after."""
    if len(values) not in (count, 2 * count):
        fail(f"paddings must have {count} numbers, or {2 * count} (before and after each axis); seen {list(values)}")


def pads_of(paddings: Sequence[int], algorithm: str, image: Sequence[Size], kernel: Sequence[Size], strides: Sequence[int]) -> tuple[Pad, ...]:
    """What is put before and after each axis.

    SAME pads so that there are ceil(size / stride) windows, ``max((that - 1) * stride + kernel - size, 0)`` in all, the odd
    one at the end, as PaddlePaddle does; VALID pads nothing.
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
    return tuple((paddings[at], paddings[at + 1]) for at in range(0, len(paddings), 2))


def count_windows(size: Size, span: Size, pad: Pad, stride: int, what: str, ceil: bool = False, **sides: int | None) -> Size:
    """How many windows of ``span`` elements fit into a padded axis; ``ceil`` counts one that only begins inside.

    At least one must: ``what`` names the window in the error. With ``ceil`` this is PaddlePaddle's count, which has a last
    window that begins behind the elements where the stride is larger than the window.
    """
    padded = size + pad[0] + pad[1]
    slack = stride - 1 if ceil else 0
    require_at_most(span, padded + slack, f"{what} must fit into the padded image", **sides)
    return (padded - span + slack) // stride + 1
