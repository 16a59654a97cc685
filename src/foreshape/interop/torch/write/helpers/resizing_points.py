"""Images in another size whose pixels are points."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def resized_points(x: Tensor, sizes: Sequence[int], scales: Sequence[float | None]) -> Tensor:
    """Return ``x [batch, channels, *image]`` in another size, linear between pixels: new pixel i lies at i old / new, or at i / scale."""
    for axis, (new, scale) in enumerate(zip(sizes, scales, strict=True), 2):
        old = x.shape[axis]
        step = 0.0 if new <= 1 else 1.0 / scale if scale else old / new
        positions = torch.arange(new, dtype=x.dtype, device=x.device) * step
        low = positions.long().clamp(max=old - 1)
        part = (positions - low).clamp(0, 1).reshape(-1, *[1] * (x.dim() - axis - 1))
        x = x.index_select(axis, low) * (1 - part) + x.index_select(axis, (low + 1).clamp(max=old - 1)) * part
    return x
