"""A bound on work that is counted and not measured."""

from __future__ import annotations


class OutOfSteps(Exception):
    """More steps would be needed than are allowed. It never leaves this room: what was asked is then said not to be solved."""


class Steps:
    """So many steps that may be taken. A step is an atom of a size that is evaluated, or an element of a set that is looked at."""

    __slots__ = ("left", "most")

    def __init__(self, most: int) -> None:
        self.most = self.left = most

    def take(self, count: int = 1) -> None:
        """Raise `OutOfSteps` where ``count`` more would be too many."""
        if count > self.left:
            self.left = 0
            raise OutOfSteps
        self.left -= count

    def waste(self, count: int) -> None:
        """Count steps that have been taken for nothing."""
        self.left = max(self.left - count, 0)

    @property
    def taken(self) -> int:
        return self.most - self.left
