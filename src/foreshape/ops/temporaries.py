"""Pieces of `Operator.workspace` rules: what kernels take for copies of operands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from foreshape.dims import Size
from foreshape.spec import Spec

_TILE = 60 * 60
"""Elements through which torch turns a matrix around."""


def copy_of(spec: Spec | None) -> Size:
    """The bytes of an operand that is brought in a row."""
    return 0 if spec is None else (spec.elements + (_TILE if spec.rank == 2 else 0)) * spec.known_dtype.itemsize


def copies(strided: Collection[str], **operands: Spec | None) -> Size:
    """The bytes of those of some operands that need not lie in a row, which are copied then. ``Out_GRAD`` stands for ``Out@GRAD``."""
    out: Size = 0
    for slot, spec in operands.items() if strided else ():
        if slot.replace("_GRAD", "@GRAD") in strided:
            out = out + copy_of(spec)
    return out


def one_like(slot: str, times: int = 1) -> Callable[..., Size]:
    """A rule for gradients: as much as the operand in a slot takes, or a multiple of that."""

    def rule(self: Any, *specs: Any) -> Size:
        spec: Spec = specs[[o.name for o in self.schema.operands].index(slot)]
        return times * spec.nbytes

    return rule
