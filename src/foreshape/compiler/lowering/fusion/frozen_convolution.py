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

from foreshape.compiler.lowering.fusion.byte_weights import FrozenWeight, byte_weight, packed_bytes
from foreshape.compiler.lowering.fusion.frozen import Chain, follow, follow_normalization, frozen_numbers
from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.images import are_images
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall
from foreshape.core.dims import Size, product
from foreshape.core.spec import FP32
from foreshape.core.values.torch_proxy import torch
from foreshape.language.operator.computations import FrozenBatchNorm, ImageConvolution, ImageTransposedConvolution, PaddedImageConvolution
from foreshape.machine.kernels import onednn, packed
from foreshape.machine.kernels.frozen import convolution, folded, transposed_convolution
from foreshape.machine.kernels.joined_groups import join, joined
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.kernels.onednn_packed_bytes import ByteWeight
from foreshape.machine.targets import Feature

Dims = Sequence[Size]


@rewrite(
    RewriteStage.FUSE,
    begins=(ImageConvolution, ImageTransposedConvolution, PaddedImageConvolution),
    after={
        "frozen_rounding": "takes the factors and sums of a rounding, which are no steps of a convolution",
        "frozen_activation": "makes one call of an activation, which a convolution takes in",
        "frozen_gate": "adds 1 to gates, which a convolution takes in",
    },
    needs=(Feature.ONEDNN,),
)
def apply(graph: Graph) -> int:
    if not graph.lowered.frozen:
        return 0
    convolutions: list[tuple[KernelCall, _Windows]] = [*graph.computing(ImageConvolution)]
    convolutions += [(i, computation) for i, computation in graph.computing(ImageTransposedConvolution) if computation.groups == 1]
    convolutions += [(i, _padded(graph, i, computation)) for i, computation in graph.computing(PaddedImageConvolution) if are_images(i)]
    convolutions = [(i, computation) for i, computation in convolutions if are_images(i) and _weight(graph, i, computation) is not None]
    count = sum(_rewrite(graph, i, computation) for i, computation in convolutions)
    alone = [i for i, _ in graph.computing(FrozenBatchNorm)] if convolutions else []
    return count + sum(_normalized(graph, i) for i in alone if graph.is_left(i))  # one may have taken the next


_Windows = ImageConvolution | PaddedImageConvolution | ImageTransposedConvolution


def _padded(graph: Graph, i: KernelCall, computation: PaddedImageConvolution) -> ImageConvolution | PaddedImageConvolution:
    """Return the same, with equal paddings at both ends if known."""
    images, window = graph.dims(i.arguments[0]), dims_of(i.arguments[1])
    assert images is not None and window is not None
    pads = computation.pads(images[2:], window[2:])
    paddings = [front for front, behind in pads if isinstance(front, int) and front == behind]
    return ImageConvolution(computation.strides, tuple(paddings), computation.dilations, computation.groups) if len(paddings) == len(pads) else computation


def _rewrite(graph: Graph, i: KernelCall, computation: _Windows) -> bool:
    x, filters = i.arguments[:2]
    w, dims = _weight(graph, i, computation), dims_of(filters)
    assert w is not None and dims is not None
    chain = follow(graph, i, 1, residuals=not isinstance(computation, ImageTransposedConvolution))
    size = packed_bytes(graph, x, product(_as_computed(dims, computation)[0]), w.bytes is not None)
    name = graph.pack("convolution", [*w.values, *chain.values()], size, _maker(chain, computation, _are_columns(x), dims, w))
    done = _stand_in(graph, x, chain, name, lambda: _workspace(i, computation, chain))
    graph.drop_unused([filters] if done else [])  # as of filters of one axis, which are an image's here
    return done


def _weight(graph: Graph, i: KernelCall, computation: _Windows) -> FrozenWeight | None:
    """Return the filters of an instruction, if they are frozen: numbers, possibly reshaped, or bytes."""
    numbers = frozen_numbers(graph, i.arguments[1])
    if numbers is not None:
        return FrozenWeight((numbers,))
    weight = None if isinstance(computation, ImageTransposedConvolution) else byte_weight(graph, i.arguments[1], 0)
    if weight is None:
        graph.stopped(i, "the filters are no persistable of fp32 or bytes that keeps its value")
    return weight


def _normalized(graph: Graph, i: KernelCall) -> bool:
    """Rewrite a lone normalization of images as a convolution of each channel with one number."""
    x, channels, spec = i.arguments[0], dims_of(i.arguments[1]), spec_of(i.arguments[0])
    if spec is None or spec.dtype is not FP32 or len(dims_of(x) or ()) != 4 or channels is None or not isinstance(channels[0], int):
        return False
    chain = follow_normalization(graph, i)
    if chain is None:
        return False
    count = channels[0]
    computation = ImageConvolution((1, 1), (0, 0), (1, 1), count)
    make = _maker(chain, computation)
    name = graph.pack("convolution", chain.values(), count * 4, lambda *values: make(torch.ones(count, 1, 1, 1), *values))
    return _stand_in(graph, x, chain, name, lambda: _workspace_of(dims_of(x), (count, 1, 1, 1), dims_of(chain.out), computation))


def _stand_in(graph: Graph, x: Argument, chain: Chain, name: str, workspace: Callable[[], Size]) -> bool:
    """Replace a chain by a packed kernel."""
    arguments = [x] if chain.other is None else [x, chain.other]
    call = fused(chain.last, packed.convolution(name, chain.other is not None, workspace), arguments, [chain.out])
    return graph.replace(chain.taken(call))


def _are_columns(x: Argument) -> bool:
    """Return True for images of one pixel's width."""
    return (dims_of(x) or (None,))[-1] == 1


def _maker(chain: Chain, computation: _Windows, columns: bool = False, dims: Dims = (), w: FrozenWeight | None = None) -> Callable[..., Any]:
    steps, bytes = chain.folds(), None if w is None else w.bytes

    def make(weight: Any, *values: Any) -> Any:
        quantized: ByteWeight | None = None
        if bytes is not None:
            quantized, values = bytes(weight, values[0]), values[1:]
            weight = quantized.whole
        weight = weight.reshape(dims) if dims else weight
        step_values, following = chain.ends(values)
        if isinstance(computation, ImageTransposedConvolution):
            return transposed_convolution(
                *folded(weight, steps, step_values, axis=1), computation.strides, computation.paddings, computation.more, computation.dilations, following
            )
        paddings = computation.paddings if isinstance(computation, ImageConvolution) else partial(_pads, computation, weight.shape[2:])
        count = joined(weight.shape, computation.groups)
        folds, bias = folded(weight if quantized is None else quantized.steps, steps, step_values)
        out = folds if quantized is None else weight
        out = join(out, computation.groups, count) if count > 1 else out
        out = out if quantized is None else ByteWeight(out, folds)
        return convolution(out, bias, computation.strides, paddings, computation.dilations, computation.groups // count, following, columns)

    return make


def _as_computed(w: Dims, computation: _Windows) -> tuple[Dims, int]:
    """Return the dims of the kernel's weight, and its groups."""
    count = 1 if isinstance(computation, ImageTransposedConvolution) else joined(w, computation.groups)
    return (w[0], w[1] * count, *w[2:]), computation.groups // count


def _pads(computation: PaddedImageConvolution, window: Sequence[int], image: Sequence[int]) -> tuple[list[int], list[int]]:
    """Return the paddings before and behind each axis of images of known sizes."""
    pads = computation.pads(image, window)
    return [int(front) for front, _ in pads], [int(behind) for _, behind in pads]


def _workspace(i: KernelCall, computation: _Windows, chain: Chain) -> Size:
    return _workspace_of(dims_of(i.arguments[0]), dims_of(i.arguments[1]), dims_of(chain.out), computation)


def _workspace_of(x: Dims | None, w: Dims | None, y: Dims | None, computation: _Windows) -> Size:
    if x is None or w is None or y is None:
        return 0
    if isinstance(computation, ImageTransposedConvolution):
        return product(y) * 4 + onednn.convolution_transpose(x, w, y, 4, computation.groups, computation.strides, computation.dilations, True)
    w, groups = _as_computed(w, computation)
    nbytes = onednn.packed_convolution(x, w, y, groups, computation.dilations)
    if isinstance(computation, ImageConvolution) or library() is not None:
        return nbytes
    pads = computation.pads(x[2:], w[2:])  # torch pads a copy
    return nbytes + product((*x[:2], *(n + front + behind for n, (front, behind) in zip(x[2:], pads, strict=True)))) * 4
