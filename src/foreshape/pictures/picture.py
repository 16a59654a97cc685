"""`Picture`: an SVG drawing, to be shown in a notebook or written to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

from foreshape.errors import FormatError

_IMAGES: Final = (".png", ".svg", ".pdf")


def require_image(path: str | os.PathLike[str]) -> None:
    """Refuse a name without the ending of an image, before anything is drawn. Raise `FormatError`."""
    if Path(path).suffix.lower() not in _IMAGES:
        raise FormatError(f"a drawing is a file that ends in {', '.join(_IMAGES)}; seen {os.fspath(path)!r}")


class Picture:
    """A drawing. A notebook shows it; ``str`` of it is the SVG, and `save` writes this."""

    __slots__ = ("about", "svg")

    def __init__(self, svg: str, about: str) -> None:
        self.svg = svg
        self.about = about
        """Its subject, in a line."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file. Raise `FormatError` if the name does not end in ``.svg``."""
        if not os.fspath(path).lower().endswith(".svg"):
            raise FormatError(f"a drawing of a network is a file that ends in .svg; seen {os.fspath(path)!r}")
        with open(path, "w", encoding="utf-8", newline="\n") as file:
            file.write(self.svg + "\n")

    def __str__(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({self.about}; save(path) writes it, a notebook shows it)"

    def _repr_svg_(self) -> str:
        return self.svg
