"""A bound on work, counted and not measured."""

from __future__ import annotations


class OutOfSteps(Exception):
    """The error for more steps than allowed. It never leaves this room: the question is then said to be unsolved."""


class WorkBudget:
    """A budget of steps. A step is an atom of a size evaluated, or an element of a set looked at."""

    __slots__ = ("left", "most")

    def __init__(self, limit: int) -> None:
        self.most = self.left = limit

    def take(self, count: int = 1) -> None:
        """Raise `OutOfSteps` where ``count`` more would be too many."""
        if count > self.left:
            self.left = 0
            raise OutOfSteps
        self.left -= count

    def waste(self, count: int) -> None:
        """Count steps taken in vain."""
        self.left = max(self.left - count, 0)

    @property
    def taken(self) -> int:
        return self.most - self.left
