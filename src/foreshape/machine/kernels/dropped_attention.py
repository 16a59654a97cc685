"""Attention with dropout of its weights, in one kernel each way. It computes a few heads at a time: their weights stay in the cache and are not kept.

A byte for each weight is kept between the passes: the mask of dropout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

from foreshape.core.dims import Size, minimum, product
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.attention import axes_by_time, work_of_attention
from foreshape.machine.kernels.call_record import NamedConstant, ObjectAttribute, X, Y, call, of_operands
from foreshape.machine.kernels.dropping import drawing_bytes
from foreshape.machine.kernels.fused import Effects, FusedKernel
from foreshape.machine.targets import current_target

PIECE = 1 << 18
"""The rough number of weights made at a time: as many as stay in the processor's cache."""
_PIECE_ON_DEVICE = 1 << 24
"""Likewise on a device, where each piece launches kernels."""
_BYTES = 4
_Part = tuple[slice, slice]


class DroppedAttention:
    """``by * (softmax(scale q k' + mask) * kept) v`` over ``[batch, heads, time, width]``, or without heads. ``turned``: k is given as k'.

    ``later``: the value added to scores of rows of k later than the row of q; 0 for none.
    """

    __slots__ = ("by", "later", "scale", "turned")

    def __init__(self, scale: float, turned: bool, by: float, later: float = 0.0) -> None:
        self.scale, self.turned, self.by, self.later = scale, turned, by, later

    def forward(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, mask: Tensor | None = None) -> Tensor:
        """Return the result. ``kept``: uint8 ``[batch, heads, time, keys]``."""
        q, k, v, kept, mask, rank = self._operands(q, k, v, kept, mask)
        out, hidden = _by_time(q, v.shape[-1]), self._hidden(q, k)
        for at in _parts(kept):
            weights = self._weights(q[at] * self.scale, k[at], mask, hidden, at).mul_(kept[at])
            out[at] = torch.matmul(weights, v[at]).mul_(self.by)
        return out if rank == 4 else out.squeeze(1)

    def backward(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, d: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v; the weights are recomputed."""
        q, k, v, kept, mask, rank = self._operands(q, k, v, kept, mask)
        d = d if rank == 4 else d.unsqueeze(1)
        d_q, d_k, d_v = (_by_time(x, x.shape[-1]) for x in (q, k, v))
        hidden = self._hidden(q, k)
        for at in _parts(kept):
            scaled, of_out, stays = q[at] * self.scale, d[at] * self.by, kept[at]
            weights = self._weights(scaled, k[at], mask, hidden, at)
            of_scores = private.softmax_gradient(torch.matmul(of_out, v[at].mT).mul_(stays), weights, -1, weights.dtype)
            d_v[at] = torch.matmul(weights.mul_(stays).mT, of_out)
            d_q[at] = torch.matmul(of_scores, k[at]).mul_(self.scale)
            d_k[at] = torch.matmul(of_scores.mT, scaled)
        if rank == 3:
            d_q, d_k, d_v = (g.squeeze(1) for g in (d_q, d_k, d_v))
        return d_q, d_k.mT if self.turned else d_k, d_v

    def shape(self, q: Tensor, k: Tensor) -> tuple[int, ...]:
        """Return the shape of the weights."""
        return (*q.shape[:-1], k.shape[-1 if self.turned else -2])

    def _operands(self, q: Tensor, k: Tensor, v: Tensor, kept: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None, int]:
        """Return the operands with heads, and how many dims they had."""
        rank = q.dim()
        if self.turned:
            k = k.mT
        if rank == 3:
            q, k, v, kept = (x.unsqueeze(1) for x in (q, k, v, kept))
            mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        return q, k, v, kept, None if mask is None else mask.expand(kept.shape), rank

    def _hidden(self, q: Tensor, k: Tensor) -> Tensor | None:
        """Return the mask over later rows."""
        return q.new_full((q.shape[-2], k.shape[-2]), self.later).triu_(1) if self.later else None

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None, hidden: Tensor | None, at: _Part) -> Tensor:
        scores = torch.matmul(q, k.mT)
        if mask is not None:
            scores.add_(mask[at])
        if hidden is not None:
            scores.add_(hidden)
        return torch.softmax(scores, -1, out=scores) if scores.numel() else scores


def _by_time(like: Tensor, width: int) -> Tensor:
    """Return memory for ``[batch, heads, time, width]``, the heads of a time side by side, as a product of rows has them."""
    batch, heads, time, _ = like.shape
    return torch.empty((batch, time, heads, width), dtype=like.dtype, device=like.device).transpose(1, 2)


def _parts(kept: Tensor) -> Iterator[_Part]:
    """Yield the parts done at a time: some examples, or some heads of one."""
    batch, heads, *of_head = kept.shape
    piece = PIECE if kept.is_cpu else _PIECE_ON_DEVICE
    size = max(1, of_head[0] * of_head[1])
    examples = max(1, piece // (size * max(1, heads)))
    count = heads if examples > 1 else max(1, min(heads, piece // size))
    for first in range(0, batch, examples):
        for head in range(0, heads, max(1, count)):
            yield slice(first, first + examples), slice(head, head + count)


def dropped_bytes(q: Sequence[Size], v: Sequence[Size], later: bool = False) -> tuple[Size, Size]:
    """Return the workspaces of the kernels, forward and backward, for operands of these dims: pieces of the weights, and of the operands.

    ``later``: True if they hide later rows themselves.
    """
    time, keys, piece = q[-2], v[-2], PIECE if current_target().is_processor else _PIECE_ON_DEVICE
    weights = minimum(product(q[:-1]) * keys, piece + time * keys) * _BYTES
    rows = (minimum(product(q), piece + time * q[-1]), minimum(product(v), piece + keys * v[-1]))
    copied = (2 * rows[0] + 2 * rows[1]) * _BYTES
    hidden = time * keys * _BYTES if later else 0
    return weights + copied + hidden, 3 * weights + 2 * copied + hidden


# --- the calls


def drawing_call(attention: DroppedAttention, draw: Callable[..., Tensor], weights: Sequence[Size]) -> FusedKernel:
    """Return the random mask of kept weights, of these dims; of q and k."""
    record = call(NamedConstant("draw", draw), call(NamedConstant("shape", attention.shape), X, Y), ObjectAttribute(X, "device"))
    return FusedKernel("{op} draw shape", record, workspace=lambda: drawing_bytes(product(weights)))


def forward_call(attention: DroppedAttention, rank: int, masked: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return the attention of q, k, v, the mask of dropout, and a mask."""
    effects = Effects(result_order={0: axes_by_time(rank, attention.turned)[0]})
    record = of_operands(NamedConstant("attention", attention.forward), 5 if masked else 4)
    return FusedKernel("attention", record, effects=effects, workspace=workspace, work=work_of_attention)


def gradient_call(attention: DroppedAttention, rank: int, masked: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return the gradients of q, k and v, of q, k, v, the mask of dropout, the gradient of the result, and a mask."""
    by_time, k_order = axes_by_time(rank, attention.turned)
    effects = Effects(result_order={0: by_time, 1: k_order, 2: by_time})
    record = of_operands(NamedConstant("gradient", attention.backward), 6 if masked else 5)
    return FusedKernel("attention gradient", record, effects=effects, workspace=workspace, work=work_of_attention)
