"""Scaled dot-product attention in one kernel each way, which makes the weights piece by piece and keeps one number for each row of them.

torch's own kernel leaves out what a mask does to a whole row, and makes the weights again from sums of exponentials: both are put right here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, maximum, minimum, product, reaches
from foreshape.kernels import flash, onednn
from foreshape.values.torch_proxy import aten, torch

if TYPE_CHECKING:
    from torch import Tensor

_BYTES = 4
"""Of an element: it is for fp32."""
_FAR = 128.0
"""Sums of exponentials whose logarithm is farther from 0 are not kept to enough digits to make the weights from them again."""

_PIECE = 1 << 13
"""About so many weights are made at once where the kernel is of no use."""


class AttentionMemory:
    """The bytes that the kernels take while they run: each thread makes a few rows of the weights, at most 512 columns at once.

    Args:
        q, v, mask: dims; of the mask None where there is none.
    """

    __slots__ = ("backward", "forward", "sums")

    def __init__(self, q: Sequence[Size], v: Sequence[Size], mask: Sequence[Size] | None) -> None:
        time, keys, width = q[-2], v[-2], q[-1]
        self.sums = product(q[:-1]) * _BYTES
        """Of the logarithms, one for each row of weights."""
        rows = minimum(time, 32 + 32 * reaches(time, 192) + 192 * reaches(time, 768))
        columns = minimum(keys, 512)
        self.forward = onednn.thread_count() * rows * (columns + 2 + width) * _BYTES
        self.backward = onednn.thread_count() * rows * (2 * columns + 1) * _BYTES
        if mask is not None:
            self.forward = self.forward + product(mask[:-1]) * (_BYTES + 1)
            self.backward = maximum(self.backward, (3 * minimum(time * keys, _PIECE + keys) + 3 * keys * width) * _BYTES) + self.sums * 2


def bytes_of(dims: Sequence[Size]) -> Size:
    """The bytes of an operand or a gradient."""
    return product(dims) * _BYTES


class Attention:
    """Attention ``softmax(scale q k' + mask) v`` over ``[batch, heads, time, width]``, or without heads. ``turned``: k is given as k'.

    ``causal``: row j of q sees rows 0 to j of k alone, and there is no mask.
    """

    __slots__ = ("causal", "scale", "turned")

    def __init__(self, scale: float, turned: bool, causal: bool = False) -> None:
        self.scale, self.turned, self.causal = scale, turned, causal

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """The result, and the logarithm of the sum of exponentials of each row of scores."""
        rank = q.dim()
        q, k, v, mask = self._operands(q, k, v, mask)
        if q.numel() and k.numel():
            out, sums = flash.forward(q, k, v, mask, self.causal, self.scale)
            if mask is not None:
                nowhere = mask.amax(-1, keepdim=True) == -torch.inf
                if nowhere.any():  # the kernel gives zeros there
                    out.masked_fill_(nowhere, torch.nan)
                    sums.masked_fill_(nowhere.squeeze(-1), torch.nan)
        else:
            out, sums = self._weights(q, k, mask) @ v, q.new_zeros(q.shape[:-1])
        return out if rank == 4 else out.squeeze(1), sums

    def backward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, d: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """The gradients of q, k and v."""
        rank = q.dim()
        if rank == 3:
            out, d = out.unsqueeze(1), d.unsqueeze(1)
        q, k, v, mask = self._operands(q, k, v, mask)
        if q.numel() and k.numel():
            made = flash.backward(d, q, k, v, out, sums, mask, self.causal, self.scale)
            if mask is not None:
                self._correct(made, q, k, v, sums, d, mask)
        else:
            made = self._gradients(q, k, v, d, mask)
        d_q, d_k, d_v = made if rank == 4 else (g.squeeze(1) for g in made)
        return d_q, d_k.mT if self.turned else d_k, d_v

    def _operands(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None]:
        """The operands as the kernels take them."""
        if self.turned:
            k = k.mT
        if q.dim() == 3:
            q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
            mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        if mask is not None and mask.dim() in (1, 3):
            mask = mask.unsqueeze(0)
        return _in_rows(q), _in_rows(k), _in_rows(v), mask

    def _correct(self, made: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, sums: Tensor, d: Tensor, mask: Tensor) -> None:
        """Make the gradients of those heads again, one by one, and piece by piece, that have rows which a mask moved far away from 0."""
        far = ~(sums.abs() <= _FAR).all(-1)
        if not far.any():
            return
        masks = mask.expand(*q.shape[:-1], k.shape[-2])
        rows = _PIECE // k.shape[-2] + 1
        heads: Any = far.nonzero()
        for batch, head in heads.tolist():
            d_q, d_k, d_v = (whole[batch, head] for whole in made)
            d_k.zero_()
            d_v.zero_()
            for first in range(0, d_q.shape[0], rows):
                at = batch, head, slice(first, first + rows)
                d_q[at[2]], of_k, of_v = self._gradients(q[at], k[batch, head], v[batch, head], d[at], masks[at])
                d_k.add_(of_k)
                d_v.add_(of_v)

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = (q * self.scale) @ k.mT
        return torch.softmax(scores if mask is None else scores.add_(mask), -1)

    def _gradients(self, q: Tensor, k: Tensor, v: Tensor, d: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        weights = self._weights(q, k, mask)
        d_scores = aten._softmax_backward_data(d @ v.mT, weights, -1, weights.dtype)
        return (d_scores @ k).mul_(self.scale), (d_scores.mT @ q).mul_(self.scale), weights.mT @ d


def _in_rows(x: Tensor) -> Tensor:
    """``x`` with the elements of each row side by side, and rows apart, which the kernels take for granted."""
    return x if x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1] else x.contiguous()
