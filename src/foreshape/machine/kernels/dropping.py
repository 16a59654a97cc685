"""The mask of dropout: drawn a piece at a time, from whole numbers, since the generator makes more of them in a second."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.core.dims import Size, minimum
from foreshape.core.values.torch_proxy import Tensor, torch

if TYPE_CHECKING:
    from torch import Generator

PIECE = 1 << 16
"""The number of elements drawn at a time. It does not change the numbers."""
_RANGE = 1 << 31


def draw_kept(shape: Sequence[int], keep: float, device: Any, generator: Generator | None) -> Tensor:
    """Return uint8 of this shape: 1 with the probability ``keep``, rounded to a multiple of 2^-31, and 0 otherwise."""
    kept = torch.empty(shape, dtype=torch.uint8, device=device)
    if kept.device.type != "cpu":
        return kept.bernoulli_(keep, generator=generator)
    last = round(keep * _RANGE) - 1
    if kept.numel() <= PIECE:
        torch.le(torch.empty(shape, dtype=torch.int32).random_(generator=generator), last, out=kept.view(torch.bool))
        return kept
    flat, drawn = kept.view(-1).view(torch.bool), torch.empty(PIECE, dtype=torch.int32)
    for first in range(0, flat.numel(), PIECE):
        into = flat[first : first + PIECE]
        torch.le(drawn[: into.numel()].random_(generator=generator), last, out=into)
    return kept


def drawing_bytes(elements: Size) -> Size:
    """Return the workspace of `draw_kept` in bytes."""
    return minimum(elements, PIECE) * 4
