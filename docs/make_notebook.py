"""Makes docs/tutorial.ipynb from docs/tutorial.md: its text and its code as cells, without what the code prints.

python docs/make_notebook.py            # writes it
python docs/make_notebook.py --check    # says whether it is up to date
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

PAGE = Path(__file__).with_name("tutorial.md")
NOTEBOOK = PAGE.with_suffix(".ipynb")
FENCE = re.compile(r"^```(\w+)[^\n]*\n(.*?)^```\n?", re.M | re.S)
BEGIN = "import foreshape as fs\n\nfs.reset()  # so that all cells can be run again\n"


def cells(page: str) -> list[tuple[str, str]]:
    """Kind and text of each cell; the outputs that the page shows are left out."""
    out: list[tuple[str, str]] = []
    at = 0
    for fence in FENCE.finditer(page):
        out.append(("markdown", page[at : fence.start()]))
        if fence[1] == "python":
            out.append(("code", fence[2]))
        elif fence[1] != "text":
            out.append(("markdown", fence[0]))
        at = fence.end()
    out.append(("markdown", page[at:]))
    out = [(kind, text.strip("\n")) for kind, text in out if text.strip()]
    return [*out[:1], ("code", BEGIN.rstrip()), *out[1:]]


def notebook(page: str) -> dict[str, Any]:
    """The notebook in the format 4.5 of Jupyter."""
    made: list[dict[str, Any]] = []
    for number, (kind, text) in enumerate(cells(page)):
        cell = {"cell_type": kind, "id": f"cell-{number}", "metadata": {}, "source": text.splitlines(keepends=True)}
        made.append({**cell, "execution_count": None, "outputs": []} if kind == "code" else cell)
    return {
        "cells": made,
        "metadata": {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"}, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }


def main(check: bool) -> None:
    text = json.dumps(notebook(PAGE.read_text(encoding="utf-8")), indent=1, ensure_ascii=False) + "\n"
    if not check:
        NOTEBOOK.write_text(text, encoding="utf-8")
    elif NOTEBOOK.read_text(encoding="utf-8") != text:
        raise SystemExit("docs/tutorial.ipynb is not what docs/tutorial.md says: python docs/make_notebook.py writes it")


if __name__ == "__main__":
    main("--check" in sys.argv[1:])
