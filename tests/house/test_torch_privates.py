"""The private names of torch are named in one file of the package, and used where they are named for."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from support.sources import tree_of

import foreshape
from foreshape.core.values.torch_private import NAMES

SOURCES = Path(foreshape.__file__).parent
OF_TORCH = {"torch", "F", "aten", "aten_into"}


def trees() -> Iterator[tuple[Path, ast.Module]]:
    for file in SOURCES.rglob("*.py"):
        if file.name != "torch_private.py":
            yield file.relative_to(SOURCES), tree_of(file)


def test_no_other_file_names_a_private_of_torch() -> None:
    found: list[str] = []
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and re.match(r"_[A-Za-z]", node.attr):
                path = ast.unparse(node)
                if path.split(".")[0] in OF_TORCH:
                    found.append(f"{file}:{node.lineno}: {path}")
    assert not found


def test_what_is_named_is_used_and_what_is_used_is_named() -> None:
    used = {"schema"}
    for file, tree in trees():
        for node in ast.walk(tree):
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id in ("private", "private_into", "of"):
                used |= {node.attr} if node.value.id != "of" or node.attr.endswith("softmax_gradient") else set()
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "has":
                for argument in node.args:
                    assert not isinstance(argument, ast.Constant) or argument.value in NAMES, file
    assert used == set(NAMES)
