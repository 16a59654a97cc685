"""Imports run one way also within a room: no file needs one that needs it, be it in a function only."""

from __future__ import annotations

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

from support.sources import tree_of

SOURCE = Path(__file__).parents[2] / "src"

ALLOWED = [
    # an op that runs a block is lowered by lowering its block, in which such ops may stand
    {"foreshape.compiler.lowering.lower", "foreshape.compiler.lowering.recurrent", "foreshape.compiler.lowering.regions"},
]


LARGEST = 8
"""So many files may need one another for types: a program, its blocks, ops and variables, and what knows them all."""


def modules(root: Path) -> dict[str, Path]:
    """The files below a folder by the names under which they are imported."""
    found: dict[str, Path] = {}
    for path in sorted(root.rglob("*.py")):
        parts = path.relative_to(root).with_suffix("").parts
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_for_types(node: ast.AST) -> bool:
    """Whether a statement is ``if TYPE_CHECKING``, whose body is never run."""
    return isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING")


def statements(node: ast.AST, types: bool = False) -> Iterator[ast.Import | ast.ImportFrom]:
    """Yield the import statements below a node that may be run, those in functions included; with ``types`` those for types too."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import | ast.ImportFrom):
            yield child
        elif isinstance(child, ast.expr):  # has no statements
            continue
        elif isinstance(child, ast.If) and is_for_types(child) and not types:
            for other in child.orelse:
                yield from statements(ast.Module([other], []))
        else:
            yield from statements(child, types)


def needs(name: str, path: Path, known: Mapping[str, Path], types: bool = False) -> set[str]:
    """The files that one imports."""
    out: set[str] = set()
    for statement in statements(tree_of(path), types):
        if isinstance(statement, ast.Import):
            out.update(alias.name for alias in statement.names)
            continue
        package = (name if path.name == "__init__.py" else name.rpartition(".")[0]).split(".")
        above = package[: len(package) - statement.level + 1] if statement.level else []
        base = ".".join([*above, *([statement.module] if statement.module else [])])
        for alias in statement.names:
            inner = f"{base}.{alias.name}"
            out.add(inner if inner in known else base)
    return (out & known.keys()) - {name}


def circles(root: Path, types: bool = False) -> list[set[str]]:
    """The largest sets of files below a folder in which each needs each, by way of others or not."""
    known = modules(root)
    edges = {name: needs(name, path, known, types) for name, path in known.items()}
    reached: dict[str, set[str]] = {}
    for name in edges:
        seen: set[str] = set()
        stack = [name]
        while stack:
            new = edges[stack.pop()] - seen
            seen |= new
            stack += new
        reached[name] = seen
    found: list[set[str]] = []
    for name in edges:
        if name in reached[name] and not any(name in circle for circle in found):
            found.append({other for other in reached[name] if name in reached[other]})
    return found


def test_no_file_needs_one_that_needs_it() -> None:
    assert circles(SOURCE) == ALLOWED


def test_circles_of_imports_for_types_are_small() -> None:
    assert [sorted(c) for c in circles(SOURCE, types=True) if len(c) > LARGEST] == []


def test_a_circle_is_found_in_functions_too_and_not_where_it_is_for_types_only(tmp_path: Path) -> None:
    house = tmp_path / "house"
    house.mkdir()
    for name, text in {
        "__init__": "from house.a import A",
        "a": "def f():\n    from house import b",
        "b": "if True:\n    from .c import C",
        "c": "import house.a",
        "d": "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from house.e import E\nelse:\n    import house.a",
        "e": "from house.d import D",
    }.items():
        (house / f"{name}.py").write_text(text)
    assert circles(tmp_path) == [{"house.a", "house.b", "house.c"}]
    assert {"house.d", "house.e"} in circles(tmp_path, types=True)
