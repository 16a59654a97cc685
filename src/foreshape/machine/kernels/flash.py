"""Scaled dot-product attention and its gradients over ``[batch, heads, time, width]``: torch's kernels for CPUs and for GPUs, and written out elsewhere.

No run on a GPU has shown its kernel.
"""

from __future__ import annotations

from typing import Any

from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import F, Tensor, torch

ALIGNED = 8
"""The columns of a head, and the begins of a mask's rows, are multiples of so many for the kernel of GPUs."""
ROUNDED = 32
"""That kernel rounds the rows of its logarithms up to a multiple of so many."""
CAUSAL = 1
"""Its number of the mask with which row j sees rows 0 to j."""
_VECTOR = 16
"""The most numbers in a vector of torch's kernel: fewer columns are taken one by one."""


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return ``softmax(scale q k' + mask) v``, and the logarithm of the sum of exponentials of each row of scores; zeros where a row is masked whole.

    ``causal``: row j of q sees rows 0 to j of k alone.
    """
    if q.is_cpu:
        out, sums = private.attention(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        if k.shape[-2] < _VECTOR and not sums.all():  # torch's kernel takes a few scores without any number for masked ones
            lost = ~(_scores(q, k, None, causal, scale).amax(-1) > -torch.inf)
            if mask is not None:
                lost |= _scores(q, k, mask, causal, scale).isnan().any(-1)
            out.masked_fill_(lost.unsqueeze(-1), torch.nan)
            sums.masked_fill_(lost, torch.nan)
        return out, sums
    if fits(q, k, v):
        bias, nowhere = _as_bias(mask, q, k)
        out, sums, *_ = private.varied_attention(
            *(x.transpose(1, 2) for x in (q, k, v)),
            bias,
            None,
            None,
            q.shape[-2],
            k.shape[-2],
            0.0,
            CAUSAL if causal else 0,
            True,
            scale=scale,
        )
        out, sums = out.transpose(1, 2), sums[..., : q.shape[-2]]
        if nowhere is not None:
            out.masked_fill_(nowhere, 0.0)
            sums.masked_fill_(nowhere.squeeze(-1), -torch.inf)
        return out, sums
    scores = _scores(q, k, mask, causal, scale)
    sums = scores.logsumexp(-1, keepdim=True)
    weights = (scores - sums).exp_().nan_to_num_(0.0)  # of -inf - -inf, where a row is masked whole
    return (weights.to(v.dtype) @ v).transpose(1, 2).contiguous().transpose(1, 2), sums.squeeze(-1)


def backward(
    d: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, from the result of `forward`."""
    if q.is_cpu:
        return private.attention_gradient(d, q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=scale)
    if fits(q, k, v):
        time, (bias, nowhere) = q.shape[-2], _as_bias(mask, q, k)
        sums = sums if nowhere is None else sums.masked_fill(sums == -torch.inf, torch.inf)  # no weights where a row is masked whole
        padded = F.pad(sums, (0, -time % ROUNDED))
        unused = torch.empty((), dtype=torch.int64, device=q.device)  # the state of dropout
        gradients: Any = private.varied_attention_gradient(
            *(x.transpose(1, 2) for x in (d, q, k, v)),
            bias,
            out.transpose(1, 2),
            None,
            None,
            time,
            k.shape[-2],
            padded,
            0.0,
            unused,
            unused,
            CAUSAL if causal else 0,
            False,
            scale=scale,
        )
        d_q, d_k, d_v = (g.transpose(1, 2) for g in gradients[:3])
        return d_q, d_k, d_v
    weights = _weights(q, k, sums, mask, causal, scale)
    moved = _score_gradient(weights, d, v, out).mul_(scale).to(q.dtype)
    return moved @ k, moved.mT @ q, weights.to(d.dtype).mT @ d


def fits(q: Tensor, k: Tensor, v: Tensor) -> bool:
    """Return True if the kernel of GPUs takes operands: some rows, of columns in whole vectors of 16 bytes of 16-bit numbers."""
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    return q.is_cuda and q.dtype in kinds and q.dtype == k.dtype == v.dtype and q.numel() > 0 and k.numel() > 0 and not (q.shape[-1] | v.shape[-1]) % ALIGNED


def _as_bias(mask: Tensor | None, q: Tensor, k: Tensor) -> tuple[Tensor | None, Tensor | None]:
    """Return a mask as the kernel of GPUs takes it: ``[batch, heads, time, keys]``, with rows from whole vectors on; and the rows of -inf, zeros in it."""
    if mask is None:
        return None, None
    nowhere = mask.amax(-1, keepdim=True) == -torch.inf
    bias = mask.masked_fill(nowhere, 0.0).to(q.dtype)
    if any(stride % ALIGNED for stride in bias.stride()[:-1]) or bias.stride(-1) != 1:
        bias = F.pad(bias, (0, -bias.shape[-1] % ALIGNED))[..., : bias.shape[-1]]
    return bias.expand(*q.shape[:-1], k.shape[-2]), nowhere


def score_gradient(d: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Return the gradient of the scaled scores, ``[batch, heads, time, keys]``; of half precision in fp32. It is the gradient of an added mask too."""
    return _score_gradient(_weights(q, k, sums, mask, causal, scale), d, v, out)


def _weights(q: Tensor, k: Tensor, sums: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    return _scores(q, k, mask, causal, scale).sub_(sums.unsqueeze(-1)).exp_().nan_to_num_(0.0)


def _score_gradient(weights: Tensor, d: Tensor, v: Tensor, out: Tensor) -> Tensor:
    return (d @ v.mT).to(weights.dtype).sub_((d * out).sum(-1, keepdim=True)).mul_(weights)


def capped(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float, cap: float) -> Tensor:
    """Return as `forward` with each score s, before the mask, as cap * tanh(s / cap)."""
    scores = _scores(q, k, None, False, scale / cap).tanh_().mul_(cap)
    if mask is not None:
        scores.add_(mask)
    if causal:
        scores.masked_fill_(_later(scores), -torch.inf)
    return scores.softmax(-1).to(v.dtype) @ v


def _later(scores: Tensor) -> Tensor:
    return torch.ones(scores.shape[-2:], dtype=torch.bool, device=scores.device).triu_(1)


def _scores(q: Tensor, k: Tensor, mask: Tensor | None, causal: bool, scale: float) -> Tensor:
    """Return the scores; of half precision in fp32, as the sums are."""
    scores = q @ k.mT
    scores = (scores.float() if scores.dtype in (torch.float16, torch.bfloat16) else scores).mul_(scale)
    if mask is not None:
        scores.add_(mask)
    return scores.masked_fill_(_later(scores), -torch.inf) if causal else scores
