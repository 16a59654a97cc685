"""The functions to import ATen's operators, found by name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

AtenRule = Callable[..., Any]
"""A function of a `TorchCall` and the operator's own arguments: it returns the result, several of them as a list or tuple."""
_RULES: dict[str, AtenRule] = {}


def aten(*names: str) -> Callable[[AtenRule], AtenRule]:
    """Return a decorator: the function imports the operators ``names``, as ``add``, in all their overloads; ``max.dim`` is one of these alone."""

    def register(function: AtenRule) -> AtenRule:
        _RULES.update(dict.fromkeys(names, function))
        return function

    return register


def aten_rule(name: str, overload: str) -> AtenRule | None:
    """Return the function for an operator: the overload's, else the name's, else the one of the name without the mark of a change in place."""
    return _RULES.get(f"{name}.{overload}") or _RULES.get(name) or _RULES.get(name.rstrip("_")) or None
