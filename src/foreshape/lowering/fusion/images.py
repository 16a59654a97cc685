"""Convolutions of images that torch takes as they are. What the rewrites of convolutions share."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.dims import Size
from foreshape.kernels import onednn
from foreshape.lowering.fusion.graph import attr, dims_of, spec_of
from foreshape.lowering.instruction import Argument, Instruction

TYPES = ("conv2d", "depthwise_conv2d")


def is_plain(i: Instruction) -> bool:
    """Whether torch's convolution takes it as it is: channels first, the same padding at both ends."""
    x, w = dims_of(i.arguments[0]), dims_of(i.arguments[1])
    symmetric = attr(i, "padding_algorithm") == "EXPLICIT" and len(attr(i, "paddings")) == 2
    images = x is not None and w is not None and len(x) == len(w) == 4
    return images and attr(i, "data_format") in ("NCHW", "AnyLayout") and symmetric


def settings(i: Instruction) -> str:
    return f"{list(attr(i, 'strides'))}, {list(attr(i, 'paddings'))}, {list(attr(i, 'dilations'))}"


def workspace(i: Instruction, out: Argument, wants: Sequence[bool] | None = None) -> Size:
    """The bytes that a convolution takes besides its results; with ``wants``, that its gradients take."""
    x, w, y = dims_of(i.arguments[0]), dims_of(i.arguments[1]), dims_of(out)
    spec = spec_of(out)
    if x is None or w is None or y is None or spec is None or spec.dtype is None:
        return 0
    given = (spec.dtype.itemsize, attr(i, "groups"), attr(i, "strides"), attr(i, "dilations"))
    return onednn.convolution(x, w, y, *given) if wants is None else onednn.convolution_backward(x, w, y, *given, wants)
