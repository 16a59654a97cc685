"""Attention within ragged sequences on a GPU: torch's memory-efficient kernel for sequences of several lengths. No run on a GPU has shown it.

Its logarithms of sums are ``[sequences, heads, the longest length rounded up]``; here they are by row, as everything else.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_private import private
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.flash import ALIGNED, CAUSAL, ROUNDED


def fits(x: Tensor, heads: int, offsets: Sequence[Offsets], bias: Tensor | None) -> bool:
    """Return True if the kernel takes rows ``[rows, width]`` on this device: without a bias, and no sequence is empty."""
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    return (
        x.is_cuda
        and bias is None
        and x.dtype in kinds
        and not x.shape[1] // heads % ALIGNED
        and x.shape[0] == offsets[0].rows > 0
        and all(min(o.host_lengths) > 0 for o in offsets[:2])
    )


def forward(q: Tensor, k: Tensor, v: Tensor, heads: int, offsets: Sequence[Offsets], causal: bool, scale: float) -> tuple[Tensor, Tensor]:
    """Return the results ``[rows, width]``, and the logarithms of the sums of exponentials ``[rows, heads]``, fp32."""
    of_q, of_k = offsets[:2]
    out, sums, *_ = private.varied_attention(
        *(_in_heads(x, heads) for x in (q, k, v)),
        None,
        _begins(of_q),
        _begins(of_k),
        of_q.longest,
        of_k.longest,
        0.0,
        CAUSAL if causal else 0,
        True,
        scale=scale,
    )
    return out.reshape(q.shape[0], -1), sums.transpose(1, 2)[of_q.segments, of_q.positions]


def backward(
    d: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, heads: int, offsets: Sequence[Offsets], causal: bool, scale: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the gradients of q, k and v, from the results of `forward`."""
    of_q, of_k = offsets[:2]
    padded = sums.new_zeros(of_q.count, heads, -(-of_q.longest // ROUNDED) * ROUNDED)
    padded.transpose(1, 2)[of_q.segments, of_q.positions] = sums
    unused = torch.empty((), dtype=torch.int64, device=q.device)  # the state of dropout
    gradients: Any = private.varied_attention_gradient(
        _in_heads(d, heads),
        *(_in_heads(x, heads) for x in (q, k, v)),
        None,
        _in_heads(out, heads),
        _begins(of_q),
        _begins(of_k),
        of_q.longest,
        of_k.longest,
        padded,
        0.0,
        unused,
        unused,
        CAUSAL if causal else 0,
        False,
        scale=scale,
    )
    d_q, d_k, d_v = (x.reshape(x.shape[1], -1) for x in gradients[:3])
    return d_q, d_k, d_v


def _in_heads(x: Tensor, heads: int) -> Tensor:
    """Return ``[rows, width]`` as ``[1, rows, heads, width / heads]``, without a copy."""
    return x.view(1, x.shape[0], heads, -1)


def _begins(offsets: Offsets) -> Tensor:
    """Return the begins of sequences as the kernel takes them: int32 ``[sequences + 1]``."""
    return offsets.kept("int32", lambda: offsets.last.to(torch.int32))
