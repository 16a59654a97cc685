"""A convolution with its bias in one kernel.

Before: ``y = convolution(images, filters)``, ``out = y + b``, where b has one number for each channel (or nothing)
After: ``out = conv2d(images, filters, b)``
Unless: something else reads y; then the bias stays a call of its own
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused
from foreshape.compiler.lowering.fusion.images import are_images, convolution_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall
from foreshape.language.operator.computations import ImageConvolution, Sum


@rewrite(
    RewriteStage.FUSE,
    begins=(ImageConvolution,),
    after={
        "bias_gradient": "lets the sum alone read the convolution",
        "frozen_values": "computes convolutions of constants alone",
        "frozen_convolution": "takes more steps behind a convolution of constants",
    },
)
def apply(graph: Graph) -> int:
    return sum(_rewrite(graph, i, computation) for i, computation in graph.computing(ImageConvolution) if are_images(i))


def _rewrite(graph: Graph, i: KernelCall, computation: ImageConvolution) -> bool:
    out = i.results[0]
    add = graph.only_reader(out)
    if add is not None and _adds_channel_bias(add, out) and graph.replace({i: (), add: [_forward(i, computation, add, add.arguments[1])]}):
        return True
    if graph.attempts is not None:
        _note(graph, out, add)
    return graph.replace({i: [_forward(i, computation, i, None)]})


def _note(graph: Graph, out: Argument, add: KernelCall | None) -> None:
    """Note for the sums of a convolution why they stay calls of their own."""
    for reader in graph.readers(out):
        if add is None and _adds_channel_bias(reader, out):
            graph.shared(reader, out, reader)
        elif computes(reader, Sum) is not None and not _adds_channel_bias(reader, out):
            graph.stopped(reader, "it adds no vector with a number for each channel, as its second operand")


def _forward(i: KernelCall, computation: ImageConvolution, like: KernelCall, bias: Argument) -> KernelCall:
    """Return the convolution, with a bias or without, in the place of another call."""
    out, arguments = like.results[0], [*i.arguments[:2], *([] if bias is None else [bias])]
    return fused(like, convolution_of(i, computation, i.results[0]).forward(bias is not None), arguments, [out])


def _adds_channel_bias(add: KernelCall, out: Argument) -> bool:
    total = computes(add, Sum)
    if total is None or total.axis != 1 or add.arguments[0] is not out:
        return False
    wide, narrow = dims_of(out), dims_of(add.arguments[1])
    return wide is not None and narrow is not None and len(wide) == 4 and len(narrow) == 1 and narrow[0] == wide[1]
