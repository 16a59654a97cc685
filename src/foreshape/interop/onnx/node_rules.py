"""The functions to import ONNX's operators, found by domain, name and operator set.

They stand in the files ``*_nodes``. A file is imported when a model has one of its operators, so that a small one does not wait for all.
"""

from __future__ import annotations

import bisect
import importlib
from collections.abc import Callable
from functools import cache
from typing import Any, Final

from foreshape.interop.families import families_by_name, import_families

Rule = Callable[..., Any]
"""A function of a `Call`: it returns the result, several of them as a tuple, with None for one left out."""
_RULES: dict[tuple[str, str], list[tuple[int, Rule]]] = {}
_PACKAGE: Final = __name__.rpartition(".")[0]
_MARK: Final = "nodes"
_asked: set[str] = set()
"""The operators whose files are imported."""


def onnx(*names: str, since: int = 1, domain: str = "") -> Callable[[Rule], Rule]:
    """Return a decorator: the function imports the operators ``names`` from the operator set ``since`` on, up to the next registered one.

    The names are written out in the decorator: its text tells which file to import.
    """

    def register(function: Rule) -> Rule:
        for name in names:
            bisect.insort(_RULES.setdefault((domain, name), []), (since, function), key=lambda one: one[0])
        return function

    return register


def rule_of(domain: str, name: str, opset: int) -> Rule | None:
    """Return the function for an operator in an operator set: the newest one up to the set."""
    if name not in _asked:
        for module in modules_with(name):
            importlib.import_module(module)
        _asked.add(name)
    found = None
    for since, function in _RULES.get((domain, name), ()):
        if since <= opset:
            found = function
    return found


def modules_with(name: str) -> list[str]:
    """Return the modules with functions for operators of this name, in all domains."""
    return _modules().get(name, [])


@cache
def _modules() -> dict[str, list[str]]:
    return families_by_name(_PACKAGE, importlib.import_module(_PACKAGE).__path__, _MARK, "onnx")


def _import_all() -> None:
    import_families(_PACKAGE, importlib.import_module(_PACKAGE).__path__, _MARK)


def rules_of(domain: str, name: str) -> list[tuple[int, Rule]]:
    """Return the functions for an operator, each with its first operator set, in order."""
    _import_all()
    return [*_RULES.get((domain, name), ())]


def known_operators() -> list[tuple[str, str]]:
    """Return domain and name of all operators with a function."""
    _import_all()
    return sorted(_RULES)
