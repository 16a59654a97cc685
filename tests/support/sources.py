"""The package's own files, parsed once in a process for all tests that read them."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path


@cache
def tree_of(path: Path) -> ast.Module:
    """The tree of a file; not to be changed."""
    return ast.parse(path.read_text(encoding="utf-8"))
