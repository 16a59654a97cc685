"""Errors have in fields what their texts say, and no code of the package looks into a text for it."""

from __future__ import annotations

import ast
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.sources import tree_of

import foreshape as fs
from foreshape import layer
from foreshape.core.checked_json.readers import count, document
from foreshape.errors import FeedError, ForeshapeError, MemoryPlanError
from foreshape.language.program.messages import CallSite

HERE = Path(__file__).name


def concat() -> object:
    return layer.concat([layer.data("a", dims=[2, 3]), layer.data("b", dims=[2, 4])], axis=0)


def feed(**given: Any) -> Callable[[], object]:
    def run() -> object:
        x = layer.data("x", shape=["batch", 3])
        return fs.Executor().run(feed=given, fetch=[layer.square(x)])

    return run


def guard() -> object:
    x, y = layer.data("x", shape=["n", 3]), layer.data("y", shape=["m", 3])
    out = layer.square_error_cost(x, y)
    return fs.Executor().run(feed={"x": np.zeros((2, 3), "float32"), "y": np.zeros((4, 3), "float32")}, fetch=[out])


def field_of_a_file() -> object:
    return document(dict, ranks=count(1))("the file", {"ranks": 0})


CASES: dict[str, tuple[Callable[[], object], dict[str, Any]]] = {
    "rule": (concat, {"op": "concat", "slot": "X", "seen": "X f32[2, 3], X f32[2, 4]"}),
    "dims that are fed": (feed(x=np.zeros((2, 4), "float32")), {"slot": "x", "required": "f32[batch, 3]"}),
    "rank that is fed": (feed(x=np.zeros(3, "float32")), {"slot": "x", "required": "f32[batch, 3]", "seen": "[3]"}),
    "type that is fed": (feed(x=np.zeros((2, 3), "complex64")), {"slot": "x", "required": "fp32"}),
    "not fed": (feed(x=None), {"slot": "x", "required": "f32[batch, 3]", "seen": "None"}),
    "unknown": (feed(x=np.zeros((2, 3), "float32"), y=1), {"slot": "y"}),
    "guard": (guard, {"op": "square_error_cost", "required": "n == m", "seen": "2 and 4"}),
    "field of a file": (field_of_a_file, {"slot": "ranks", "required": "a whole number from 1 to 9007199254740992", "seen": "'0'"}),
}


@pytest.mark.parametrize("name", CASES)
def test_an_error_has_fields(name: str) -> None:
    act, fields = CASES[name]
    with fs.program_guard(fs.Program(), fs.Program()), pytest.raises(ForeshapeError) as raised:
        act()
    error = raised.value
    seen = {field: getattr(error, field) for field in fields}
    assert seen == fields
    again = pickle.loads(pickle.dumps(error))
    assert (str(again), {field: getattr(again, field) for field in fields}) == (str(error), fields)


def test_the_line_is_a_field() -> None:
    with fs.program_guard(fs.Program(), fs.Program()), pytest.raises(fs.ShapeError) as raised:
        concat()
    site = raised.value.site
    assert isinstance(site, CallSite) and Path(site.file).name == HERE and site.source_line() in str(raised.value)
    assert pickle.loads(pickle.dumps(raised.value)).site == raised.value.site


def test_words_are_added_without_losing_fields() -> None:
    error = MemoryPlanError("too large").told(op="mul", required="at most 3 bytes", seen="a\x00b")
    error.least = 5
    again = error.reworded("too large; take less")
    assert (type(again), str(again), again.op, again.least, again.seen) == (MemoryPlanError, "too large; take less", "mul", 5, "a\\x00b")
    assert str(FeedError.must("x", "fp32", 3, "fed is")) == "x must be fp32; fed is 3" and ForeshapeError("x").slot is None


LOOKS = ("startswith", "endswith", "find", "index", "search", "match", "fullmatch", "findall")
ALLOWED = {"core/hints.py"}
"""Python's TypeError has no field for the parameter that a function has not."""


def looks(tree: ast.Module) -> list[int]:
    """The lines in which code looks for something in the text of what was raised."""
    names = {"error"} | {node.name for node in ast.walk(tree) if isinstance(node, ast.ExceptHandler) and node.name}

    def is_text(node: ast.AST) -> bool:
        return isinstance(node, ast.Call) and ast.unparse(node.func) == "str" and len(node.args) == 1 and ast.unparse(node.args[0]) in names

    found: list[int] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare) and any(isinstance(op, (ast.In, ast.NotIn, ast.Eq)) for op in node.ops):
            found += [node.lineno] * any(map(is_text, (node.left, *node.comparators)))
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in LOOKS:
            found += [node.lineno] * any(map(is_text, (node.func.value, *node.args)))
    return found


def test_no_code_looks_into_the_text_of_an_error() -> None:
    assert looks(ast.parse("try:\n    f()\nexcept E as e:\n    g('x' in str(e), str(e).startswith('y'), re.search(p, str(e)))")) == [4, 4, 4]
    root = Path(fs.__file__).parent
    found = {f"{file.relative_to(root)}:{line}" for file in root.rglob("*.py") if "str(" in file.read_text(encoding="utf-8") for line in looks(tree_of(file))}
    assert {one for one in found if one.split(":")[0] not in ALLOWED} == set()
