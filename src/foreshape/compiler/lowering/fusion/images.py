"""Convolutions of images: their settings and their memory. Shared by rewrites of convolutions; no rewrite."""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import dims_of, spec_of
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall
from foreshape.core.data_class import data_class
from foreshape.language.operator.computations import Computation, ImageConvolution
from foreshape.machine.kernels.convolution import ConvolutionCalls


@data_class(frozen=True)
class ChannelSum(Computation):
    """The sum of images over all but their channels."""


def are_images(i: KernelCall) -> bool:
    """Return True if both operands have the dims of images."""
    x, w = dims_of(i.arguments[0]), dims_of(i.arguments[1])
    return x is not None and w is not None and len(x) == len(w) == 4


def convolution_of(i: KernelCall, computation: ImageConvolution, y: Argument) -> ConvolutionCalls:
    """Return the kernels of a convolution whose results are as ``y``."""
    of_x, of_w, of_y = spec_of(i.arguments[0]), spec_of(i.arguments[1]), spec_of(y)
    assert of_x is not None and of_w is not None and of_y is not None
    return ConvolutionCalls(of_x, of_w, of_y, computation.strides, computation.paddings, computation.dilations, computation.groups, computation.is_spread)
