"""`MemoryBound`: the most bytes of a process embedding texts. Idle memory goes back to the system before a batch would pass it."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from typing import Final

from foreshape.compiler.memory.byte_counts import byte_text
from foreshape.errors import MemoryPlanError
from foreshape.machine.process.pages import give_back, resident

MODULES: Final = 28 << 20
"""Bytes of this package's modules, imported before an embedder is opened, as measured."""
BARE: Final = 24 << 20
"""Bytes of a process with Python and numpy alone, as measured."""
RESERVE: Final = 8 << 20
"""Bytes beside those of a batch's formula: gaps in the heap, scratch memory of kernels, Python's own values."""


class TextMemoryError(MemoryPlanError):
    """A text without room alone.

    Attributes:
        number: the number of the text, from 1.
        reason: the words behind it.
    """

    def __init__(self, number: int, reason: str) -> None:
        super().__init__(f"text {number:,} {reason}")
        self.number, self.reason = number, reason


class MemoryBound:
    """The bound of a process: at most ``size`` bytes beyond those at the opening, without this package's modules.

    The values of the caller may grow: after all idle memory went back to the system, bytes neither of the beginning nor held by the embedder are the
    caller's, and do not count. `take_process` ends that.
    """

    def __init__(self, size: int) -> None:
        self.size, self._is_alone = size, False
        self.embedder_bytes = MODULES
        """The bytes of the embedder between batches."""
        self.idle: list[Callable[[], object]] = []
        """Functions dropping kernels, plans and buffers; they are made again."""
        self.pages: list[Callable[[], object]] = []
        """Functions giving pages of files back; they are read again where they are needed."""
        give_back()  # else what the caller has freed already would be room
        self._start, self._others = max(resident() - MODULES, 0), 0

    def take_process(self) -> None:
        """Let all count from now on, but for Python and numpy.

        Raises:
            MemoryPlanError: there is more already.
        """
        self._is_alone, self._start, self._others = True, min(self._start, BARE), 0
        self.require(0, "the tokenizer and the libraries")

    @contextmanager
    def opening(self) -> Generator[None]:
        """Enclose the opening of a part of the embedder; its bytes are held from then on."""
        before = resident()
        yield
        self._release()
        self.embedder_bytes += max(resident() - before, 0)

    def has_room(self, nbytes: int) -> bool:
        """Return True if there is room for so many bytes, possibly after idle memory went back to the system."""
        for release in (None, self._give_back, self._release):
            if release is not None:
                release()
            elif self._others:  # the caller may have freed some
                self._others = min(self._others, self._callers())
            if resident() + nbytes + RESERVE <= self._start + self.size + self._others:
                return True
        if self._is_alone:
            return False
        self._others = self._callers()
        return self.embedder_bytes + nbytes + RESERVE <= self.size

    def refusal(self, nbytes: int) -> str:
        """Return the words for so many bytes of a text without room."""
        return f"take about {byte_text(nbytes)}, and {self._words} leaves {byte_text(max(self.size - self._taken - RESERVE, 0))} beside the model"

    def require(self, nbytes: int, subject: str) -> None:
        """Make room for so many bytes.

        Raises:
            MemoryPlanError: there is none.
        """
        if not self.has_room(nbytes):
            needs = f"{byte_text(self._taken)} are taken, and {byte_text(nbytes + RESERVE)} are needed besides"
            raise MemoryPlanError(f"{self._words} has no room for {subject}: {needs}")

    @property
    def _words(self) -> str:
        return f'memory="{byte_text(self.size)}"'

    @property
    def _taken(self) -> int:
        """Return the bytes of the embedder after idle memory went back."""
        return resident() - self._start if self._is_alone else self.embedder_bytes

    def _callers(self) -> int:
        return max(resident() - self._start - self.embedder_bytes, 0)

    def _give_back(self) -> None:
        for forget in self.pages:
            forget()
        give_back()

    def _release(self) -> None:
        for forget in self.idle:
            forget()
        self._give_back()
