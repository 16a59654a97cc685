"""Convolutions of images: their settings and their memory. What rewrites of convolutions share; no rewrite."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.dims import Size
from foreshape.kernels import onednn
from foreshape.lowering.fusion.graph import dims_of, spec_of
from foreshape.lowering.instruction import Argument, Instruction
from foreshape.operator.computations import ImageConvolution


def are_images(i: Instruction) -> bool:
    """Whether both operands have the dims of images."""
    x, w = dims_of(i.arguments[0]), dims_of(i.arguments[1])
    return x is not None and w is not None and len(x) == len(w) == 4


def has_windows_of_one(i: Instruction) -> bool:
    """Whether the filters are known to be one place high and wide."""
    w = dims_of(i.arguments[1])
    return w is not None and tuple(w[2:]) == (1, 1)


def settings(of: ImageConvolution) -> str:
    return f"{list(of.strides)}, {list(of.paddings)}, {list(of.dilations)}"


def workspace(i: Instruction, of: ImageConvolution, out: Argument, requested: Sequence[bool] | None = None) -> Size:
    """The bytes that a convolution takes besides its results; with ``requested``, that its gradients take."""
    x, w, y = dims_of(i.arguments[0]), dims_of(i.arguments[1]), dims_of(out)
    spec = spec_of(out)
    if x is None or w is None or y is None or spec is None or spec.dtype is None:
        return 0
    given = (spec.dtype.itemsize, of.groups, of.strides, of.dilations)
    return onednn.convolution(x, w, y, *given) if requested is None else onednn.convolution_backward(x, w, y, *given, requested)
