"""Beam search: several texts kept side by side, and the best is the result."""

from __future__ import annotations

from typing import Any, NamedTuple

from foreshape.apps.generation.choice import best_of
from foreshape.apps.generation.score_changes import changed_scores
from foreshape.apps.generation.text_settings import TextSettings
from foreshape.apps.generation.writing import Writing
from foreshape.core.values.torch_proxy import Tensor, torch


class _Beam(NamedTuple):
    """A text with the sum of its words' logarithmic probabilities, or its score once it is at its end."""

    score: float
    words: list[int]


class Beams(Writing):
    """A text written as ``width`` texts side by side. The best one with an end is the result.

    At each step twice as many continuations as beams are looked at. Ones at an end, among the first half, are kept with their sum of logarithmic
    probabilities divided by their length to the power of the length penalty; the best of the others go on. The search stops when no running text can
    become better than the worst one kept, by its length so far, or as ``early_stopping`` says.
    """

    def __init__(self, prompt: list[int], limit: int, settings: TextSettings, vocabulary: int) -> None:
        super().__init__(prompt, limit, settings, (), None)
        self.width, self._vocabulary = settings.beams, vocabulary
        self._lines = [_Beam(0.0, [])]
        self._ended: list[_Beam] = []

    @property
    def sure(self) -> int:
        """Return the number of words sure to stay: none before the end, when the best beam is known."""
        return len(self.words) if self.done else 0

    def chosen(self, scores: Tensor) -> list[tuple[int, int]]:
        """Choose the next words of the beams.

        Args:
            scores: ``[lines, vocabulary]``, a line for each beam; at the first step one for all of them.

        Returns:
            For each beam its parent, and its new word.

        Raises:
            ExecutionError: the scores tell no words, such as NaN.
        """
        logs = scores.float().log_softmax(-1)
        if self.settings.changes_scores:
            context = self.settings, self.prompt
            logs = torch.stack([changed_scores(row, *context, line.words, self.most) for row, line in zip(logs, self._lines, strict=True)])
        sums = logs + torch.tensor([line.score for line in self._lines], dtype=torch.float32).unsqueeze(-1)
        looked_at = min((len(self._ends) + 1 if self._ends else 2) * self.width, sums.numel())
        top: Any = sums.view(-1).topk(max(looked_at, min(2 * self.width, sums.numel())))
        best: list[tuple[float, int]] = list(zip(top.values.tolist(), top.indices.tolist(), strict=True))
        best_of(*best[0])
        going: list[tuple[int, _Beam]] = []
        length = len(self._lines[0].words) + 1
        penalty, stopping = self.settings.length_penalty, self.settings.early_stopping
        last = length >= self.most
        for rank, (total, place) in enumerate(best):
            parent, word = divmod(place, self._vocabulary)
            line = _Beam(total, [*self._lines[parent].words, word])
            if last or word in self._ends:
                if rank < self.width:
                    self._ended.append(_Beam(total / length**penalty, line.words))
            elif len(going) < self.width:
                going.append((parent, line))
        self._ended = sorted(self._ended, key=lambda line: -line.score)[: self.width]
        full = len(self._ended) == self.width
        reached = self.most if stopping == "never" and penalty > 0 else length
        if last or not going or (full and (stopping is True or going[0][1].score / reached**penalty <= self._ended[-1].score)):
            self._finish([line for _, line in going])
            return []
        self._lines = [line for _, line in going]
        self.words = self._lines[0].words
        return [(parent, line.words[-1]) for parent, line in going]

    def _finish(self, going: list[_Beam]) -> None:
        self.words = (self._ended or going)[0].words
        self.end("end" if self.words and self.words[-1] in self._ends else "most")
