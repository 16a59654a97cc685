"""Layers as PaddlePaddle has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.utils.rnn import pack_padded_sequence, pad_packed_sequence


def batch_norm(
    x: Tensor,
    mean: Tensor,
    variance: Tensor,
    scale: Tensor | None,
    bias: Tensor | None,
    training: bool,
    momentum: float,
    epsilon: float,
    unbiased: bool = False,
) -> Tensor:
    """Normalize each channel. In training the moving mean and variance follow the batch's own, the variance without Bessel's correction."""
    if not training:
        return F.batch_norm(x, mean, variance, scale, bias, eps=epsilon)
    count = x.numel() // x.shape[1]
    if not count:  # there is no mean of nothing: the moving ones stay
        return x.clone()
    with torch.no_grad():
        axes = [axis for axis in range(x.dim()) if axis != 1]
        mean.mul_(momentum).add_(x.mean(axes).to(mean.dtype), alpha=1.0 - momentum)
        of_batch = x.var(axes, correction=1 if unbiased and count > 1 else 0).to(variance.dtype)
        variance.mul_(momentum).add_(of_batch, alpha=1.0 - momentum)
    return F.batch_norm(x, None, None, scale, bias, training=True, eps=epsilon) if count > 1 else one_each(x, scale, bias)


def one_each(x: Tensor, scale: Tensor | None, bias: Tensor | None) -> Tensor:
    """Return the normalization of one number for each channel: zeros times the scale, plus the bias."""
    dims = [1, -1, *[1] * (x.dim() - 2)]
    out = (x - x) * (1.0 if scale is None else scale.reshape(dims))
    return out if bias is None else out + bias.reshape(dims)


def downgraded_dropout(x: Tensor, p: float, training: bool) -> Tensor:
    """Drop elements in training without scaling the others, and scale all of them otherwise."""
    return F.dropout(x, p, True) * (1.0 - p) if training else x * (1.0 - p)


def unpool(x: Tensor, index: Tensor, size: Sequence[int]) -> Tensor:
    """Put each number at its place in an image of a size, of zeros elsewhere."""
    out = x.new_zeros([x.shape[0], x.shape[1], size[0] * size[1]])
    image: Tensor = out.scatter(2, index.flatten(2), x.flatten(2))
    return image.reshape(x.shape[0], x.shape[1], size[0], size[1])


def recurrent_with_lengths(
    x: Tensor, states: Sequence[Tensor], weights: Sequence[Tensor], lengths: Tensor, mode: str, dropout: float, training: bool, both: bool
) -> tuple[Tensor, ...]:
    """Run recurrent layers over sequences of their own lengths: results after a sequence's end are zeros, and its states are the ones at its end.

    Args:
        x: ``[time, batch, features]``.
        states: ``[units, batch, hidden]``; for an LSTM also the cells.
        weights: for each unit two matrices; then for each two biases.
        lengths: ``[batch]``, from 0 on.
    """
    directions = 2 if both else 1
    units = len(weights) // 4
    layers = units // directions
    empty = lengths < 1
    packed = pack_padded_sequence(x, lengths.clamp(min=1).cpu(), enforce_sorted=False)
    order = packed.sorted_indices
    back = packed.unsorted_indices
    ordered = [t for u in range(units) for t in (weights[2 * u], weights[2 * u + 1], weights[2 * units + 2 * u], weights[2 * units + 2 * u + 1])]
    sorted_states = [s if order is None else s.index_select(1, order) for s in states]
    function: Any = {"LSTM": torch.lstm, "GRU": torch.gru, "RNN_TANH": torch.rnn_tanh, "RNN_RELU": torch.rnn_relu}[mode]
    state = tuple(sorted_states) if mode == "LSTM" else sorted_states[0]
    results = function(packed.data, packed.batch_sizes, state, ordered, True, layers, dropout, training, both)
    out, _ = pad_packed_sequence(packed._replace(data=results[0]), total_length=x.shape[0])
    states_at_ends: list[Tensor] = [*results[1:]]
    last = [s if back is None else s.index_select(1, back) for s in states_at_ends]
    out = out.masked_fill(empty.reshape(1, -1, 1), 0.0)
    return (out, *[torch.where(empty.reshape(1, -1, 1), first, final) for first, final in zip(states, last, strict=True)])
