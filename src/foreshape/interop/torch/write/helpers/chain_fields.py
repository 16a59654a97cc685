"""Linear-chain conditional random fields (Lafferty, McCallum and Pereira, 2001), and the best sequences of tags.

Transition weights are ``[tags + 2, tags]``: of starting, of ending, then of the tag of the row before.
"""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

import torch
from torch import Tensor

from foreshape.core.values.offsets import Offsets
from foreshape.interop.torch.write.helpers.bounds import within
from foreshape.interop.torch.write.helpers.ragged_rows import packed, padded, sequences_of_lengths


def packed_rows(
    emission: Tensor, label: Tensor | None, length: Tensor | None, sequences: Offsets | None, labelled: Offsets | None
) -> tuple[Tensor, Tensor | None, Offsets]:
    """Return emissions and labels as rows of sequences, of ragged ones or of padded ones with their lengths."""
    if length is not None:
        offsets = sequences_of_lengths(length, emission.shape[1])
        label = None if label is None else packed(label.reshape(emission.shape[:2]), offsets)
        return packed(emission, offsets), None if label is None else label.long(), offsets
    assert sequences is not None
    if labelled is not None and not sequences.same_sequences(labelled):
        raise ValueError(f"emissions and labels must be divided alike; seen sequences of {sequences.shown_lengths()} and {labelled.shown_lengths()}")
    return emission, None if label is None else label.reshape(-1).long(), sequences


def chain_costs(
    emission: Tensor, transition: Tensor, label: Tensor, length: Tensor | None, sequences: Offsets | None, labelled: Offsets | None
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the normalized forward messages, exp(emission - its largest tag), exp(transition), and the negative log-likelihoods of the labels."""
    x, tag, offsets = packed_rows(emission, label, length, sequences, labelled)
    assert tag is not None
    tag = within(tag, emission.shape[-1], "a tag of a label")
    rows, w, begin, messages = x.double().index_select(0, offsets.by_time), transition.double(), 0, list[Tensor]()
    for alive in offsets.alive:
        before = torch.logsumexp(messages[-1][:alive].unsqueeze(2) + w[2:], 1) if messages else w[0]
        messages.append(rows[begin : begin + alive] + before)
        begin += alive
    message = torch.cat(messages).index_select(0, offsets.from_time) if messages else rows
    previous = torch.cat((tag[:1], tag[:-1] + 2)).masked_fill(offsets.positions == 0, 0)
    weight = x.double().gather(1, tag.unsqueeze(1)).squeeze(1) + w[previous, tag]
    full = offsets.lengths.nonzero().squeeze(1)
    last = offsets.last[1:][full] - 1
    total = torch.logsumexp(message[last] + w[1], 1) - w[1, tag[last]]
    cost = w.new_zeros(offsets.count).index_add(0, offsets.segments, -weight).index_add(0, full, total)
    alpha = (message - torch.logsumexp(message, 1, keepdim=True)).exp().to(x.dtype)
    alpha = alpha if length is None else padded(alpha, offsets, emission.shape[1])
    return alpha, (emission - emission.amax(-1, keepdim=True)).exp(), transition.exp(), cost.to(emission.dtype).unsqueeze(1)


def best_tags(emission: Tensor, transition: Tensor, label: Tensor | None, length: Tensor | None, sequences: Offsets | None, labelled: Offsets | None) -> Tensor:
    """Return the tags of each sequence's most likely path (Viterbi, 1967); with labels 1 where the tag is the label's, else 0."""
    x, tag, offsets = packed_rows(emission, label, length, sequences, labelled)
    path = best_paths(x.index_select(0, offsets.by_time), transition, offsets.alive).index_select(0, offsets.from_time)
    path = path if tag is None else (path == tag).long()
    return path.unsqueeze(1) if length is None else padded(path, offsets, emission.shape[1])


def best_paths(x: Tensor, transition: Tensor, alive: list[int]) -> Tensor:
    """Return the best tags of rows by time, ``alive`` at each step; of equal ones the first."""
    if not alive:
        return x.new_zeros(0, dtype=torch.int64)
    steps = x.split(alive)
    score, came = transition[0] + steps[0], list[Tensor]()
    for step in steps[1:]:
        best, tag = (score[: len(step)].unsqueeze(2) + transition[2:]).max(1)
        score = torch.cat((best + step, score[len(step) :]))
        came.append(tag)
    tag, out = (score + transition[1]).argmax(1), list[Tensor]()
    for before in reversed(came):
        out.append(tag[: len(before)])
        tag = torch.cat((before.gather(1, out[-1].unsqueeze(1)).squeeze(1), tag[len(before) :]))
    return torch.cat([tag, *reversed(out)])


def viterbi(x: Tensor, transition: Tensor, length: Tensor, marked: bool) -> tuple[Tensor, Tensor]:
    """Return the highest sums of scores ``[batch, steps, tags]`` and transitions, and their tags, 0 behind the ends.

    Args:
        marked: the last tag stands before each sequence, the last but one behind it.
    """
    if not len(x):
        return x.new_zeros(0), length.new_zeros((0, 0))
    longest, ends = int(length.max()), within(length, x.shape[1] + 1, "a length", 1).unsqueeze(1)
    best, came = x[:, 0] + transition[-1] if marked else x[:, 0], list[Tensor]()
    best = torch.where(ends == 1, best + transition[-2], best) if marked else best
    for step in range(1, longest):
        highest, previous = (best.unsqueeze(2) + transition).max(1)
        new = highest + x[:, step]
        new = torch.where(ends == step + 1, new + transition[-2], new) if marked else new
        best = torch.where(ends > step, new, best)
        came.append(previous)
    scores, tag = best.max(1)
    path: list[Tensor] = []
    for step in range(longest - 1, -1, -1):
        path.append(torch.where(length > step, tag, 0))
        tag = torch.where(length > step, came[step - 1].gather(1, tag.unsqueeze(1)).squeeze(1), tag) if step else tag
    return scores, torch.stack(path[::-1], 1).to(length.dtype)
