"""Runs the code of the recipes' pages, made smaller where that is asked for."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[2] / "docs"
sys.path.insert(0, str(DOCS))

from count_recipe_lines import code_of, count, names, table  # noqa: E402

__all__ = ["DOCS", "code_of", "count", "names", "ran", "table"]


def ran(name: str, smaller: dict[str, str], twice: bool = False) -> dict[str, Any]:
    """The names that a page's code leaves, run in the folder that is the current one.

    Args:
        smaller: what is written in place of what stands in the page; each must stand there once.
    """
    code = code_of(name)
    for text, other in smaller.items():
        assert code.count(text) == 1, f"{name}.md has {text!r} {code.count(text)} times"
        code = code.replace(text, other)
    found: dict[str, Any] = {"__name__": "__page__"}
    for _ in range(1 + twice):
        for cell in code.split("# %%\n"):
            exec(compile(cell, f"{name}.md", "exec"), found)
    return found
