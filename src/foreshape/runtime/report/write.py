"""The page of a network, as a file."""

from __future__ import annotations

import os
from html import escape as html
from pathlib import Path
from typing import Final

from foreshape.core.pictures.page import assemble, write_page_file
from foreshape.core.pictures.scene import STYLE
from foreshape.language.program import Program
from foreshape.language.text.literal import escape
from foreshape.runtime.report.facts import facts

_FOLDER: Final = Path(__file__).parent
_SCRIPTS: Final = ("base.js", "drawing.js", "list.js", "detail.js", "memory.js", "start.js")


def report_page(program: Program, title: str = "a network") -> str:
    """Return the page as text: one file that fetches nothing, and runs no script but its own."""
    page = (_FOLDER / "page.html").read_text(encoding="utf-8")
    style = STYLE + (_FOLDER / "page.css").read_text(encoding="utf-8")
    script = "\n".join((_FOLDER / name).read_text(encoding="utf-8") for name in _SCRIPTS)
    page = page.replace("<title>A network</title>", f"<title>{html(escape(title))}</title>", 1)
    return assemble(page.replace("/* STYLE */", style, 1).replace("/* SCRIPT */", script, 1), facts(program, title))


def write_report(program: Program, path: str | os.PathLike[str], title: str = "a network") -> None:
    """Write the page of a network to a file. Raise `FormatError` if it cannot be written."""
    write_page_file(path, report_page(program, title))
