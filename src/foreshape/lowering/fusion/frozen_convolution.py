"""A convolution with constant parameters and all its following steps, as one kernel with a packed weight.

Before: ``y = convolution(images, filters)`` of fp32, or a transposed one in one group, then any of: a normalization by fixed statistics,
    sums and products with a number for each channel, ``y + other`` of the same dims (not of a transposed one), an activation, sums and
    products with one number; filters, statistics and such numbers are persistables of a frozen step, possibly reshaped. And in a step with
    convolutions a normalization that follows none, as a convolution of each channel with one number
After: ``out = activation(convolution(images, packed) + bias + other)``, with the channels innermost in memory; groups of few channels are joined
Unless: something else reads a value between
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from foreshape.dims import Size, product
from foreshape.kernels import onednn, packed
from foreshape.kernels.frozen import convolution, folded, transposed_convolution
from foreshape.kernels.joined_groups import join, joined
from foreshape.kernels.onednn_library import library
from foreshape.kernels.onednn_packed_bytes import ByteWeight
from foreshape.lowering.fusion.byte_weights import FrozenWeight, byte_weight
from foreshape.lowering.fusion.frozen import Chain, follow, follow_normalization, frozen_numbers
from foreshape.lowering.fusion.graph import Graph, dims_of, fused, spec_of
from foreshape.lowering.fusion.images import are_images
from foreshape.lowering.kernel_calls import Argument, KernelCall
from foreshape.operator.computations import FrozenBatchNorm, ImageConvolution, ImageTransposedConvolution, PaddedImageConvolution
from foreshape.spec import FP32
from foreshape.values.torch_proxy import torch

Dims = Sequence[Size]


def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    found: list[tuple[KernelCall, _Windows]] = [*graph.computing(ImageConvolution)]
    found += [(i, of) for i, of in graph.computing(ImageTransposedConvolution) if of.groups == 1]
    found += [(i, _padded(graph, i, of)) for i, of in graph.computing(PaddedImageConvolution) if are_images(i)]
    found = [(i, of) for i, of in found if are_images(i) and _weight(graph, i, of) is not None]
    count = sum(_rewrite(graph, i, of) for i, of in found)
    alone = [i for i, _ in graph.computing(FrozenBatchNorm)] if found else []
    return count + sum(_normalized(graph, i) for i in alone if graph.is_left(i))  # one may have taken the next


_Windows = ImageConvolution | PaddedImageConvolution | ImageTransposedConvolution


def _padded(graph: Graph, i: KernelCall, of: PaddedImageConvolution) -> ImageConvolution | PaddedImageConvolution:
    """Return the same, with equal paddings at both ends if known."""
    images, window = graph.dims(i.arguments[0]), dims_of(i.arguments[1])
    assert images is not None and window is not None
    pads = of.pads(images[2:], window[2:])
    known = [before for before, behind in pads if isinstance(before, int) and before == behind]
    return ImageConvolution(of.strides, tuple(known), of.dilations, of.groups) if len(known) == len(pads) else of


def _rewrite(graph: Graph, i: KernelCall, of: _Windows) -> bool:
    x, given = i.arguments[:2]
    w, dims = _weight(graph, i, of), dims_of(given)
    assert w is not None and dims is not None
    chain = follow(graph, i, 1, residuals=not isinstance(of, ImageTransposedConvolution))
    name = graph.pack("convolution", [*w.values, *chain.values()], product(_as_computed(dims, of)[0]) * 4, _maker(chain, of, _are_columns(x), dims, w))
    done = _stand_in(graph, x, chain, name, lambda: _workspace(i, of, chain))
    graph.drop_unused([given] if done else [])  # as of filters of one axis, which are an image's here
    return done


def _weight(graph: Graph, i: KernelCall, of: _Windows) -> FrozenWeight | None:
    """Return the filters of an instruction, if they are frozen: numbers, possibly reshaped, or bytes."""
    numbers = frozen_numbers(graph, i.arguments[1])
    if numbers is not None:
        return FrozenWeight((numbers,))
    return None if isinstance(of, ImageTransposedConvolution) else byte_weight(graph, i.arguments[1], 0)


def _normalized(graph: Graph, i: KernelCall) -> bool:
    """Rewrite a lone normalization of images as a convolution of each channel with one number."""
    x, channels, spec = i.arguments[0], dims_of(i.arguments[1]), spec_of(i.arguments[0])
    if spec is None or spec.dtype is not FP32 or len(dims_of(x) or ()) != 4 or channels is None or not isinstance(channels[0], int):
        return False
    chain = follow_normalization(graph, i)
    if chain is None:
        return False
    count = channels[0]
    of = ImageConvolution((1, 1), (0, 0), (1, 1), count)
    make = _maker(chain, of)
    name = graph.pack("convolution", chain.values(), count * 4, lambda *values: make(torch.ones(count, 1, 1, 1), *values))
    return _stand_in(graph, x, chain, name, lambda: _workspace_of(dims_of(x), (count, 1, 1, 1), dims_of(chain.out), of))


def _stand_in(graph: Graph, x: Argument, chain: Chain, name: str, workspace: Callable[[], Size]) -> bool:
    """Replace a chain by a packed kernel."""
    arguments = [x] if chain.other is None else [x, chain.other]
    made = fused(chain.last, packed.convolution(name, chain.other is not None, workspace), arguments, [chain.out])
    return graph.replace(chain.taken(made))


def _are_columns(x: Argument) -> bool:
    """Return True for images of one pixel's width."""
    return (dims_of(x) or (None,))[-1] == 1


def _maker(chain: Chain, of: _Windows, columns: bool = False, dims: Dims = (), w: FrozenWeight | None = None) -> Callable[..., Any]:
    steps, bytes = chain.folds(), None if w is None else w.bytes

    def make(weight: Any, *values: Any) -> Any:
        whole: ByteWeight | None = None
        if bytes is not None:
            whole, values = bytes(weight, values[0]), values[1:]
            weight = whole.numbers(0)
        weight = weight.reshape(dims) if dims else weight
        given, following = chain.ends(values)
        if isinstance(of, ImageTransposedConvolution):
            return transposed_convolution(*folded(weight, steps, given, axis=1), of.strides, of.paddings, of.more, of.dilations, following)
        paddings = of.paddings if isinstance(of, ImageConvolution) else partial(_pads, of, weight.shape[2:])
        folds, bias = folded(weight, steps, given)
        count = joined(weight.shape, of.groups)
        folds = join(folds, of.groups, count) if count > 1 else folds
        if whole is not None:
            whole = ByteWeight(join(whole.whole, of.groups, count) if count > 1 else whole.whole, folded(whole.steps, steps, given)[0])
        return convolution(folds, bias, of.strides, paddings, of.dilations, of.groups // count, following, columns, whole)

    return make


def _as_computed(w: Dims, of: _Windows) -> tuple[Dims, int]:
    """Return the dims of the kernel's weight, and its groups."""
    count = 1 if isinstance(of, ImageTransposedConvolution) else joined(w, of.groups)
    return (w[0], w[1] * count, *w[2:]), of.groups // count


def _pads(of: PaddedImageConvolution, window: Sequence[int], image: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the paddings before and behind each axis of images of known sizes."""
    pads = of.pads(image, window)
    return [int(before) for before, _ in pads], [int(behind) for _, behind in pads]


def _workspace(i: KernelCall, of: _Windows, chain: Chain) -> Size:
    return _workspace_of(dims_of(i.arguments[0]), dims_of(i.arguments[1]), dims_of(chain.out), of)


def _workspace_of(x: Dims | None, w: Dims | None, y: Dims | None, of: _Windows) -> Size:
    if x is None or w is None or y is None:
        return 0
    if isinstance(of, ImageTransposedConvolution):
        return onednn.convolution_transpose(x, w, y, 4, of.groups, of.strides, of.dilations, True)
    w, groups = _as_computed(w, of)
    taken = onednn.packed_convolution(x, w, y, groups, of.dilations)
    if isinstance(of, ImageConvolution) or library() is not None:
        return taken
    pads = of.pads(x[2:], w[2:])  # torch pads a copy
    return taken + product((*x[:2], *(n + before + behind for n, (before, behind) in zip(x[2:], pads, strict=True)))) * 4
