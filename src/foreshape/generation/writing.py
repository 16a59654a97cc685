"""A text being written, and its place in the cache."""

from __future__ import annotations

import reprlib
from collections.abc import Callable, Collection, Sequence

import numpy

from foreshape.generation.choice import WordChoice
from foreshape.values.torch_proxy import Tensor


class CachePlace:
    """A place in the cache in use: ``waiting`` are the words to be computed, ``held`` the number of earlier ones."""

    __slots__ = ("held", "number", "of", "waiting")

    def __init__(self, of: Writing, number: int, waiting: list[int], held: int) -> None:
        self.of, self.number, self.waiting, self.held = of, number, waiting, held

    @property
    def beam(self) -> bool:
        return self.of.width > 1

    def took(self, count: int) -> None:
        """Note so many computed words."""
        self.held += count
        self.waiting = self.waiting[count:]


class Writing:
    """A text being written, made by `TextWriter.add`.

    Args:
        prompt: the numbers of its first words.
        most: the most words to be written.
        ends: words at the end of texts. As the first one of them is written, it ends this text, and stays in it.
        stops: sequences of words, none empty. As the first one is written, it ends the text, and is taken out of it.
        choice: the settings of the choice of each word from its scores.
        seed: of draws; with None they differ from run to run.
        on_word: is called with each word, as soon as it is sure to stay.

    Attributes:
        prompt: its first words.
        words: the words written so far.
        done: True at its end.
        reason: of the end: "end" for a word at the end of texts, "stop" for a sequence asked for, "most" for as many words as were asked
            for, "dropped". None before.
    """

    width = 1
    """The places in the cache for it."""

    def __init__(
        self,
        prompt: list[int],
        most: int,
        ends: Collection[int],
        stops: Sequence[list[int]],
        choice: WordChoice,
        seed: int | None,
        on_word: Callable[[int], None] | None,
    ) -> None:
        self.prompt, self.most, self.choice = prompt, most, choice
        self.words: list[int] = []
        self.reason: str | None = None
        self.places: list[CachePlace] = []
        self._ends, self._stops, self._on_word = ends, stops, on_word
        self._random = numpy.random.default_rng(seed)
        self._told = 0

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

    def go_on(self, scores: Tensor, best: int | None) -> None:
        """Write the next word.

        Args:
            scores: ``[vocabulary]``.
            best: the word of the best score, where it is known.
        """
        if self.choice.temperature:
            word = self.choice.draw(scores, self._random)
        else:
            word = int(scores.argmax()) if best is None else best
        self.words.append(word)
        stop = next((s for s in self._stops if self.words[-len(s) :] == s), None)
        if stop is not None:
            del self.words[-len(stop) :]
            self.end("stop")
        elif word in self._ends:
            self.end("end")
        elif len(self.words) >= self.most:
            self.end("most")
        else:
            self.places[0].waiting = [word]
            self._tell()

    def end(self, reason: str) -> None:
        """Let the text be at its end, with this ``reason``."""
        self.reason = reason
        self._tell()

    def __repr__(self) -> str:
        state = f"ended by {self.reason!r}" if self.done else "running" if self.places else "waiting"
        return f"{type(self).__name__}({state}, {len(self.words)} of at most {self.most} words: {reprlib.repr(self.words)})"

    def _tell(self) -> None:
        if self._on_word is not None:
            sure = self.sure
            while self._told < sure:
                self._on_word(self.words[self._told])
                self._told += 1
