"""Where parameters never change, a convolution with all that follows it is one kernel, whose weight lies as that wants it.

Before: ``y = convolution(images, filters)`` of fp32, or a transposed one in one group, then any of: a normalization by fixed statistics,
    sums and products with a number for each channel, ``y + other`` of the same dims (not of a transposed one), an activation, sums and
    products with one number; filters, statistics and such numbers are persistables of a step that is frozen
After: ``out = activation(convolution(images, packed) + bias + other)``, with the channels innermost in memory
Unless: something else reads what is between
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from foreshape.dims import Size, product
from foreshape.kernels import onednn
from foreshape.kernels.frozen import convolution, folded, transposed_convolution
from foreshape.lowering.fusion.frozen import Chain, follow, is_frozen_fp32
from foreshape.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.lowering.fusion.images import are_images
from foreshape.lowering.instruction import Instruction, Value
from foreshape.operator.computations import ImageConvolution, ImageTransposedConvolution

LAST = (0, 2, 3, 1)


def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    transposed = [(i, of) for i, of in graph.computing(ImageTransposedConvolution) if of.groups == 1]
    found = [(i, of) for i, of in (*graph.computing(ImageConvolution), *transposed) if are_images(i) and is_frozen_fp32(graph, i.arguments[1])]
    for i, of in found:
        _rewrite(graph, i, of)
    return len(found)


def _rewrite(graph: Graph, i: Instruction, of: ImageConvolution | ImageTransposedConvolution) -> None:
    x, w = i.arguments[:2]
    dims = dims_of(w)
    assert isinstance(w, Value) and dims is not None
    chain = follow(graph, i, 1, residuals=isinstance(of, ImageConvolution))
    values = [w, *chain.values()]
    name = graph.pack("convolution", values, product((*dims[:1], *dims[1:])) * 4, _maker(chain, of))
    arguments = [x] if chain.other is None else [x, chain.other]
    text = f"{name}({{0}})" if chain.other is None else f"{name}.add({{0}}, {{1}})"
    graph.remove(chain.gone)
    order = dict.fromkeys(range(len(arguments)), LAST)
    made = fused(chain.last, text, arguments, [chain.out], "product", workspace=lambda: _workspace(i, of, chain), in_order=order, lies={0: LAST})
    made.packed = name
    graph.replace(chain.last, made)


def _maker(chain: Chain, of: ImageConvolution | ImageTransposedConvolution) -> Callable[..., Any]:
    steps = chain.folds()

    def make(weight: Any, *values: Any) -> Any:
        given, following = chain.ends(values)
        if isinstance(of, ImageConvolution):
            return convolution(*folded(weight, steps, given), of.strides, of.paddings, of.dilations, of.groups, following)
        return transposed_convolution(*folded(weight, steps, given, axis=1), of.strides, of.paddings, of.more, of.dilations, following)

    return make


def _workspace(i: Instruction, of: ImageConvolution | ImageTransposedConvolution, chain: Chain) -> Size:
    x, w, y = dims_of(i.arguments[0]), dims_of(i.arguments[1]), dims_of(chain.out)
    if x is None or w is None or y is None:
        return 0
    if isinstance(of, ImageConvolution):
        return onednn.packed_convolution(x, w, y, of.groups, of.dilations)
    return onednn.convolution_transpose(x, w, y, 4, of.groups, of.strides, of.dilations, True)
