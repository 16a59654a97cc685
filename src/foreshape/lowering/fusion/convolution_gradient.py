"""The gradients of a convolution and of its bias in one kernel.

Before: ``d_images, d_filters = convolution_gradient(images, filters, d_out)``, and ``d_b = sum(d_out)`` over all but the channels (or nothing)
After: ``d_images, d_filters, d_b = convolution_backward(d_out, images, filters)``, each only where somebody reads it
Unless: d_b is read before the others are made, or stored; then it stays alone
"""

from __future__ import annotations

from foreshape.kernels import pointwise
from foreshape.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.lowering.fusion.images import are_images, has_windows_of_one, settings, workspace
from foreshape.lowering.instruction import Argument, Instruction, Value
from foreshape.operator.computations import ImageConvolution
from foreshape.values.torch_proxy import Lazy, aten


def apply(graph: Graph) -> int:
    found = [(i, of) for i, of in graph.undoing(ImageConvolution) if are_images(i) and not any(i.arguments[2:-1])]
    for i, of in found:
        _rewrite(graph, i, of)
    return len(found)


def _rewrite(graph: Graph, i: Instruction, of: ImageConvolution) -> None:
    x, w, *_, d = i.arguments
    d_x, d_w, *_ = i.results
    wide = dims_of(d)
    bias = next((s for s in graph.readers(d) if s.tag == "channel bias gradient" and not s.stores), None)
    d_bias = bias.results[0] if bias is not None else None
    size = wide[1] if wide is not None and len(wide) == 4 else None
    with_bias = isinstance(d_bias, Value) and isinstance(size, int)
    requested = [not graph.unused(d_x), not graph.unused(d_w), with_bias]
    text = (
        f"{{back}}({{2}}, {{0}}, {{1}}, {[size] if with_bias else None}, {settings(of)}, False, [0, 0], {of.groups}, {requested})"
    )
    results: list[Argument] = [d_x if requested[0] else None, d_w if requested[1] else None, d_bias if with_bias else None]
    if with_bias and bias is not None:
        if graph.position(bias) < graph.position(i) and any(_uses(r, d_bias) for r in graph.between(bias, i)):
            results[2] = None  # somebody needs it before this kernel runs
            text = text.replace(str(requested), str([*requested[:2], False])).replace(str([size]), "None", 1)
        else:
            graph.remove([bias])
    back = pointwise.gradients if has_windows_of_one(i) or of.is_spread else Lazy(lambda: aten.convolution_backward)
    graph.replace(i, fused(i, text, [x, w, d], results, workspace=lambda: workspace(i, of, d, requested), in_rows=(0, 2), back=back))


def _uses(i: Instruction, value: Argument) -> bool:
    return any(v is value for v in i.reads())
