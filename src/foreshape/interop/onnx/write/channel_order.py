"""The layout of images: channels at axis 1 in ONNX, and paddings."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.language.ops.rules.window import is_channels_last, pads_of


def channels_first(w: WrittenOp, slot: str, layout: str) -> OnnxValue:
    """Return an operand with its channels at axis 1."""
    rank = w.rank(slot)
    return w.transpose(w.x(slot), (0, rank - 1, *range(1, rank - 1))) if is_channels_last(layout) else w.x(slot)


def channels_back(w: WrittenOp, y: OnnxValue, rank: int, layout: str) -> OnnxValue:
    """Return the inverse of `channels_first`."""
    return w.transpose(y, (0, *range(2, rank), 1)) if is_channels_last(layout) else y


def padding(w: WrittenOp, image: Sequence[Any], kernel: Sequence[Any], strides: Sequence[int], dilations: Sequence[int] = ()) -> dict[str, Any]:
    """Return ``pads``, or ``auto_pad`` for open sizes. An image smaller than its window has as many more behind it."""
    algorithm = w.of.padding_algorithm
    pairs = pads_of(w.of.paddings, algorithm, image, kernel, strides)
    if all(isinstance(p, int) for pair in pairs for p in pair):
        ends = [p[1] for p in pairs]
        for axis, (size, window) in enumerate(zip(image, kernel, strict=True)):
            if isinstance(size, int) and isinstance(window, int):
                reach = (window - 1) * (dilations[axis] if dilations else 1) + 1
                ends[axis] += max(0, reach - size - int(pairs[axis][0]) - int(pairs[axis][1]))  # pyright: ignore[reportArgumentType]
        return {"pads": [*[p[0] for p in pairs], *ends]}
    return {"auto_pad": "SAME_UPPER"}


def image_dims(w: WrittenOp, slot: str, layout: str) -> tuple[Any, ...]:
    """Return the sizes of the images in an operand."""
    dims = w.spec(slot).known_dims
    return dims[1:-1] if is_channels_last(layout) else dims[2:]
