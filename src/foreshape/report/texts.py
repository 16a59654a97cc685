"""The texts of a page, kept once, in a list, and named by their place in it."""

from __future__ import annotations

from typing import Final

from foreshape.pictures.markup import cut, escape

_LONGEST: Final = 400


class Texts:
    """The list of texts."""

    def __init__(self) -> None:
        self._places: dict[str, int] = {}

    def put(self, text: str) -> int:
        """Return the place of a text, on one line, without unprintable characters; of a very long one its ends."""
        return self._places.setdefault(cut(escape(text).replace("\n", " "), _LONGEST), len(self._places))

    def all(self) -> list[str]:
        """Return every text, in the order of the places."""
        return list(self._places)
