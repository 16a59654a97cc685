"""The places of a cache: of running texts, and of former ones whose rows are kept for texts that begin with the same words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from foreshape.apps.generation.cached_model import LanguageModel

if TYPE_CHECKING:
    from foreshape.apps.generation.writing import Writing

LEAST: Final = 16
"""The fewest words worth a copy of their rows, or to be waited for."""


class CachePlace:
    """A place in the cache in use: ``waiting`` are the words to be computed, ``length`` the number of earlier ones.

    Attributes:
        order: the number of its text among all: a text waits for earlier ones alone.
        fresh: nothing of its prompt has been computed for it, and other places may have the rows.
    """

    __slots__ = ("fresh", "length", "number", "of", "order", "waiting")

    def __init__(self, writing: Writing, number: int, waiting: list[int], length: int, order: int = 0, fresh: bool = False) -> None:
        self.of, self.number, self.waiting, self.length = writing, number, waiting, length
        self.order, self.fresh = order, fresh

    @property
    def beam(self) -> bool:
        return self.of.width > 1

    @property
    def words(self) -> list[int]:
        """Return the words of its text whose rows it has or will have; of beams the prompt, which all of them share."""
        return self.of.prompt if self.beam else self.of.prompt + self.of.words

    def took(self, count: int) -> None:
        """Note so many computed words."""
        self.length += count
        self.waiting = self.waiting[count:]
        self.fresh = False


class _FormerText:
    """The words of an ended text, whose rows are still at a place."""

    __slots__ = ("number", "words")

    def __init__(self, number: int, words: list[int]) -> None:
        self.number, self.words = number, words


class CachePlaces:
    """The places of a model's cache. First come running texts, side by side; former texts stand anywhere behind them.

    A former text takes no memory of its own: its rows stay until the place is needed. The least recently used one goes first.

    Args:
        model: the network. Former texts are forgotten where somebody else has run it.
        shares: rows are kept and copied, as proven by `LanguageModel.prefix_obstacle`.
    """

    def __init__(self, model: LanguageModel, shares: bool) -> None:
        self.running: list[CachePlace] = []
        self._model, self._shares = model, shares
        self._former: list[_FormerText] = []
        """The least recently used one first."""
        self._order, self._runs = 0, model.runs

    def __len__(self) -> int:
        return len(self.running)

    def take(self, writing: Writing, waiting: Sequence[int], length: int = 0) -> CachePlace:
        """Return the next place, for a text with ``waiting`` words to compute behind ``length`` others; it may hold the first of them already."""
        self._require_own_rows()
        self._order += 1
        fresh = self._shares and not length and len(waiting) > LEAST and writing.noted is None  # copied rows have no scores
        place = CachePlace(writing, len(self.running), list(waiting), length, self._order, fresh)
        source, count = self._most_shared(place) if fresh else (None, 0)
        if source is not None:
            self._use(source)
        self._vacate(place.number, source)
        self.running.append(place)
        writing.places.append(place)
        if source is not None and source.number == place.number:  # the last place: the new text takes it over
            self._former.remove(source)
            self._model.clear_rows(place.number, len(source.words), count)
            self._hold(place, count)
        elif source is not None:
            self._model.copy_rows(source.number, place.number, count)
            self._hold(place, count)
        return place

    def leave(self, place: CachePlace) -> None:
        """Free a place; the last running one moves there, so they stay side by side. The rows of its text are kept where they can be of use."""
        self._require_own_rows()
        place.of.places.remove(place)
        last = self.running.pop()
        words = self._kept_words(place)
        if words is None:
            self._model.clear_rows(place.number, place.length)
            if last is not place:
                self._model.copy_rows(last.number, place.number, last.length)
                self._model.clear_rows(last.number, last.length)
        else:
            self._model.clear_rows(place.number, place.length, len(words))
            if last is not place:
                self._model.swap_rows(last.number, place.number, max(last.length, place.length))
            self._former.append(_FormerText(last.number, words))
        if last is not place:
            self.running[place.number] = last
            last.number = place.number

    def begin(self, place: CachePlace) -> bool:
        """Let a fresh place take rows of its prompt from running texts. Return False while an earlier text still computes more of them."""
        if not place.fresh:
            return True
        source, count, promised = None, place.length, 0
        for neighbour in self.running:
            if neighbour is place:
                continue
            common = common_count(neighbour.words, place.of.prompt)
            if (rows := min(common, neighbour.length)) > count:
                source, count = neighbour, rows
            if neighbour.order < place.order and len(neighbour.waiting) > 1:
                promised = max(promised, common)
        if promised >= count + LEAST:
            return False
        if source is not None and count >= place.length + LEAST:
            self._model.copy_rows(source.number, place.number, count, place.length)
            self._hold(place, count)
        place.fresh = False
        return True

    def forget(self) -> None:
        """Clear the rows of all former texts."""
        self._require_own_rows()
        while self._former:
            self._drop(self._former[0])

    @property
    def disturbed(self) -> bool:
        """Tell whether the network was run for somebody else while texts were running here: their rows may be others' now."""
        return bool(self.running) and self._runs != self._model.runs

    def ran(self) -> None:
        """Note a run for the running texts."""
        self._runs = self._model.runs

    # --- former texts

    def _require_own_rows(self) -> None:
        """Forget former texts if the network was run for somebody else: their rows may be others' now."""
        if self._runs != self._model.runs:
            self._former.clear()
            self._runs = self._model.runs

    def _most_shared(self, place: CachePlace) -> tuple[_FormerText | None, int]:
        """Return the former text with the most words of a prompt at its beginning, and their number."""
        best: tuple[_FormerText | None, int] = None, LEAST - 1
        for former in self._former:
            count = common_count(former.words, place.of.prompt)
            if count > best[1]:
                best = former, count
        return best

    def _use(self, former: _FormerText) -> None:
        self._former.remove(former)
        self._former.append(former)

    def _drop(self, former: _FormerText) -> None:
        self._former.remove(former)
        self._model.clear_rows(former.number, len(former.words))

    def _vacate(self, number: int, source: _FormerText | None) -> None:
        """Move the former text at a place to an empty one, or into the place of the least recently used one.

        The ``source`` of the next text there stays if it is the last one.
        """
        former = next((f for f in self._former if f.number == number), None)
        if former is None:
            return
        occupied = {f.number for f in self._former}
        empty = next((n for n in range(number + 1, self._model.users) if n not in occupied), None)
        if empty is None:
            oldest = self._former[0]
            if oldest is source:
                return
            self._drop(oldest)
            if oldest is former:
                return
            empty = oldest.number
        count = len(former.words)
        self._model.copy_rows(number, empty, count)
        self._model.clear_rows(number, count)
        former.number = empty

    def _kept_words(self, place: CachePlace) -> list[int] | None:
        """Return the words of a text whose rows are to be kept; None for none."""
        writing = place.of
        if not self._shares or writing.error is not None or place.beam or writing.settings.remove_invalid_values:
            return None  # rows of NaN must not stay
        words = place.words[: place.length]
        if len(words) < LEAST:
            return None
        for former in self._former:
            if former.words[: len(words)] == words:
                self._use(former)
                return None
        for former in [f for f in self._former if words[: len(f.words)] == f.words]:
            self._drop(former)
        return words

    def _hold(self, place: CachePlace, count: int) -> None:
        """Note that a place has the rows of the first words of its prompt."""
        place.of.shared = count
        place.waiting = place.of.prompt[count:]
        place.length = count


def common_count(words: Sequence[int], prompt: Sequence[int]) -> int:
    """Return the number of words at the beginning of both; the last one of the prompt is always computed, for its scores."""
    most = min(len(words), len(prompt) - 1)
    if words[:LEAST] != prompt[:LEAST]:
        return 0
    return next((index for index in range(most) if words[index] != prompt[index]), max(most, 0))
