"""The texts of a page, kept once and named by their place in a list; and its sizes, as functions of the batch for a script."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foreshape.core.pictures.markup import cut, escape

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


BATCHES: Final = (1, 2, 4, 8, 16, 32, 64, 128, 256, 512, 1024, 2048, 4096)
"""The batches of the slider."""


def over_batches(size_at: Callable[[int], int | None]) -> Any:
    """Return a size for every batch: a number, ``[a, b]`` for ``a + b * batch``, or its values at all `BATCHES`, as of ceilings and of a largest sum."""
    values = [size_at(b) for b in BATCHES]
    if any(v is None for v in values):
        return None
    sizes = [v for v in values if v is not None]
    slope = sizes[1] - sizes[0]
    start = sizes[0] - slope
    if all(v == start + slope * b for v, b in zip(sizes, BATCHES, strict=True)):
        return [start, slope] if slope else start
    return {"at": sizes}
