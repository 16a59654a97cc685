"""`Picture`: an SVG drawing, to be shown in a notebook or written to a file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, cast

from foreshape.core.folders import cannot_be_written, make_folder
from foreshape.core.pictures.page import write_page_file
from foreshape.errors import FormatError

_IMAGES: Final = (".png", ".svg", ".pdf")


def require_image(path: str | os.PathLike[str]) -> None:
    """Refuse a name without the ending of an image, before anything is drawn. Raise `FormatError`."""
    if Path(path).suffix.lower() not in _IMAGES:
        raise FormatError(f"a drawing is a file that ends in {', '.join(_IMAGES)}; seen {os.fspath(path)!r}")


def save_figure(figure: Any, path: Any, **options: Any) -> None:
    """Write a figure of matplotlib to a file, in a folder made if missing. Raise `FormatError` if it cannot be written.

    Args:
        path: the file, or an object to write to.
        options: as of matplotlib's ``savefig``.
    """
    if not isinstance(path, (str, os.PathLike)):
        figure.savefig(path, **options)
        return
    name = os.fspath(cast("str | os.PathLike[str]", path))
    try:
        make_folder(name)
        figure.savefig(name, **options)
    except OSError as error:
        raise cannot_be_written(name, error) from None


class Picture:
    """A drawing. A notebook shows it; ``str`` of it is the SVG, and `save` writes this."""

    __slots__ = ("about", "svg")

    def __init__(self, svg: str, about: str) -> None:
        self.svg = svg
        self.about = about
        """Its subject, in a line."""

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file. Raise `FormatError` if the name does not end in ``.svg``, or the file cannot be written."""
        if not os.fspath(path).lower().endswith(".svg"):
            raise FormatError(f"a drawing of a network is a file that ends in .svg; seen {os.fspath(path)!r}")
        write_page_file(path, self.svg + "\n")

    def __str__(self) -> str:
        return self.svg

    def __repr__(self) -> str:
        return f"Picture({self.about}; save(path) writes it, a notebook shows it)"

    def _repr_svg_(self) -> str:
        return self.svg
