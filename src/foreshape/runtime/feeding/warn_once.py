"""Warnings given once in a run, however many steps it has."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from foreshape.language.program.call_site import warn_user


class Notes:
    """The warnings of an executor: each is given once in its life, and once in each training, prediction or evaluation."""

    __slots__ = ("_told",)

    def __init__(self) -> None:
        self._told: set[str] = set()

    def tell(self, topic: str, words: str) -> None:
        """Warn of ``words``, once in this run ``topic`` the same."""
        if topic not in self._told:
            self._told.add(topic)
            warn_user(words)

    @contextmanager
    def anew(self) -> Generator[None]:
        """Begin a run; the outer run of an evaluation between two epochs goes on after it."""
        previous, self._told = self._told, set()
        try:
            yield
        finally:
            self._told = previous
