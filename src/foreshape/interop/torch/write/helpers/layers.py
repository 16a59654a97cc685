"""Layers as PaddlePaddle has them."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

import math
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
    out = x.new_zeros([x.shape[0], x.shape[1], math.prod(size)])
    image: Tensor = out.scatter(2, index.flatten(2), x.flatten(2))
    return image.reshape(x.shape[0], x.shape[1], *size)


def local_response_norm(x: Tensor, n: int, k: float, alpha: float, beta: float, axis: int) -> tuple[Tensor, Tensor]:
    """Return each number over a power of ``k + alpha * (the squares around it, added up)``, and these sums: of ``n`` channels along an axis."""
    half = n // 2
    squares = F.pad(x * x, [0, 0] * (x.dim() - 1 - axis) + [half, half]).unfold(axis, 2 * half + 1, 1)
    middle = squares.sum(-1) * alpha + k
    return middle.pow(-beta) * x, middle


def affine_grid(theta: Tensor, sizes: Sequence[int], align_corners: bool) -> Tensor:
    """Return where the points of images are by affine maps, with the corners of -1 and 1: ``[batch, *sizes, axes]``."""
    axes, places = len(sizes), list[Tensor]()
    for size in sizes:
        end = 1.0 if align_corners else 1 - 1 / size
        places.append(torch.linspace(-end, end, size, dtype=theta.dtype, device=theta.device))
    points = torch.stack(torch.meshgrid(*places, indexing="ij")[::-1], -1).reshape(-1, axes)
    return (points @ theta[..., :axes].transpose(1, 2) + theta[..., axes].unsqueeze(1)).reshape(theta.shape[0], *sizes, axes)


def lstm_unit(x: Tensor, cell: Tensor, forget_bias: float) -> tuple[Tensor, Tensor]:
    """Return the cell and the state of an LSTM by its gates, in the order input, forget, output, cell."""
    i, f, o, g = x.chunk(4, 1)
    cell = i.sigmoid() * g.tanh() + (f + forget_bias).sigmoid() * cell
    return cell, o.sigmoid() * cell.tanh()


def with_positions(x: Tensor, row: Tensor, alpha: float, beta: float) -> Tensor:
    """Return ``alpha * x + beta *`` the sines and cosines of each row's number."""
    half = x.shape[-1] // 2
    power = torch.arange(half, dtype=torch.float64, device=x.device) / (half - 1) if half > 1 else torch.ones(half, dtype=torch.float64, device=x.device)
    angle = row.unsqueeze(1) / torch.exp(power * math.log(10000.0))
    return x * alpha + torch.cat([angle.sin(), angle.cos()], 1).to(x.dtype) * beta


def row_convolution(x: Tensor, weight: Tensor) -> Tensor:
    """Return the sum of each row and the rows after it, ``[..., rows, features]``, each times its row of weights."""
    windows = F.pad(x, (0, 0, 0, weight.shape[0] - 1 if x.shape[-2] else weight.shape[0])).unfold(-2, weight.shape[0], 1)[..., : x.shape[-2], :, :]
    return (windows * weight.t()).sum(-1)


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


def overlap_add(frames: Tensor, hop: int, first: bool) -> Tensor:
    """Return frames ``[..., length, count]``, or with ``first`` ``[count, length, ...]``, ``hop`` samples apart, added up to signals."""
    ordered = frames.movedim((0, 1), (-2, -1)) if first else frames.transpose(-1, -2)
    count, length = ordered.shape[-2:]
    places = torch.arange(count, device=frames.device).unsqueeze(1) * hop + torch.arange(length, device=frames.device)
    out = frames.new_zeros((*ordered.shape[:-2], (count - 1) * hop + length)).index_add(-1, places.reshape(-1), ordered.flatten(-2))
    return out.movedim(-1, 0) if first else out


def short_time_transform(x: Tensor, window: Tensor, size: int, hop: int, normalized: bool, onesided: bool) -> Tensor:
    """Return the Fourier transforms of the windows of signals, ``[batch, frequencies, windows]``."""
    frames = x.unfold(1, size, hop) * window
    if not frames.numel():  # not every library takes none
        return torch.view_as_complex(frames.new_zeros((frames.shape[0], size // 2 + 1 if onesided else size, frames.shape[1], 2)))
    fft: Any = torch.fft
    out: Tensor = (fft.rfft if onesided else fft.fft)(frames, norm="ortho" if normalized else None)
    return out.transpose(1, 2)


def shifted_in_time(x: Tensor, steps: int, part: float, axis: int) -> Tensor:
    """Return images, ``steps`` of each video: a part of the channels from the image before, the next part from the one after, the others as they are."""
    videos, channels = x.unflatten(0, (-1, steps)), x.shape[axis]
    first, second = int(channels * part), int(channels * 2 * part)
    before, after, unmoved = videos.split([first, second - first, channels - second], axis + 1)
    before = torch.cat((torch.zeros_like(before[:, :1]), before[:, :-1]), 1)
    after = torch.cat((after[:, 1:], torch.zeros_like(after[:, :1])), 1)
    return torch.cat((before, after, unmoved), axis + 1).flatten(0, 1)


def channels_of_pixels(x: Tensor, factor: int) -> Tensor:
    """Return `F.pixel_unshuffle`; of nothing torch's own keeps the dims."""
    if torch.compiler.is_compiling() or x.numel():
        return F.pixel_unshuffle(x, factor)
    images, channels, height, width = x.shape
    if height % factor or width % factor:
        raise ValueError(f"height and width must be multiples of {factor}; seen {height} and {width}")
    return x.reshape(images, channels * factor**2, height // factor, width // factor)


def pixels_of_channels(x: Tensor, factor: int) -> Tensor:
    """Return `F.pixel_shuffle`; of nothing torch's own keeps the dims."""
    if torch.compiler.is_compiling() or x.numel():
        return F.pixel_shuffle(x, factor)
    images, channels, height, width = x.shape
    if channels % factor**2:
        raise ValueError(f"channels must be a multiple of {factor**2}; seen {channels}")
    return x.reshape(images, channels // factor**2, height * factor, width * factor)


def spectral_norm(weight: Tensor, u: Tensor, v: Tensor, axis: int, steps: int, epsilon: float) -> Tensor:
    """Return a weight over its largest singular value, approached in steps from the vectors ``u`` and ``v``, which count as constants."""
    matrix = weight.movedim(axis, 0).flatten(1)
    with torch.no_grad():
        for _ in range(steps):
            v = matrix.t() @ u
            v = v / (v.square().sum().sqrt() + epsilon)
            u = matrix @ v
            u = u / (u.square().sum().sqrt() + epsilon)
    return weight / (u.detach() @ (matrix @ v.detach()))
