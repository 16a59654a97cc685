"""The choice of the next word from scores: the best one, or a draw."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

from foreshape.errors import SchemaError
from foreshape.values.torch_proxy import Tensor, torch


@dataclass(frozen=True)
class WordChoice:
    """Settings of the choice of words.

    Attributes:
        temperature: 0 takes the word with the best score; otherwise scores are divided by it before a draw from their softmax.
        top_k: draws among so many of the best words; 0 for all.
        top_p: draws among the best words, with probabilities of at least this sum (Holtzman et al., "The Curious Case of Neural Text
            Degeneration", 2020); 1 for all.
    """

    temperature: float = 0.0
    top_k: int = 0
    top_p: float = 1.0

    def __post_init__(self) -> None:
        if not (self.temperature >= 0 and math.isfinite(self.temperature)):
            raise SchemaError.must("temperature", "a number of at least 0", self.temperature)
        if self.top_k < 0:
            raise SchemaError.must("top_k", "at least 0", self.top_k)
        if not 0 < self.top_p <= 1:
            raise SchemaError.must("top_p", "above 0 and at most 1", self.top_p)

    def draw(self, scores: Tensor, random: Any) -> int:
        """Return the number of a word for scores ``[vocabulary]``; ``random`` is a generator of numpy's, asked once."""
        scores = scores.double() / self.temperature
        words = None
        if 0 < self.top_k < scores.shape[0]:
            scores, words = scores.topk(self.top_k)
        parts = scores.softmax(0)
        if self.top_p < 1.0:
            parts, order = parts.sort(descending=True, stable=True)
            words = order if words is None else words[order]
            kept = max(int((parts.cumsum(0) - parts < self.top_p).sum()), 1)
            parts = parts[:kept]
        sums = parts.cumsum(0)
        at = min(int(torch.searchsorted(sums, random.random() * sums[-1].item(), right=True)), sums.shape[0] - 1)
        return at if words is None else int(words[at])
