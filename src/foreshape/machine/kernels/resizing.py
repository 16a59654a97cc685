"""Images in another size by one product per axis: the weights of the old image's pixels for each place of the new one."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.products import matmul

_SHARPNESS = -0.75
"""The parameter of the cubic convolution kernel (Keys, 1981), common to image libraries."""


def step(size: int, out: int, scale: float | None, align_corners: bool) -> float:
    """Return the pixels of the old image per pixel of the new one; 0 for a single new pixel at the beginning."""
    if out <= 1:
        return 0.0
    if align_corners:
        return (size - 1) / (out - 1)
    return 1.0 / scale if scale else size / out


def places(out: int, by: float, areas: bool, like: Tensor) -> Tensor:
    """Return the places of the new pixels in the old image; ``areas``: pixels are areas, placed by their centers."""
    at = torch.arange(out, device=like.device, dtype=like.dtype)
    return (at + 0.5) * by - 0.5 if areas else at * by


def linear_weights(size: int, at: Tensor) -> Tensor:
    """Return ``[out, size]``: each new pixel is the mean of the two old ones around it, weighted by nearness."""
    at = at.clamp(min=0)
    low = at.long().clamp_(max=size - 1)
    part = (at - low).clamp_(0, 1)
    return _table(size, at, ((low, 1 - part), (low + 1, part)))


def cubic_weights(size: int, at: Tensor) -> Tensor:
    """Return ``[out, size]``: each new pixel is made of the four old ones around it by cubic convolution."""
    low = at.floor()
    t, a = at - low, _SHARPNESS
    low = low.long()

    def near(x: Tensor) -> Tensor:
        return ((a + 2) * x - (a + 3)) * x * x + 1

    def far(x: Tensor) -> Tensor:
        return ((a * x - 5 * a) * x + 8 * a) * x - 4 * a

    return _table(size, at, ((low - 1, far(t + 1)), (low, near(t)), (low + 1, near(1 - t)), (low + 2, far(2 - t))))


def _table(size: int, at: Tensor, parts: Sequence[tuple[Tensor, Tensor]]) -> Tensor:
    out = torch.zeros((at.shape[0], size), dtype=at.dtype, device=at.device)
    for index, weight in parts:
        out.scatter_add_(1, index.clamp(0, size - 1).unsqueeze(1), weight.unsqueeze(1))
    return out


def resampled(x: Tensor, weights: Sequence[Tensor]) -> Tensor:
    """Return ``x [batch, channels, *image]`` with each axis of the image multiplied by its weights ``[new, old]``."""
    out = matmul(x, weights[-1].t())
    if len(weights) > 1:
        out = matmul(weights[-2], out)
    if len(weights) > 2:
        out = matmul(weights[-3], out.flatten(3)).view(*out.shape[:2], -1, *out.shape[3:])
    return out
