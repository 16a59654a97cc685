"""Layers that are one operator: a function each, with the operator's own attributes as keyword arguments."""

from __future__ import annotations

from typing import Any

from foreshape.program.program import current_block
from foreshape.program.variable import Variable


def _unary(x: Variable, type: str, **attrs: Any) -> Variable:
    return current_block().apply(type, {"X": x}, attrs)


def relu(x: Variable) -> Variable:
    """max(x, 0), elementwise."""
    return _unary(x, "relu")


def softmax(x: Variable, axis: int = -1) -> Variable:
    """exp(x) / sum(exp(x)) along ``axis``."""
    return _unary(x, "softmax", axis=axis)
