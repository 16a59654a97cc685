"""Steps of a beam search."""

from __future__ import annotations

import torch
from torch import Tensor

from foreshape.core.values.offsets import Offsets


def beam_step(
    last_words: Tensor, last_scores: Tensor, words: Tensor | None, scores: Tensor, sources: Offsets | None, size: int, end: int, accumulated: bool
) -> tuple[Tensor, Tensor, Tensor, Offsets]:
    """Return words, scores and prefixes of the best continuations of each source, and their sequences: sources of prefixes, prefixes of continuations.

    Of equal scores the later prefix is better, and in one prefix the earlier column. A source whose kept prefixes have all ended before keeps nothing.

    Args:
        last_words, last_scores: of each prefix; one with the word ``end`` has ended, and has itself as its only continuation.
        words, scores: ``[prefixes, n]``; scores are ``accumulated``, or probabilities. Without words they are the column numbers.
    """
    count, width = scores.shape
    sources = Offsets([torch.tensor([0, count], device=scores.device)]) if sources is None else sources
    ended, last_scores = last_words.reshape(-1, 1) == end, last_scores.reshape(-1, 1)
    total = scores if accumulated else last_scores + scores.log()
    columns = torch.arange(width, device=scores.device)
    first = (columns == 0) & ended
    words = (columns.expand(count, width) if words is None else words).masked_fill(first, end)
    total = torch.where(first, last_scores, total)
    place = (first | ~ended).reshape(-1).nonzero().squeeze(1)
    prefix = place // max(width, 1)
    source, value = sources.segments[prefix], total.reshape(-1)[place]
    order = prefix.argsort(descending=True, stable=True)  # by source, then score, then the later prefix: the least important first
    order = order[value[order].argsort(descending=True, stable=True)]
    order = order[source[order].argsort(stable=True)]
    order = order[Offsets.of_lengths(torch.bincount(source, minlength=sources.count)).positions < size]
    order = order[prefix[order].argsort(stable=True)]
    source, prefix, place = source[order], prefix[order], place[order]
    word = words.reshape(-1)[place]
    goes_on = (word != end) | ~ended.reshape(-1)[prefix]
    stays = (torch.bincount(source[goes_on], minlength=sources.count) > 0)[source]
    prefix, place, word = prefix[stays], place[stays], word[stays]
    offsets = Offsets([sources.last, Offsets.of_lengths(torch.bincount(prefix, minlength=count)).last])
    return word.unsqueeze(1), total.reshape(-1)[place].unsqueeze(1), prefix.int(), offsets
