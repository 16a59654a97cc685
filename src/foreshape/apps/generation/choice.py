"""The choice of the next word from scores: the best one, or a draw."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

from foreshape.apps.generation.text_settings import TextSettings
from foreshape.core.values.offsets import as_list
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError


class WordChoice(NamedTuple):
    """A written word with its logarithmic probability, by the network's own scores: before penalties, biases, the temperature and other settings.

    Attributes:
        word: its number.
        logprob: in nats; -inf for a score of -inf, and NaN for the first word of a prompt: there is no score of it.
        best: the words with the best scores and their logarithmic probabilities, the best one first.
    """

    word: int
    logprob: float
    best: tuple[tuple[int, float], ...]


def word_choices(scores: Tensor, words: Sequence[int], count: int) -> list[WordChoice]:
    """Return words with their logarithmic probabilities, and so many of the best words beside each.

    Args:
        scores: ``[words, vocabulary]``, as of the network.
        words: one for each row.
        count: of the best words.
    """
    logs = scores.float().log_softmax(-1)
    best: Any = logs.topk(min(count, logs.shape[1]))
    chosen = as_list(logs.gather(1, torch.tensor(words, device=logs.device).unsqueeze(1))[:, 0])
    rows = zip(words, chosen, best.indices.tolist(), best.values.tolist(), strict=True)
    return [WordChoice(word, logprob, tuple(zip(indices, values, strict=True))) for word, logprob, indices, values in rows]


def best_of(score: float, word: int) -> int:
    """Return the word of the best score. Raises `ExecutionError` if the score tells nothing."""
    if math.isnan(score) or score == -math.inf:
        raise ExecutionError(f"no next word can be chosen: {'a score is NaN' if math.isnan(score) else 'no word has a score above -inf'}")
    return word


def draw(scores: Tensor, settings: TextSettings, number: float) -> int:
    """Draw a word by its probability among the words left by the settings.

    Args:
        scores: ``[vocabulary]``.
        number: a random one in [0, 1).

    Raises:
        ExecutionError: scores without probabilities, such as NaN.
    """
    s, scores = settings, scores.double()
    best = float(scores.max())
    if not math.isfinite(best):
        raise ExecutionError(f"no next word can be drawn: the best score is {best}")
    scores = (scores - best) / s.temperature  # the best one is 0, so no temperature is too low
    words = None
    if 0 < s.top_k < scores.shape[0]:
        scores, words = scores.topk(s.top_k)
    parts = scores.softmax(0)
    if s.top_p < 1.0:
        parts, order = parts.sort(descending=True, stable=True)
        words = order if words is None else words[order]
        parts = parts[: max(int((parts.cumsum(0) - parts < s.top_p).sum()), 1)]
        words = words[: parts.shape[0]]
    for keep in _TRUNCATIONS:
        chosen = keep(parts / parts.sum(), s)
        if chosen is not None:
            parts, words = parts[chosen], chosen if words is None else words[chosen]
    sums = parts.cumsum(0)
    index = min(int(torch.searchsorted(sums, number * sums[-1].item(), right=True)), sums.shape[0] - 1)
    return index if words is None else int(words[index])


def _likely(parts: Tensor, s: TextSettings) -> Tensor | None:
    return (parts >= s.min_p * parts.max()).nonzero()[:, 0] if s.min_p else None


def _typical(parts: Tensor, s: TextSettings) -> Tensor | None:
    if s.typical_p >= 1.0:
        return None
    logs = parts.log()
    away, order = (-logs - _entropy(parts)).abs().sort(stable=True)
    last = min(int((parts[order].cumsum(0) < s.typical_p).sum()), parts.shape[0] - 1)
    return order[away <= away[last]].sort().values


def _above_epsilon(parts: Tensor, s: TextSettings) -> Tensor | None:
    return _at_least(parts, s.epsilon_cutoff) if 0 < s.epsilon_cutoff < 1 else None


def _above_eta(parts: Tensor, s: TextSettings) -> Tensor | None:
    if not 0 < s.eta_cutoff < 1:
        return None
    return _at_least(parts, min(s.eta_cutoff, math.sqrt(s.eta_cutoff) * math.exp(-float(_entropy(parts)))))


_TRUNCATIONS = (_likely, _typical, _above_epsilon, _above_eta)
"""The functions from probabilities to the places of the ones to draw among; None for all."""


def _at_least(parts: Tensor, bound: float) -> Tensor:
    return ((parts >= bound) | (parts == parts.max())).nonzero()[:, 0]


def _entropy(parts: Tensor) -> Tensor:
    return -(parts * parts.log()).nansum()
