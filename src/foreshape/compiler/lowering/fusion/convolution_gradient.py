"""The gradients of a convolution and of its bias in one kernel.

Before: ``d_images, d_filters = convolution_gradient(images, filters, d_out)``, and ``d_b = sum(d_out)`` over all but the channels (or nothing)
After: ``d_images, d_filters, d_b = convolution_backward(d_out, images, filters)``, each only where somebody reads it
Unless: d_b is read before the others are made, or stored; then it stays alone
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, fused, fused_as
from foreshape.compiler.lowering.fusion.images import ChannelSum, are_images, convolution_of
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall
from foreshape.language.operator.computations import ImageConvolution


@rewrite(
    RewriteStage.FUSE,
    undoes=(ImageConvolution,),
    after={"bias_gradient": "makes the sum over all but the channels, which the convolution's gradient gives too"},
)
def apply(graph: Graph) -> int:
    convolutions = [(i, computation) for i, computation in graph.undoing(ImageConvolution) if are_images(i) and not any(i.arguments[2:-1])]
    return sum(_rewrite(graph, i, computation) for i, computation in convolutions)


def _rewrite(graph: Graph, i: KernelCall, computation: ImageConvolution) -> bool:
    d = i.arguments[-1]
    wide = dims_of(d)
    bias = next((s for s in graph.readers(d) if fused_as(s, ChannelSum) is not None and not s.stores), None)
    size = wide[1] if wide is not None and len(wide) == 4 else None
    if bias is not None and isinstance(size, int) and graph.replace({i: [_backward(graph, i, computation, bias.results[0], size)], bias: ()}):
        return True
    return graph.replace({i: [_backward(graph, i, computation, None, None)]})


def _backward(graph: Graph, i: KernelCall, computation: ImageConvolution, d_bias: Argument, channels: int | None) -> KernelCall:
    """Return all gradients in one kernel, the bias' among them if it has so many channels."""
    x, w, *_, d = i.arguments
    d_x, d_w, *_ = i.results
    requested = [not graph.unused(d_x), not graph.unused(d_w), channels is not None]
    results = [d_x if requested[0] else None, d_w if requested[1] else None, d_bias]
    return fused(i, convolution_of(i, computation, d).gradients(requested, channels), [x, w, d], results)
