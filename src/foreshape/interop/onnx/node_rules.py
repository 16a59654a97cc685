"""The functions to import ONNX's operators, found by domain, name and operator set."""

from __future__ import annotations

import bisect
from collections.abc import Callable
from typing import Any

Rule = Callable[..., Any]
"""A function of a `Call`: it returns the result, several of them as a tuple, with None for one left out."""
_RULES: dict[tuple[str, str], list[tuple[int, Rule]]] = {}


def onnx(*names: str, since: int = 1, domain: str = "") -> Callable[[Rule], Rule]:
    """Return a decorator: the function imports the operators ``names`` from the operator set ``since`` on, up to the next registered one."""

    def register(function: Rule) -> Rule:
        for name in names:
            bisect.insort(_RULES.setdefault((domain, name), []), (since, function), key=lambda one: one[0])
        return function

    return register


def rule_of(domain: str, name: str, opset: int) -> Rule | None:
    """Return the function for an operator in an operator set: the newest one up to the set."""
    found = None
    for since, function in _RULES.get((domain, name), ()):
        if since <= opset:
            found = function
    return found


def rules_of(domain: str, name: str) -> list[tuple[int, Rule]]:
    """Return the functions for an operator, each with its first operator set, in order."""
    return [*_RULES.get((domain, name), ())]


def known_operators() -> list[tuple[str, str]]:
    """Return domain and name of all operators with a function."""
    return sorted(_RULES)
