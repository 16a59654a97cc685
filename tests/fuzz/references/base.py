"""Where references are declared, and how they are given what an operator is given."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

Results = Mapping[str, Any]
Reference = Callable[[Any, Any], "Results | None"]

REFERENCES: dict[str, Reference] = {}


def reference(*types: str) -> Callable[[Reference], Reference]:
    """Declare the reference of some operators."""

    def note(function: Reference) -> Reference:
        REFERENCES.update(dict.fromkeys(types, function))
        return function

    return note


def given(cls: Any, arguments: Sequence[Any]) -> SimpleNamespace:
    """Operands by slot."""
    return SimpleNamespace(**{o.name: a for o, a in zip(cls.schema.operands, arguments, strict=True)})
