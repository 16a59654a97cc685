"""Scaled dot-product attention and its gradients over ``[batch, heads, time, width]``: torch's kernel for CPUs, and written out on other devices."""

from __future__ import annotations

from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch

_VECTOR = 16
"""The most numbers in a vector of torch's kernel: fewer columns are taken one by one."""


def forward(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None, causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return ``softmax(scale q k' + mask) v``, and the logarithm of the sum of exponentials of each row of scores; zeros where a row is masked whole.

    ``causal``: row j of q sees rows 0 to j of k alone.
    """
    if q.device.type == "cpu":
        out, sums = private.attention(q, k, v, 0.0, causal, attn_mask=mask, scale=scale)
        if k.shape[-2] < _VECTOR and not sums.all():  # torch's kernel takes a few scores without any number for masked ones
            lost = ~(_scores(q, k, None, causal, scale).amax(-1) > -torch.inf)
            if mask is not None:
                lost |= _scores(q, k, mask, causal, scale).isnan().any(-1)
            out.masked_fill_(lost.unsqueeze(-1), torch.nan)
            sums.masked_fill_(lost, torch.nan)
        return out, sums
    scores = _scores(q, k, mask, causal, scale)
    sums = scores.logsumexp(-1, keepdim=True)
    weights = (scores - sums).exp_().nan_to_num_(0.0)  # of -inf - -inf, where a row is masked whole
    return (weights.to(v.dtype) @ v).transpose(1, 2).contiguous().transpose(1, 2), sums.squeeze(-1)


def backward(
    d: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, mask: Tensor | None, causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, from the result of `forward`."""
    if q.device.type == "cpu":
        return private.attention_gradient(d, q, k, v, out, sums, 0.0, causal, attn_mask=mask, scale=scale)
    weights = _weights(q, k, sums, mask, causal, scale)
    moved = _score_gradient(weights, d, v, out).mul_(scale).to(q.dtype)
    return moved @ k, moved.mT @ q, weights.to(d.dtype).mT @ d


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
