"""Choices out of a source of whole numbers."""

from __future__ import annotations

import random
from collections.abc import Sequence
from typing import Protocol, TypeVar

T = TypeVar("T")


class Source(Protocol):
    """Draws whole numbers."""

    def below(self, n: int) -> int:
        """A number from 0 to ``n - 1``; the smaller, the simpler what it chooses."""
        ...


class Chance:
    """Choices out of a source."""

    def __init__(self, source: Source) -> None:
        self.source = source

    def below(self, n: int) -> int:
        return self.source.below(n) if n > 1 else 0

    def between(self, low: int, high: int) -> int:
        """Both included."""
        return low + self.below(high - low + 1)

    def pick(self, among: Sequence[T]) -> T:
        return among[self.below(len(among))]

    def recent(self, among: Sequence[T]) -> T:
        """One of a list; the last ones more often."""
        last = among[::-1]
        return last[min(self.below(len(last)), self.below(len(last)))]

    def one_in(self, n: int) -> bool:
        return self.below(n) == n - 1


class Seeded:
    """A source from a seed."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)

    def below(self, n: int) -> int:
        return self.random.randrange(n)
