"""The functions to write our operators with ONNX's, found by type.

They stand here and not beside the operators' classes: an operator knows nothing of the formats it is written to.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from foreshape.interop.onnx.write.written_op import WrittenOp

OpWriter = Callable[["WrittenOp"], Any]
"""A function of a `WrittenOp`: it returns the names of the values of the op's results, in the schema's order; None for an unread one."""
_WRITERS: dict[str, OpWriter] = {}


def writes(*types: str) -> Callable[[OpWriter], OpWriter]:
    """Return a decorator: the function writes the operators ``types``."""

    def register(function: OpWriter) -> OpWriter:
        _WRITERS.update(dict.fromkeys(types, function))
        return function

    return register


def writer_of(type: str) -> OpWriter | None:
    """Return the function for an operator."""
    return _WRITERS.get(type)


def written_operators() -> list[str]:
    """Return the types of all operators with a function."""
    return sorted(_WRITERS)
