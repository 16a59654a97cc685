"""The rules to write our operators as lines of torch code, found by type.

They stand here and not beside the operators' classes: an operator knows nothing of the forms it is written in.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Literal

if TYPE_CHECKING:
    from foreshape.interop.torch.write.plain_op import PlainOp

Flow = Literal["python", "folded", "functional", "selected"]
"""The form of loops and branches: Python's; Python's, with the numbers known before the run as constants, for a trace to follow them; torch's operators of
functions, ``while_loop`` and ``cond``; ``while_loop``, with both ways of a branch run, and their results chosen from."""
CodeRule = Callable[["PlainOp"], Any]
"""A function of a `PlainOp`. It returns an expression, or a tuple of them for the results in the schema's order (a list for a slot of several, None for an
unread one), or a `Several`; None if it has said the values of the variables itself.
"""
_RULES: dict[str, CodeRule] = {}
_BY_MODE: set[str] = set()


class Several(str):
    """An expression of a tuple: one value for each result of the schema, in its order."""


def writes(*types: str, by_mode: bool = False) -> Callable[[CodeRule], CodeRule]:
    """Return a decorator: the function writes the operators ``types``; ``by_mode``: with another form in a test, by the module's mode."""

    def register(function: CodeRule) -> CodeRule:
        _RULES.update(dict.fromkeys(types, function))
        _BY_MODE.update(types if by_mode else ())
        return function

    return register


def rule_of(type: str) -> CodeRule | None:
    """Return the rule for an operator."""
    return _RULES.get(type)


def follows_mode(type: str) -> bool:
    """Tell whether an operator's torch code has another form in a test."""
    return type in _BY_MODE


def ruled_operators() -> list[str]:
    """Return the types of all operators with a rule."""
    return sorted(_RULES)
