"""Sequences beside sequences: losses over all alignments, aligned labels, and distances."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from foreshape.core.values.offsets import Offsets
from foreshape.interop.torch.write.helpers.bounds import within
from foreshape.interop.torch.write.helpers.ragged_rows import packed, padded, sequences_of_lengths


def ctc_loss(
    logits: Tensor,
    label: Tensor,
    length: Tensor | None,
    label_length: Tensor | None,
    steps: Offsets | None,
    labels: Offsets | None,
    blank: int,
    by_times: bool,
    reads_gradient: bool,
) -> tuple[Tensor, Tensor | None]:
    """Return the losses of connectionist temporal classification, 0 without an alignment, and if read their gradients ``[steps, sequences, classes]``.

    Args:
        logits: ragged ``[rows, classes]``, or ``[steps, sequences, classes]`` with lengths.
        by_times: the gradient of the loss is divided by the sequence's number of steps.
    """
    scores, classes = torch.log_softmax(logits, -1), logits.shape[-1]
    if blank >= classes:
        raise ValueError(f"the blank must be one of {classes} classes, not {blank}")
    if length is not None and label_length is not None:
        steps, labels = sequences_of_lengths(length, scores.shape[0]), sequences_of_lengths(label_length, label.shape[1])
        label = packed(label, labels)
    else:
        assert steps is not None and labels is not None
        steps, labels = steps.in_rows(0), labels.in_rows(0)
        scores = padded(scores, steps, steps.longest).transpose(0, 1)
    label = within(label.reshape(-1), classes, "a class of a label")
    if bool((label == blank).any()):
        raise ValueError(f"a label must not contain the blank, class {blank}")
    if not scores.shape[0] or not scores.shape[1]:
        return logits.new_zeros(scores.shape[1], 1), torch.zeros_like(scores)
    arguments: Any = label, steps.lengths, labels.lengths, blank, "none", True
    grad = None
    if reads_gradient:
        with torch.enable_grad():
            leaf = scores.detach().requires_grad_()
            (grad,) = torch.autograd.grad(F.ctc_loss(leaf, *arguments).sum(), leaf)
        grad = grad.masked_fill(scores == float("-inf"), 0.0)
    if by_times and scores.requires_grad:
        count = steps.lengths.clamp(min=1).reshape(-1, 1)

        def divided(gradient: Tensor) -> Tensor:
            return gradient / count

        hooked: Any = scores.clone()
        hooked.register_hook(divided)
        scores = hooked
    return F.ctc_loss(scores, *arguments).unsqueeze(1), grad


class TransducerLoss(torch.autograd.Function):
    """Losses with gradients computed beside them."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, loss: Tensor, grad: Tensor) -> Tensor:
        """Return the losses."""
        ctx.save_for_backward(grad)
        return loss.clone()

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Return each loss's own gradient times its factor."""
        (grad,) = ctx.saved_tensors
        return grad * gradients[0].reshape(-1, 1, 1, 1), None, None


def transducer_loss(x: Tensor, label: Tensor, length: Tensor, label_length: Tensor, blank: int, emphasis: float) -> tuple[Tensor, Tensor]:
    """Return -log of the sum over all paths through ``[steps, labels + 1]`` of their probabilities, and its gradients.

    A path goes from (t, u) to (t + 1, u) by the blank, or to (t, u + 1) by label u, and ends with the blank after the last step. Gradients of labels are
    ``1 + emphasis`` times as large.

    Args:
        x: logarithms of probabilities, ``[batch, steps, labels + 1, classes]``.
    """
    if blank >= x.shape[-1]:
        raise ValueError(f"the blank must be one of {x.shape[-1]} classes, not {blank}")
    function: Any = TransducerLoss
    with torch.no_grad():
        loss, grad = summed_paths(x, within(label, x.shape[-1], "a class of a label"), length, label_length, blank, emphasis)
    return function.apply(x, loss, grad), grad


def moved_states(x: Tensor, step: int) -> Tensor:
    """Return the last axis one place further, or back, with -infinity at the end left free."""
    free = torch.full_like(x[..., :1], float("-inf"))
    return torch.cat((free, x[..., :-1]), -1) if step > 0 else torch.cat((x[..., 1:], free), -1)


def summed_paths(x: Tensor, label: Tensor, length: Tensor, label_length: Tensor, blank: int, emphasis: float) -> tuple[Tensor, Tensor]:
    """Return losses and gradients of `transducer_loss`, by diagonals: all places with the same sum of step and state."""
    count, steps, states, _ = x.shape
    ends = within(length.reshape(-1).long(), steps + 1, "a length", 1)[:, None, None]
    last = within(label_length.reshape(-1).long(), states, "a length of a label")[:, None, None]
    u = torch.arange(states, device=x.device)
    t = torch.arange(steps + states - 1, device=x.device).unsqueeze(1) - u
    time, row = t.clamp(0, steps - 1), torch.arange(count, device=x.device)[:, None, None]
    labels = torch.cat((label.long(), label.new_zeros((count, 1), dtype=torch.int64)), 1).unsqueeze(1)
    inside, final, never = (t >= 0) & (t < ends) & (u <= last), (t == ends - 1) & (u == last), float("-inf")
    no_move = x[:, time, u, blank].masked_fill(~inside, never)
    emit = x[row, time, u, labels].masked_fill(~inside | (u >= last), never)
    forward = [torch.where(u == 0, 0.0, never).to(x.dtype).expand(count, states)]
    for n in range(1, len(t)):
        forward.append(torch.logaddexp(forward[-1] + no_move[:, n - 1], moved_states(forward[-1] + emit[:, n - 1], 1)))
    following, back = torch.full_like(forward[0], never), list[Tensor]()
    for n in range(len(t) - 1, -1, -1):
        onwards = torch.logaddexp(following + no_move[:, n], moved_states(following, -1) + emit[:, n])
        following = torch.where(final[:, n], no_move[:, n], onwards)
        back.append(following)
    total, after = back[-1][:, 0], torch.stack([*back[-2::-1], torch.full_like(following, never)], 1)
    weight = (torch.stack(forward, 1) - total[:, None, None]).masked_fill(~inside, never)
    d_blank = -(weight + no_move + torch.where(final, 0.0, after)).exp()
    d_emit = (weight + emit + moved_states(after, -1)).exp() * (-1.0 - emphasis)
    place = [index.expand(inside.shape)[inside] for index in (row, t, u)]
    grad = torch.zeros_like(x).index_put((*place, torch.full_like(place[0], blank)), d_blank[inside])
    return -total, grad.index_put((*place, labels.expand(inside.shape)[inside]), d_emit[inside], accumulate=True)


def stays_in(x: Tensor, sequences: Offsets, blank: int, merge: bool) -> Tensor:
    """Return the mask of labels other than the blank, and with ``merge`` other than the one before them."""
    stays, index = x != blank, sequences.segments
    again = torch.cat((torch.zeros_like(stays[:1]), (x[1:] == x[:-1]) & (index[1:] == index[:-1])))
    return stays & ~again if merge else stays


def aligned_rows(x: Tensor, sequences: Offsets, blank: int, merge: bool) -> tuple[Tensor, Offsets]:
    """Return the labels of sequences without the blanks, and their sequences."""
    rows = x.reshape(-1)
    stays = stays_in(rows, sequences, blank, merge)
    return rows[stays].unsqueeze(1), Offsets.of_lengths(torch.bincount(sequences.segments[stays], minlength=sequences.count))


def aligned(x: Tensor, lengths: Tensor, blank: int, merge: bool, value: int) -> tuple[Tensor, Tensor]:
    """Return padded labels without the blanks, a value behind them, and their lengths."""
    sequences = sequences_of_lengths(lengths, x.shape[1])
    rows, offsets = aligned_rows(packed(x, sequences), sequences, blank, merge)
    return padded(rows.squeeze(1), offsets, x.shape[1], value), offsets.lengths.unsqueeze(1).to(x.dtype)


def edit_distances(
    x: Tensor, y: Tensor, x_length: Tensor | None, y_length: Tensor | None, of_x: Offsets | None, of_y: Offsets | None, normalized: bool
) -> tuple[Tensor, Tensor]:
    """Return the number of sequences, and the edit distance (Levenshtein, 1966) of each of ``x`` and its one of ``y``, over the latter's length if so."""
    if x_length is not None and y_length is not None:
        of_x, of_y = sequences_of_lengths(x_length, x.shape[1]), sequences_of_lengths(y_length, y.shape[1])
        x, y = packed(x, of_x), packed(y, of_y)
    assert of_x is not None and of_y is not None
    if normalized and 0 in of_y.host_lengths:
        raise ValueError(f"a normalized distance is divided by a length, and sequence {of_y.host_lengths.index(0)} is empty")
    columns, target = torch.arange(of_y.longest + 1, device=x.device), padded(y.reshape(-1), of_y, of_y.longest)
    source, table = padded(x.reshape(-1), of_x, of_x.longest), columns.repeat(of_x.count, 1)
    for step in range(of_x.longest):  # an insertion follows an insertion: a running minimum, less the column
        moved = torch.minimum(table[:, 1:] + 1, table[:, :-1] + (target != source[:, step : step + 1]))
        row = torch.cat((torch.full_like(table[:, :1], step + 1), moved), 1)
        row = (row - columns).cummin(1)[0] + columns
        table = torch.where((of_x.lengths > step).unsqueeze(1), row, table)
    out = table.gather(1, of_y.lengths.unsqueeze(1)).float()
    return torch.tensor([of_x.count], device=x.device), out / of_y.lengths.unsqueeze(1) if normalized else out
