"""No code outside `foreshape.language.ops` knows operators by their types: it asks them (`foreshape.language.operator.traits`). What is fed and fetched stands
apart."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

import foreshape
from foreshape.language.operator.registry import all_operators

SOURCES = Path(foreshape.__file__).parent
APART = {"feed", "fetch"}
ROOMS = ("language/ops/", "interop/forms/", "interop/onnx/write/", "interop/torch/write/")
"""The operators themselves, and their forms in other formats: these functions are found by type."""
STAYS = {
    "language/program/no_value.py": "the words for a comparison that Python asks the truth of",
    "language/wire/versions.py": "what files of an older version mean by a type",
}


def known(node: ast.AST, types: set[str], tables: dict[str, set[str]]) -> set[str]:
    """The types that one side of a comparison names, itself or by the name of a table."""
    named = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    named |= {t for n in ast.walk(node) if isinstance(n, ast.Name) for t in tables.get(n.id, ())}
    return named & types


def comparisons(text: str, types: set[str]) -> Iterator[tuple[int, set[str]]]:
    """The lines in which the ``type`` of something is compared with types of operators, and these."""
    tree = ast.parse(text)
    tables: dict[str, set[str]] = {}
    for node in tree.body:
        targets = node.targets if isinstance(node, ast.Assign) else [node.target] if isinstance(node, ast.AnnAssign) and node.value else []
        for target in targets:
            if isinstance(target, ast.Name):
                tables[target.id] = {n.value for n in ast.walk(node) if isinstance(n, ast.Constant) and isinstance(n.value, str)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            asks = any(isinstance(n, ast.Attribute) and n.attr == "type" for side in sides for n in ast.walk(side))
            found = set[str]().union(*(known(side, types, tables) for side in sides))
            if asks and found:
                yield node.lineno, found


def test_no_code_compares_types() -> None:
    types = {t for t, cls in all_operators().items() if cls.__module__.startswith("foreshape.")} - APART
    seen: dict[str, list[int]] = {}
    for path in sorted(SOURCES.rglob("*.py")):
        name, text = path.relative_to(SOURCES).as_posix(), path.read_text(encoding="utf-8")
        if not name.startswith(ROOMS) and ".type" in text:
            for line, _ in comparisons(text, types):
                seen.setdefault(name, []).append(line)
    assert seen.keys() == STAYS.keys(), seen


def test_comparisons_are_found() -> None:
    text = 'TABLE = frozenset({"relu", "tanh"})\nif op.type == "mul": pass\nif made.type in TABLE: pass\nif op.type == "feed" or op.kind == "mul": pass'
    assert [line for line, _ in comparisons(text, {"relu", "mul"})] == [2, 3]
