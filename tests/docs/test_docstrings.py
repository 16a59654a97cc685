"""A public function, class or method whose docstring leaves out one of its arguments is found.

An argument is told of where its name is a word of the docstring; a field of a dataclass also where a text follows it, or the fields that it is
the last of. A method without a docstring has that of what it overrides.
"""

from __future__ import annotations

import ast
import inspect
import re
import textwrap
from collections.abc import Callable, Iterator
from dataclasses import dataclass, is_dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from support.sources import tree_of

import foreshape as fs
import foreshape.apps.training
from foreshape.layer import detection

ROOMS = [fs, fs.layer, detection, fs.optimizer, fs.callbacks, foreshape.apps.training]


def arguments(function: Callable[..., Any]) -> list[str]:
    return [n for n in inspect.signature(function).parameters if n not in ("self", "cls") and not n.startswith("_")]


def explained_fields(made: type) -> set[str]:
    """The fields of a dataclass that a text follows, alone or after others."""
    (tree,) = ast.parse(textwrap.dedent(inspect.getsource(made))).body
    assert isinstance(tree, ast.ClassDef)
    out: set[str] = set()
    waiting: list[str] = []
    for node in tree.body:
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name):
            waiting.append(node.target.id)
        else:
            if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
                out.update(waiting)
            waiting = []
    return out


def unnamed(value: Any) -> list[str]:
    """The arguments that are nowhere told of."""
    words = inspect.getdoc(value) or ""
    told: set[str] = set()
    if isinstance(value, type):
        if issubclass(value, BaseException) or getattr(value, "_is_protocol", False):
            return []
        if is_dataclass(value):
            wanted, told = arguments(value), explained_fields(value)
        elif "__init__" in vars(value):
            wanted = arguments(value.__init__)
        else:
            return []  # made as its base is
    else:
        wanted = arguments(value)
    return [n for n in wanted if n not in told and not re.search(rf"(?<!\w){re.escape(n)}(?!\w)", words)]


def public(room: ModuleType) -> Iterator[tuple[str, Any]]:
    """What is in ``__all__`` and can be called, and the methods of the classes among it."""
    for name in room.__all__:
        value = getattr(room, name)
        if isinstance(value, ModuleType) or not callable(value):
            continue
        yield name, value
        for inner, found in vars(value).items() if isinstance(value, type) else ():
            method = found.__func__ if isinstance(found, (classmethod, staticmethod)) else found
            if inspect.isfunction(method) and not inner.startswith("_"):
                yield f"{name}.{inner}", method


@pytest.mark.parametrize("room", ROOMS, ids=lambda r: r.__name__)
def test_the_docstring_of_what_is_public_names_every_argument(room: ModuleType) -> None:
    left_out = {name: missing for name, value in public(room) if (missing := unnamed(value))}
    assert left_out == {}


def test_what_is_left_out_is_found() -> None:
    def scaled(x: float, by: float, bias: float = 0.0) -> float:
        """``x`` times ``by``. A biased view."""
        return x * by + bias

    @dataclass
    class Sizes:
        """Of a table."""

        rows: int
        columns: int
        """How many."""
        depth: int = 1

    class Ruler:
        """Measures."""

        def __init__(self, length: float) -> None:
            self.length = length

    assert (unnamed(scaled), unnamed(Sizes), unnamed(Ruler)) == (["bias"], ["depth"], ["length"])


def example_lines(text: str) -> list[str]:
    """The lines of a docstring that begin as a prompt does and stand in no section of examples, where a page would show them as quotes."""
    out: list[str] = []
    inside = False
    for line in text.splitlines():
        if line and not line.startswith(" "):
            inside = line.rstrip() in ("Example:", "Examples:")
        if line.lstrip().startswith(">>>") and not inside:
            out.append(line)
    return out


def test_examples_stand_in_a_section_of_examples() -> None:
    assert example_lines("A word.\n\n>>> 1\n\nExamples:\n    >>> 2") == [">>> 1"]
    found: list[str] = []
    for path in sorted(Path(fs.__file__).parent.rglob("*.py")):
        if ">>>" not in path.read_text(encoding="utf-8"):
            continue
        for node in ast.walk(tree_of(path)):
            if isinstance(node, ast.ClassDef | ast.FunctionDef):
                found += [f"{path.name}: {line}" for line in example_lines(ast.get_docstring(node) or "")]
    assert not found
