"""Recomputation: results of a `recompute_scope` are not kept for the backward pass."""

from __future__ import annotations

import contextlib
from collections.abc import Generator, Iterable

from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.program import Block, Op
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.scopes import ATTRIBUTE, RECOMPUTE_MARK, RECOMPUTED


@tells_line
def recompute_scope() -> contextlib.AbstractContextManager[None]:
    """Let the backward pass compute the results of layers inside of the ``with`` again, except for those read outside.

    The inputs and outputs of each scope are kept. The gradients are the same;
    random numbers are drawn again identically. A scope within another one is part of it. The marks are kept in the program, so
    `foreshape.append_backward` and ``minimize`` heed them, also after the program was saved and loaded.

    Raises:
        SchemaError: within the block of a loop or a branch.
    """
    block = current_block()
    if block.idx:
        raise SchemaError("a recompute_scope stands in the global block: around a loop or a branch, not within it")
    return _marking(block)


@contextlib.contextmanager
def _marking(block: Block) -> Generator[None]:
    previous_ids = {id(op) for op in block.ops}
    yield
    _mark([op for op in block.ops if id(op) not in previous_ids], block.program.unique_name(RECOMPUTED))


def _mark(ops: Iterable[Op], scope: str) -> None:
    """Mark ops as parts of a recompute scope; the mark is kept in files."""
    for op in ops:
        previous = op.attributes.values.get(ATTRIBUTE)
        inner = RECOMPUTE_MARK.sub("/", previous) if isinstance(previous, str) and previous else "/"
        entries = [e for e in op.attributes.entries if e[0] != ATTRIBUTE]
        entries.append((ATTRIBUTE, AttrType.STRING, f"/{scope}{inner}"))
        op.attributes = Attributes.of(op.type, tuple(sorted(entries, key=lambda e: e[0])))
