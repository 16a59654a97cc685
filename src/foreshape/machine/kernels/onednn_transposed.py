"""Transposed convolutions with a constant weight, by oneDNN's own library."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from math import prod
from typing import Any

from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ShapeError
from foreshape.machine.kernels.onednn_bytes import turned
from foreshape.machine.kernels.onednn_grids import HALF, Kept, aligned
from foreshape.machine.kernels.onednn_library import (
    BF16,
    F32,
    NOTHING_AFTER,
    RESULT,
    SIZES,
    SOURCE,
    WEIGHTS,
    After,
    Function,
    Library,
    Memory,
    Primitive,
    Unimplemented,
)
from foreshape.machine.kernels.onednn_packed import (
    F32_ALONE,
    FEW,
    DescribedPrimitive,
    PackedConvolution,
    PackedWindows,
    described,
    order_of,
    row_major_strides,
)
from foreshape.machine.kernels.onednn_steps import PlannedStep
from foreshape.machine.kernels.window_steps import effective_dilations

TOGETHER = 2048
"""The most weights for each channel of the result of a transposed convolution in one piece. Larger sums are added up in parts. oneDNN's library (2023.2)
gives each part the bias and the function. Seen from 4096 on, with windows of 4, 8 and 16 pixels.
"""


_GRADIENT = "conv:"
"""The library's name for transposed convolutions as the gradients of convolutions, with a loop for the following functions, 20 to 80 times slower."""


class PackedTransposedConvolution(PackedWindows):
    """``function(transposed convolution(x, weight) + bias)``. Nothing can be added.

    Args:
        weight: [channels, out, height, width], fp32.
        bias: [out], or None.
        more: rows and columns of the result behind the windows' reach, less their paddings.
    """

    def __init__(
        self,
        library: Library,
        weight: Tensor,
        bias: Tensor | None,
        strides: Sequence[int],
        paddings: Sequence[int],
        more: Sequence[int],
        dilations: Sequence[int],
        functions: Sequence[Function],
        otherwise: Callable[[Tensor], Any],
    ) -> None:
        channels, out, height, width = weight.shape
        pixels = height * width
        super().__init__(library, weight, weight.shape, (out, channels, height, width), (pixels, out * pixels, width, 1), bias, functions, otherwise)
        self._settings = (tuple(strides), tuple(dilations), tuple(paddings), tuple(more))
        self._channels = channels

    def _described(self, dims: Sequence[int], adds: bool, elements: Mapping[int, int] = F32_ALONE) -> DescribedPrimitive:
        self._fit(dims)
        inputs, channels, *window = self._shape
        if (self._bias is not None or self._functions) and inputs * prod(window) > TOGETHER:
            raise Unimplemented(f"each part of the sum would have the bias and the function: {inputs} channels in windows of {window}")
        strides, dilations, paddings, more = self._settings
        axes = zip(dims[2:], window, strides, dilations, paddings, more, strict=True)
        out = (dims[0], channels, *((n - 1) * s + d * (k - 1) + 1 - 2 * p + m for n, k, s, d, p, m in axes))
        if min(out) < 1:
            raise ShapeError(f"nothing is left of {list(dims)} by windows of {window}: the result would be {list(out)}")
        behind = [p - m for p, m in zip(paddings, more, strict=True)]
        strides = [s if n > 1 else max(1, 1 - b) for n, s, b in zip(dims[2:], strides, behind, strict=True)]  # the library wants them above -b
        dilations = effective_dilations(dilations, window)
        library = self._library
        bias, settings = self._bias_order((channels,)), (strides, dilations, paddings, behind)
        arguments = (Memory(tuple(dims), order_of(dims)), self._any, bias, Memory(out, order_of(out)), *settings, After(None, self._functions), True)
        record = Primitive("convolution", arguments, 1 if prod(dims) * channels * prod(window) < FEW else None).of_elements(elements)
        with library.using(record.threads):
            description = library.described(record)
            if channels == 1:
                description = library.without_garbage(description)
            if (self._bias is not None or self._functions) and library.implementation(description).startswith(_GRADIENT):
                raise Unimplemented("the bias and the function would be done number by number")
            return self._finish(description, record, bias, out, order_of(out))


FEW_CHANNELS, LARGE_WINDOW = 4, 16
"""At most so many channels, or windows of so many pixels, where `PackedSpread` is faster, in a half to a sixth of the time."""


def lies_apart(window: Sequence[int], out: int, strides: Sequence[int], paddings: Sequence[int], more: Sequence[int]) -> bool:
    """Return True if each pixel makes a window of its own, best by `PackedSpread`."""
    apart = tuple(window) == tuple(strides) and not any(paddings) and not any(more)
    return apart and prod(window) > 1 and (out <= FEW_CHANNELS or prod(window) >= LARGE_WINDOW)


class PackedSpread(PackedTransposedConvolution):
    """A `PackedTransposedConvolution` for windows side by side: in a series a product for each pixel, whose results are then put in their places.

    Args:
        pixels: the product as a convolution: each pixel of the window has its channels in turn.
        rest: of `PackedTransposedConvolution`.
    """

    takes_half = True

    def __init__(self, pixels: PackedConvolution, *rest: Any) -> None:
        super().__init__(*rest)
        self._pixels = pixels

    def planned(
        self, library: Library, dims: Sequence[tuple[int, ...]], sources: Sequence[int], number: int, forms: Sequence[Kept] = (), leaves: bool = True
    ) -> PlannedStep:
        """Return the work for images of these dims and numbers; with ``forms`` of them, by bf16. Raises as `described`."""
        (x,), (n, _, h, w) = dims, dims[0]
        self._fit(x)
        _, channels, height, width = self._shape
        primitives: list[tuple[DescribedPrimitive, tuple[int, ...], int]] = []
        source, room = sources[0], 0
        if forms and forms[0] is not HALF:
            primitives.append((turned(library, x, forms[0], HALF), (source,), -1))
            source, room = -1, aligned(SIZES[BF16] * prod(x))
        element = BF16 if forms and not leaves else F32
        product = self._pixels.described(library, [x], {SOURCE: BF16, WEIGHTS: BF16, RESULT: element} if forms else F32_ALONE)
        rows, out = (n * h, height, w, width * channels), (n, channels, h * height, w * width)
        steps = (w * height * width * channels, width * channels, height * width * channels, 1)
        record = Primitive("reordered", (Memory(rows, steps, element), Memory(rows, row_major_strides(rows), element), NOTHING_AFTER))
        place = -1 - room
        primitives += [(product, (source,), place), (described(library, record, {}, out, order_of(out)), (place,), number)]
        return PlannedStep(primitives, out, HALF if element == BF16 else None, room + aligned(SIZES[element] * prod(out)))
