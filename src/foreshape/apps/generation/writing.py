"""A text being written, and its place in the cache."""

from __future__ import annotations

import math
import reprlib
from collections.abc import Callable, Sequence

import numpy

from foreshape.apps.generation.cache_places import CachePlace
from foreshape.apps.generation.choice import WordChoice, best_of, draw, word_choices
from foreshape.apps.generation.score_changes import changed_scores, sampling_of, score_changes
from foreshape.apps.generation.text_settings import TextSettings
from foreshape.core.values.torch_proxy import Tensor
from foreshape.machine.kernels.word_sampling import Sampling


class Writing:
    """A text being written, made by `TextWriter.add`.

    Args:
        prompt: the numbers of its first words.
        most: the most words to be written.
        settings: of the choice of each word from its scores. As the first word of ``ends`` is written, it ends this text, and stays in it.
        stops: sequences of words, none empty. As the first one is written, it ends the text, and is taken out of it.
        on_word: is called with each word, as soon as it is sure to stay.
        logprobs: the number of best words noted beside each written one; None notes nothing.
        echo: words of the prompt are noted, too.

    Attributes:
        prompt: its first words.
        words: the words written so far.
        choices: of each word its logarithmic probability, with the best words beside it, if ``logprobs`` asks for them.
        prompt_choices: of the words of the prompt, if ``echo`` asks for them.
        shared: the first words of the prompt whose rows came from another text's, and were not computed again.
        done: True at its end.
        reason: of the end: "end" for a word at the end of texts, "stop" for a sequence asked for, "most" for as many words as were asked
            for, "dropped", "error". None before.
        error: the reason of an end by "error"; other texts go on.
    """

    width = 1
    """The places in the cache for it."""

    def __init__(
        self,
        prompt: list[int],
        most: int,
        settings: TextSettings,
        stops: Sequence[list[int]],
        on_word: Callable[[int], None] | None,
        logprobs: int | None = None,
        echo: bool = False,
    ) -> None:
        self.prompt, self.most, self.settings = prompt, most, settings
        self.words: list[int] = []
        self.choices: list[WordChoice] = []
        self.shared = 0
        self.reason: str | None = None
        self.error: Exception | None = None
        self.places: list[CachePlace] = []
        self._ends, self._stops, self._on_word, self._logprobs = frozenset(settings.ends), stops, on_word, logprobs
        self._random = numpy.random.default_rng(settings.seed)
        self._number, self._sampling, self._changes_scores = 0.0, sampling_of(settings), settings.changes_scores
        self._told = 0
        self.prompt_choices = [WordChoice(prompt[0], math.nan, ())] if echo and logprobs is not None else []

    @property
    def done(self) -> bool:
        return self.reason is not None

    @property
    def sure(self) -> int:
        """Return the number of words sure to stay: the others may be the beginning of a sequence to stop at."""
        if self.done:
            return len(self.words)
        longest = 0
        for stop in self._stops:
            for count in range(min(len(stop) - 1, len(self.words)), longest, -1):
                if self.words[-count:] == stop[:count]:
                    longest = count
                    break
        return len(self.words) - longest

    @property
    def noted(self) -> int | None:
        """Return the number of best words noted beside each word of its prompt; None to note nothing."""
        return self._logprobs if self.prompt_choices else None

    def sampling(self, vocabulary: int) -> Sampling | None:
        """Draw the random number of the next word, and return its sampling in machine code; None where torch chooses it. To be called once for a word.

        Args:
            vocabulary: the number of scores.
        """
        if self.settings.temperature:
            self._number = self._random.random()
        if self._sampling is None or not (self.settings.temperature or self._changes_scores):
            return self._sampling
        changes = [*score_changes(self.settings, self.prompt, self.words, self.most, vocabulary)] if self._changes_scores else ()
        return None if any(change.kind < 0 for change in changes) else self._sampling._replace(number=self._number, changes=changes)

    def go_on(self, scores: Tensor, word: int | None, best: tuple[float, int] | None) -> None:
        """Write the next word.

        Args:
            scores: ``[vocabulary]``.
            word: the word, where it is chosen by its `sampling`.
            best: the best score and its word, where they are known.

        Raises:
            ExecutionError: the scores tell no word, such as NaN.
        """
        word = self._chosen(scores, best) if word is None else word
        self.words.append(word)
        if self._logprobs is not None:
            self.choices += word_choices(scores.unsqueeze(0), [word], self._logprobs)
        stop = next((s for s in self._stops if self.words[-len(s) :] == s), None)
        if stop is not None:
            del self.words[-len(stop) :], self.choices[len(self.words) :]
            self.end("stop")
        elif word in self._ends:
            self.end("end")
        elif len(self.words) >= self.most:
            self.end("most")
        else:
            self.places[0].waiting = [word]
            self._tell()

    def _chosen(self, scores: Tensor, best: tuple[float, int] | None) -> int:
        settings = self.settings
        if self._changes_scores:
            scores, best = changed_scores(scores, settings, self.prompt, self.words, self.most), None
        return draw(scores, settings, self._number) if settings.temperature else best_of(*(best or top(scores)))

    def end(self, reason: str) -> None:
        """Let the text be at its end, with this ``reason``."""
        self.reason = reason
        self._tell()

    def fail(self, error: Exception) -> None:
        """Let the text be at its end by an error, with the words so far."""
        self.reason, self.error = "error", error

    def __repr__(self) -> str:
        state = f"ended by {self.reason!r}" if self.done else "running" if self.places else "waiting"
        return f"{type(self).__name__}({state}, {len(self.words)} of at most {self.most} words: {reprlib.repr(self.words)})"

    def _tell(self) -> None:
        if self._on_word is not None:
            sure = self.sure
            while self._told < sure:
                self._on_word(self.words[self._told])
                self._told += 1


def top(scores: Tensor) -> tuple[float, int]:
    """Return the best score of ``[vocabulary]``, and its word."""
    best = scores.max(-1)
    return float(best.values), int(best.indices)
