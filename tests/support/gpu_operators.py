"""Facts about operators on a GPU; and those of GPUs alone, computed on the processor: attention of several lengths, cuDNN's layers."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from typing import Any

import torch

EMPTY = {"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "empty_permuted"}
"""Allocations that start no kernel."""
METADATA = {"_unsafe_view", "_reshape_alias", "lift_fresh", "lift", "resize_", "set_", "is_same_size", "_has_compatible_shallow_copy_type", "detach", "detach_"}
"""Operators without a kernel that their schemas do not show as views."""
WAITING = {
    "_local_scalar_dense", "nonzero", "equal", "masked_select", "_unique2", "unique_dim", "unique_consecutive", "bincount", "histc", "is_nonzero",
    "linalg_eig", "linalg_eigvals", "linalg_lstsq", "_ctc_loss", "ctc_loss", "_linalg_check_errors", "segment_reduce", "_nested_tensor_from_mask",
}  # fmt: skip
"""Operators that wait for the device: they give a number, or a result whose shape the numbers decide."""
TAKES_NUMBERS = {"masked_fill", "masked_fill_", "index_fill", "index_fill_", "fill", "fill_", "index_put", "index_put_", "where"}
"""Operators beside the elementwise ones that take numbers of the host."""
INDEXED = {"index", "index_put", "index_put_", "_index_put_impl_"}
"""Operators that take indices of the host, and copy them."""

ASSERTING = {
    "gather", "scatter", "scatter_", "scatter_add", "scatter_add_", "scatter_reduce", "scatter_reduce_", "index_select", "index", "index_put", "index_put_",
    "_index_put_impl_", "index_add", "index_add_", "index_copy", "index_copy_", "index_fill", "index_fill_", "take", "put", "put_", "embedding",
    "embedding_dense_backward", "_embedding_bag", "_embedding_bag_forward_only", "nll_loss_forward", "nll_loss_backward", "nll_loss2d_forward",
    "nll_loss2d_backward", "index_reduce", "index_reduce_",
}  # fmt: skip
"""Operators whose kernels end the process' context on a GPU where an index is out of range."""
WHOLE = {torch.ops.aten.adaptive_avg_pool2d, torch.ops.aten.adaptive_avg_pool3d}
"""Operators made of others that change strides in place."""


def efficient_attention(
    q: Any, k: Any, v: Any, bias: Any, begins: Any, key_begins: Any, longest: int, longest_key: int, dropout: float, mask: int, sums: bool, scale: float
) -> Any:
    """Compute what CUDA's kernel gives for ``[batch, time, heads, width]``, or for sequences of several lengths, side by side: the processor has none."""
    assert not dropout and sums and not q.shape[3] % 8 and not v.shape[3] % 8 and all(x.stride(-1) == 1 for x in (q, k, v))
    if begins is None:
        count, longest = q.shape[:2]
        assert bias is None or (bias.dtype is q.dtype and list(bias.shape) == [count, q.shape[2], longest, k.shape[1]] and bias.stride(-1) == 1)
        assert bias is None or not any(stride % 8 for stride in bias.stride()[:-1])
    else:
        count = len(begins) - 1
        assert bias is None and begins.dtype is key_begins.dtype is torch.int32 and q.shape[0] == 1
        assert max(begins.diff()) == longest and max(key_begins.diff()) == longest_key
    out = torch.empty(*q.shape[:3], v.shape[3], dtype=q.dtype)
    logarithms = torch.full((count, q.shape[2], -(-longest // 32) * 32), torch.nan)
    for number, (rows, keys, scores) in enumerate(_scored(q, k, bias, begins, key_begins, mask, scale)):
        out[rows] = (scores.softmax(-1).to(v.dtype) @ v[keys].transpose(0, 1)).transpose(0, 1)
        logarithms[number, :, : scores.shape[1]] = scores.logsumexp(-1)
    return out, logarithms, torch.zeros((), dtype=torch.int64), torch.zeros((), dtype=torch.int64), longest, longest_key


def efficient_attention_gradient(
    d: Any, q: Any, k: Any, v: Any, bias: Any, out: Any, begins: Any, key_begins: Any, longest: int, longest_key: int, sums: Any, dropout: float, seed: Any,
    offset: Any, mask: int, bias_gradient: bool, scale: float,
) -> Any:  # fmt: skip
    """Compute the gradients of `efficient_attention` from the logarithms that it gave."""
    assert list(sums.shape) == [len(q) if begins is None else len(begins) - 1, q.shape[2], -(-longest // 32) * 32]
    d_q, d_k, d_v = (torch.empty_like(x, memory_format=torch.contiguous_format) for x in (q, k, v))
    for number, (rows, keys, scores) in enumerate(_scored(q, k, bias, begins, key_begins, mask, scale)):
        weights = (scores - sums[number, :, : scores.shape[1], None]).exp()
        of_rows, results = d[rows].transpose(0, 1).float(), out[rows].transpose(0, 1)
        moved = weights * (of_rows @ v[keys].permute(1, 2, 0).float() - (of_rows * results).sum(-1, keepdim=True)) * scale
        d_q[rows] = (moved @ k[keys].transpose(0, 1).float()).transpose(0, 1).to(q.dtype)
        d_k[keys] = (moved.mT @ q[rows].transpose(0, 1).float()).transpose(0, 1).to(q.dtype)
        d_v[keys] = (weights.mT @ of_rows).transpose(0, 1).to(q.dtype)
    return d_q, d_k, d_v, torch.empty(0)


def _scored(q: Any, k: Any, bias: Any, begins: Any, key_begins: Any, mask: int, scale: float) -> Any:
    """Yield the place of each sequence's rows, of its keys, and their scores ``[heads, rows, keys]``, fp32."""
    if begins is None:
        places = [((number, slice(None)), (number, slice(None))) for number in range(len(q))]
    else:
        ends = [[int(x) for x in b] for b in (begins, key_begins)]
        places = [((0, slice(*a)), (0, slice(*b))) for a, b in zip(pairwise(ends[0]), pairwise(ends[1]), strict=True)]
    for number, (rows, keys) in enumerate(places):
        scores = q[rows].transpose(0, 1).float() @ k[keys].permute(1, 2, 0).float() * scale
        if bias is not None:
            scores = scores + bias[number]
        if mask:
            scores = scores.masked_fill(torch.ones(scores.shape[1:], dtype=torch.bool).triu(1), -torch.inf)
        yield rows, keys, scores


RESERVED = {1: 2, 3: 5, 4: 6}
"""Gates of a recurrent layer -> the numbers that cuDNN is taken to keep for each number of its state."""


def cudnn_rnn(
    x: Any, weights: Any, stride: int, flat: Any, h0: Any, c0: Any, mode: int, hidden: int, projected: int, layers: int, batch_first: bool, dropout: float,
    train: bool, both: bool, widths: Any, drawn: Any,
) -> Any:  # fmt: skip
    """Compute what cuDNN gives for a recurrent layer by PyTorch's own of the processor."""
    assert stride == 4 and not projected and layers == 1 and not batch_first and not dropout and drawn is None and h0.is_contiguous()
    out, ends = _layer(x, weights, h0, c0, mode, both, widths)
    places = x.shape[0] if widths else x.shape[0] * x.shape[1]
    gates = weights[0].shape[0] // hidden
    reserve = torch.empty(RESERVED[gates] * places * out.shape[-1] * x.element_size() if train else 0, dtype=torch.uint8)
    return out, ends[0], ends[1] if c0 is not None else torch.empty(0), reserve, torch.cat([w.flatten() for w in weights])


def cudnn_rnn_gradient(
    x: Any, weights: Any, stride: int, flat: Any, h0: Any, c0: Any, out: Any, d_out: Any, d_h: Any, d_c: Any, mode: int, hidden: int, projected: int,
    layers: int, batch_first: bool, dropout: float, train: bool, both: bool, widths: Any, drawn: Any, reserve: Any, wanted: Any,
) -> Any:  # fmt: skip
    """Compute the gradients of `cudnn_rnn` by PyTorch's of the processor, in a thread whose calls are recorded."""
    assert train and reserve.numel() and torch.equal(flat, torch.cat([w.flatten() for w in weights]))

    def gradients() -> Any:
        operands = [t.clone().requires_grad_() for t in (x, h0, *weights, *([] if c0 is None else [c0]))]
        results, ends = _layer(operands[0], operands[2 : 2 + len(weights)], operands[1], None if c0 is None else operands[-1], mode, both, widths)
        given = [(y, d) for y, d in zip((results, *ends), (d_out, d_h, d_c), strict=False) if d is not None]
        return torch.autograd.grad([y for y, _ in given], operands, [d for _, d in given], allow_unused=True, materialize_grads=True)

    with ThreadPoolExecutor(1) as threads:
        d_x, d_h0, *rest = threads.submit(gradients).result()
    of_weights = torch.cat([d.flatten() for d in rest[: len(weights)]]).split([w.numel() for w in weights])
    return d_x, d_h0, torch.empty(0) if c0 is None else rest[-1], [d.view(w.shape) for d, w in zip(of_weights, weights, strict=True)]


def _layer(x: Any, weights: Any, h0: Any, c0: Any, mode: int, both: bool, widths: Any) -> Any:
    """Return the results of a layer and its last states, of packed rows or of ``[steps, sequences, features]``."""
    function = (torch._VF.rnn_relu, torch._VF.rnn_tanh, torch._VF.lstm, torch._VF.gru)[mode]
    initial = h0 if c0 is None else (h0, c0)
    if widths:
        out, *ends = function(x, torch.tensor(widths), initial, list(weights), True, 1, 0.0, True, both)
    else:
        out, *ends = function(x, initial, list(weights), True, 1, 0.0, True, both, False)
    return out, ends


ON_GPUS_ALONE: dict[str, Any] = {
    "_efficient_attention_forward": efficient_attention,
    "_efficient_attention_backward": efficient_attention_gradient,
    "_cudnn_rnn": cudnn_rnn,
    "_cudnn_rnn_backward": cudnn_rnn_gradient,
}
"""Operators without a kernel for the processor, and what stands for them."""
