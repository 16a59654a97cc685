"""Images taken apart, read at places, and normalized across channels."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F

from references.base import Results, reference


@reference("unfold")
def _unfold(op: Any, a: Any) -> Results | None:
    x = a.X
    if not x.numel():
        return None
    top, left, bottom, right = op.paddings
    (kh, kw), (sh, sw), (dh, dw) = op.kernel_sizes, op.strides, op.dilations
    x = F.pad(x, (left, right, top, bottom))
    windows = x.unfold(2, dh * (kh - 1) + 1, sh).unfold(3, dw * (kw - 1) + 1, sw)[..., ::dh, ::dw]
    return {"Y": windows.permute(0, 1, 4, 5, 2, 3).reshape(x.shape[0], x.shape[1] * kh * kw, -1)}


@reference("grid_sampler")
def _grid_sampler(op: Any, a: Any) -> Results | None:
    x, grid = a.X, a.Grid
    if x.dim() != 4 or op.mode != "bilinear" or op.padding_mode != "zeros" or not x.numel() or not grid.numel():
        return None
    h, w = x.shape[2:]
    places = []
    for at, n in ((grid[..., 1], h), (grid[..., 0], w)):
        places.append((at + 1) / 2 * (n - 1) if op.align_corners else ((at + 1) * n - 1) / 2)
    rows, columns = (1 - (p[..., None] - torch.arange(n, dtype=p.dtype)).abs() for p, n in zip(places, (h, w), strict=True))
    return {"Output": torch.einsum("nchw,nijh,nijw->ncij", x, rows.clamp(min=0), columns.clamp(min=0))}


@reference("maxout")
def _maxout(op: Any, a: Any) -> Results | None:
    x = a.X.movedim(op.axis, 1)
    return {"Out": torch.stack([x[:, k :: op.groups] for k in range(op.groups)]).amax(0).movedim(1, op.axis)} if x.numel() else None


@reference("channel_shuffle")
def _channel_shuffle(op: Any, a: Any) -> Results | None:
    axis = 1 if op.data_format == "NCHW" else 3
    count = a.X.shape[axis]
    order = [k for first in range(count // op.groups) for k in range(first, count, count // op.groups)]
    return {"Out": a.X.index_select(axis, torch.tensor(order))} if a.X.numel() else None


@reference("lrn")
def _lrn(op: Any, a: Any) -> Results | None:
    if not a.X.numel():
        return None
    x = a.X.movedim(-1, 1) if op.data_format == "NHWC" else a.X
    middle = torch.stack([
        op.k + op.alpha * (x[:, max(c - op.n // 2, 0) : c + op.n // 2 + 1] ** 2).sum(1) for c in range(x.shape[1])
    ], 1)  # fmt: skip
    out = x / middle**op.beta
    return {"Out": out.movedim(1, -1) if op.data_format == "NHWC" else out}


@reference("affine_channel")
def _affine_channel(op: Any, a: Any) -> Results | None:
    last = op.data_layout != "NCHW" or a.X.dim() == 2
    out = a.X * a.Scale + a.Bias if last else (a.X.movedim(1, -1) * a.Scale + a.Bias).movedim(-1, 1)
    return {"Out": out}


@reference("spectral_norm")
def _spectral_norm(op: Any, a: Any) -> Results | None:
    matrix = a.Weight.detach().movedim(op.dim, 0).flatten(1)
    u, v = a.U.detach(), a.V.detach()
    for _ in range(op.power_iters):
        v = F.normalize(u @ matrix, dim=0, eps=0.0) if op.eps < 1e-9 else (u @ matrix) / ((u @ matrix).norm() + op.eps)
        u = F.normalize(matrix @ v, dim=0, eps=0.0) if op.eps < 1e-9 else (matrix @ v) / ((matrix @ v).norm() + op.eps)
    sigma = u @ a.Weight.movedim(op.dim, 0).flatten(1) @ v
    return {"Out": a.Weight / sigma} if float(sigma.detach().abs()) > 1e-2 else None


@reference("roi_align")
def _roi_align(op: Any, a: Any) -> Results | None:
    """One point after the other."""
    x, rois = a.X, a.ROIs.detach()
    if a.RoisNum is None or not x.numel() or not rois.numel() or op.sampling_ratio <= 0 or op.sampling_ratio > 4:
        return None
    h, w, n = x.shape[2], x.shape[3], op.sampling_ratio
    shift = 0.5 if op.aligned else 0.0
    out = []
    for which, roi in zip(torch.repeat_interleave(a.RoisNum.long()).tolist(), rois, strict=True):
        left, top, right, bottom = (roi * op.spatial_scale - shift).tolist()
        high, wide = bottom - top, right - left
        if not op.aligned:
            high, wide = max(high, 1.0), max(wide, 1.0)
        rows, columns = (
            _hats([start + (p + (k + 0.5) / n) * size / parts for p in range(parts) for k in range(n)], pixels, x.dtype).view(parts, n, pixels).mean(1)
            for start, size, parts, pixels in ((top, high, op.pooled_height, h), (left, wide, op.pooled_width, w))
        )
        out.append(torch.einsum("chw,ih,jw->cij", x[which], rows, columns))
    return {"Out": torch.stack(out)}


def _hats(places: list[float], pixels: int, of: torch.dtype) -> torch.Tensor:
    """For each place how much of each pixel is read there; nothing more than a pixel outside."""
    at = torch.tensor(places, dtype=of)
    there = (at >= -1) & (at <= pixels)
    weights = (1 - (at.clamp(0, pixels - 1)[:, None] - torch.arange(pixels, dtype=of)).abs()).clamp(min=0)
    return weights * there[:, None]
