"""Scaled dot-product attention in one kernel each way. It computes the weights piece by piece, and keeps one number for each row.

torch's own kernel ignores a mask that shifts a whole row, and recomputes the weights from sums of exponentials: both are corrected here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from math import prod
from typing import Any

from foreshape.core.dims import Size, maximum, minimum, product, reaches
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels import flash, onednn
from foreshape.machine.kernels.call_record import NamedConstant, Subscript, of_operands
from foreshape.machine.kernels.fused import Effects, FusedKernel, Order, Sizes, Work
from foreshape.machine.targets import current_target

_BYTES = 4
"""The bytes of an element: the kernel is for fp32."""
_FAR = 128.0
"""Sums of exponentials whose logarithm is farther from 0 are not kept to enough digits to make the weights from them again."""

_PIECE = 1 << 13
"""The rough number of weights made at once without torch's kernel, and the most numbers of queries."""


class AttentionMemory:
    """The workspace of the kernels in bytes: each thread makes a few rows of the weights, at most 512 columns at once.

    Args:
        q, v, mask: dims; None for no mask.
        causal: True to hide later rows too.
    """

    __slots__ = ("backward", "forward", "sums")

    def __init__(self, q: Sequence[Size], v: Sequence[Size], mask: Sequence[Size] | None, causal: bool = False) -> None:
        time, keys, width = q[-2], v[-2], q[-1]
        self.sums = product(q[:-1]) * _BYTES
        """The bytes of the logarithms, one for each row of weights."""
        if not current_target().is_processor:
            self._on_device(q, v, mask, causal)
            return
        rows = minimum(time, 32 + 32 * reaches(time, 192) + 192 * reaches(time, 768))
        columns = minimum(keys, 512)
        self.forward = onednn.thread_count() * rows * (columns + 2 + width) * _BYTES
        self.backward = onednn.thread_count() * rows * (2 * columns + 1) * _BYTES
        if mask is not None:
            weights, queries = minimum(time * keys, _PIECE + keys), minimum(time * width, _PIECE + width)
            whole = 2 * weights if causal else 0
            again = (3 * weights + 3 * queries + 3 * keys * width + whole) * _BYTES
            self.forward = self.forward + product(mask[:-1]) * (2 * _BYTES + 2)
            if causal:
                self.forward = maximum(self.forward, (4 * weights + 2 * queries + 4 * keys) * _BYTES + product(mask[:-1]) * (2 * _BYTES + 2))
            self.backward = maximum(self.backward, again) + self.sums * 2

    def _on_device(self, q: Sequence[Size], v: Sequence[Size], mask: Sequence[Size] | None, causal: bool) -> None:
        """Set the bytes on a device: of a mask with later rows hidden in it, shifted, and with rows of whole vectors; and of all weights without its kernel."""
        time, keys = q[-2], v[-2]
        masks: Size = 0
        if mask is not None:
            masks = 4 * product(mask[:-1]) * (keys + flash.ALIGNED) * _BYTES * (time if causal else 1)
        takes = all(isinstance(width, int) and not width % flash.ALIGNED for width in (q[-1], v[-1]))
        weights = 0 if takes else 3 * product(q[:-1]) * keys * _BYTES
        self.forward = masks + weights
        self.backward = masks + weights + self.sums


def bytes_of(dims: Sequence[Size]) -> Size:
    """Return the bytes of an operand or a gradient."""
    return product(dims) * _BYTES


class Attention:
    """Attention ``softmax(scale q k' + mask) v`` over ``[batch, heads, time, width]``, or without heads. ``turned``: k is given as k'.

    ``later``: the mask's value where a row of q stands before a row of k, far below all scores; 0 for none. A given mask is then one row for all rows of q,
    and the sum of both is not made. ``blanks``: NaN weights, as of a row without a key, become 0; without ``later``.
    """

    __slots__ = ("blanks", "later", "scale", "turned")

    def __init__(self, scale: float, turned: bool, later: float = 0.0, blanks: bool = False) -> None:
        self.scale, self.turned, self.later, self.blanks = scale, turned, later, blanks

    def forward(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Return the result, and the logarithm of the sum of exponentials of each row of scores."""
        rank = q.dim()
        q, k, v, mask, causal = self._operands(q, k, v, mask)
        if q.numel() and k.numel():
            out, sums = flash.forward(q, k, v, mask, causal, self.scale)
            if mask is not None:
                most = mask.amax(-1, keepdim=True)
                nowhere = most == -torch.inf
                if not q.is_cpu or nowhere.any():  # the kernel gives zeros there
                    out.masked_fill_(nowhere, torch.nan)
                    sums.masked_fill_(nowhere.squeeze(-1), torch.nan)
                if causal and not (mask[..., :1] >= (least := self._least(most))).all():
                    self._look_at_later(out, sums, q, k, v, mask, least)
            if self.blanks and (lost := ~sums.isfinite()).any():
                out = torch.where(lost.unsqueeze(-1), v.sum(-2, keepdim=True).mul_(0.0), out)
        else:
            out, sums = self._weights(q, k, None) @ v, q.new_zeros(q.shape[:-1])
        return out if rank == 4 else out.squeeze(1), sums

    def backward(self, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, d: Tensor, mask: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """Return the gradients of q, k and v."""
        rank = q.dim()
        if rank == 3:
            out, d = out.unsqueeze(1), d.unsqueeze(1)
        q, k, v, mask, causal = self._operands(q, k, v, mask)
        if q.numel() and k.numel():
            far = None if mask is None or not q.is_cpu else ~(sums.abs() <= _FAR)  # elsewhere the mask is shifted
            if far is not None and far.any():
                sums = sums.masked_fill(far, torch.inf)  # no weights there: they are made below
            made = flash.backward(d, q, k, v, out, sums, mask, causal, self.scale)
            if far is not None and mask is not None:
                self._add_far(made, q, k, v, far, d, mask)
        else:
            made = self._gradients(q, k, v, d, None)
        d_q, d_k, d_v = made if rank == 4 else (g.squeeze(1) for g in made)
        return d_q, d_k.mT if self.turned else d_k, d_v

    def _operands(self, q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor, Tensor | None, bool]:
        """Return the operands as the kernels take them, and whether these hide later rows. With a mask on a device they do not: its numbers would be asked."""
        if self.turned:
            k = k.mT
        if q.dim() == 3:
            q, k, v = q.unsqueeze(1), k.unsqueeze(1), v.unsqueeze(1)
            mask = mask.unsqueeze(1) if mask is not None and mask.dim() == 3 else mask
        if mask is not None and mask.dim() in (1, 3):
            mask = mask.unsqueeze(0)
        causal = self.later != 0.0
        if mask is not None and not q.is_cpu:
            mask, causal = _shifted(self._whole(mask, q, k, 0)), False
        return _in_rows(q), _in_rows(k), _in_rows(v), mask, causal

    def _least(self, most: Tensor) -> Tensor:
        """Return the least mask in a row that gives later columns no weight there: infinite where a sum with it would lose the causal mask."""
        lost = most > -2 * self.later
        return most.add_(self.later / 2).clamp_min_(max(2 * self.later, torch.finfo(most.dtype).min)).masked_fill_(lost, torch.inf)

    def _look_at_later(self, out: Tensor, sums: Tensor, q: Tensor, k: Tensor, v: Tensor, mask: Tensor, least: Tensor) -> None:
        """Recompute rows that see nothing before them: later columns are as near as hidden ones.

        ``least``: the least value of a mask for a row to see something.
        """
        masks, leasts = mask.expand(*q.shape[:2], 1, k.shape[-2]), least.expand(*q.shape[:2], 1, 1)
        for batch, head in _heads(~(masks[..., 0] >= leasts[..., 0]).squeeze(-1)):
            at = batch, head
            end = min(int((~(masks[at].cummax(-1).values >= leasts[at])).sum()), q.shape[-2])
            for rows in _pieces(end, k):
                whole = self._whole(masks[at], q[at][rows], k[at], rows.start)
                out[at][rows] = self._weights(q[at][rows], k[at], whole) @ v[at]
            sums[at][:end] = torch.finfo(q.dtype).min  # far away, so that `backward` recomputes them too

    def _add_far(self, made: Sequence[Tensor], q: Tensor, k: Tensor, v: Tensor, far: Tensor, d: Tensor, mask: Tensor) -> None:
        """Add the gradients of rows that a mask moved far away from 0, head by head, and piece by piece."""
        masks = mask.expand(*q.shape[:2], mask.shape[-2], k.shape[-2])
        for at in _heads(far.any(-1)):
            d_q, d_k, d_v = (whole[at] for whole in made)
            for rows in _pieces(q.shape[-2], k):
                there = far[at][rows]
                if there.any():
                    of = masks[at] if mask.shape[-2] == 1 else masks[at][rows]
                    of_d = d[at][rows].masked_fill(~there.unsqueeze(-1), 0.0)
                    of_q, of_k, of_v = self._gradients(q[at][rows], k[at], v[at], of_d, self._whole(of, q[at][rows], k[at], rows.start))
                    d_q[rows] += of_q
                    d_k += of_k
                    d_v += of_v

    def _whole(self, mask: Tensor | None, q: Tensor, k: Tensor, first: int) -> Tensor | None:
        """Return all that is added to the scores of some rows of q, from row ``first`` on."""
        if self.later == 0.0:
            return mask
        hidden = (q if mask is None else mask).new_full((q.shape[-2], k.shape[-2]), self.later).triu_(1 + first)
        return hidden if mask is None else mask + hidden

    def _weights(self, q: Tensor, k: Tensor, mask: Tensor | None) -> Tensor:
        scores = (q * self.scale) @ k.mT
        return torch.softmax(scores if mask is None else scores.add_(mask), -1)

    def _gradients(self, q: Tensor, k: Tensor, v: Tensor, d: Tensor, mask: Tensor | None) -> tuple[Tensor, Tensor, Tensor]:
        weights = self._weights(q, k, mask)
        d_scores = private.softmax_gradient(d @ v.mT, weights, -1, weights.dtype)
        return (d_scores @ k).mul_(self.scale), (d_scores.mT @ q).mul_(self.scale), weights.mT @ d


def _shifted(mask: Tensor | None) -> Tensor | None:
    """Return a mask less the largest number of each row: the weights are the same, and sums of exponentials keep their digits."""
    if mask is None:
        return None
    most = mask.amax(-1, keepdim=True)
    return mask - most.masked_fill_(most == -torch.inf, 0.0)


def _heads(which: Tensor) -> list[tuple[int, int]]:
    """Return the numbers of examples and heads where ``[batch, heads]`` is true."""
    found: Any = which.nonzero()
    return [(batch, head) for batch, head in found.tolist()]


def _pieces(end: int, k: Tensor) -> list[slice]:
    """Return the rows of q before ``end`` whose weights are made at once."""
    step = _PIECE // max(k.shape[-2:]) + 1
    return [slice(first, min(first + step, end)) for first in range(0, end, step)]


def _in_rows(x: Tensor) -> Tensor:
    """Return ``x`` with contiguous rows that do not overlap, as the kernels require."""
    return x if x.stride(-1) == 1 and x.stride(-2) >= x.shape[-1] else x.contiguous()


# --- the calls


def axes_by_time(rank: int, turned: bool) -> tuple[Order, Order]:
    """Return the order of the axes in memory of a result, with the heads of a time side by side; and the order of d_k."""
    last = rank - 1
    by_time = (0, 2, 1, 3) if rank == 4 else (0, 1, 2)
    return by_time, tuple({last: last - 1, last - 1: last}.get(a, a) for a in by_time) if turned else by_time


def forward_call(attention: Attention, rank: int, masked: bool, keeps_sums: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return the attention of q, k, v and a mask, with the logarithms of the sums of each row where the gradient wants them."""
    by_time, k_order = axes_by_time(rank, attention.turned)
    effects = Effects(axis_order=_operand_order(rank, k_order), result_order={0: by_time})
    record = of_operands(NamedConstant("attention", attention.forward), 4 if masked else 3)
    return FusedKernel("attention", record if keeps_sums else Subscript(record, 0), effects=effects, workspace=workspace, work=work_of_attention)


def gradient_call(attention: Attention, rank: int, masked: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return the gradients of q, k and v, of q, k, v, the result, its sums, the gradient of the result, and a mask."""
    by_time, k_order = axes_by_time(rank, attention.turned)
    effects = Effects(axis_order={**_operand_order(rank, k_order), 5: by_time}, result_order={0: by_time, 1: k_order, 2: by_time})
    record = of_operands(NamedConstant("gradient", attention.backward), 7 if masked else 6)
    return FusedKernel("attention gradient", record, effects=effects, workspace=workspace, work=work_of_attention)


def _operand_order(rank: int, k_order: Order) -> dict[int, Order]:
    return {0: (rank - 1,), 1: k_order[-1:], 2: (rank - 1,)}


def work_of_attention(operands: Sizes, results: Sizes) -> Work | None:
    """Return the work of an attention: heads of all examples, time, time, width."""
    q, k = operands[0], operands[1]
    if q is None or k is None or len(q) < 3 or len(k) < 3:
        return None
    at = (prod(q[:-2]), q[-2], max(k[-2], k[-1]) if len(k) == len(q) else q[-2], q[-1])
    return Work(at, prod(at) * 2)
