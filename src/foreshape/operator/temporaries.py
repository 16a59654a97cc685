"""Pieces of `Operator.workspace` rules: what kernels take for copies of operands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from foreshape.dims import Size
from foreshape.spec import Spec

_TILE = 60 * 60
"""Elements through which torch turns a matrix around."""


def turned(strided: Collection[str], **operands: Spec | None) -> Size:
    """The bytes that it takes besides the results to bring those of some operands in a row that need not lie so."""
    return sum(_TILE * spec.known_dtype.itemsize for slot, spec in operands.items() if spec is not None and spec.rank == 2 and _slot(slot) in strided)


def _slot(keyword: str) -> str:
    return keyword.replace("_GRAD", "@GRAD")


def copies(strided: Collection[str], **operands: Spec | None) -> Size:
    """The bytes of those of some operands that need not lie in a row, which are copied then. ``Out_GRAD`` stands for ``Out@GRAD``."""
    out: Size = 0
    for slot, spec in operands.items() if strided else ():
        if spec is not None and _slot(slot) in strided:
            out = out + spec.nbytes
    return out + turned(strided, **operands)


def one_like(slot: str, times: int = 1) -> Callable[..., Size]:
    """A rule for gradients: as much as the operand in a slot takes, or a multiple of that."""

    def rule(self: Any, *specs: Any) -> Size:
        spec: Spec = specs[[o.name for o in self.schema.operands].index(slot)]
        return times * spec.nbytes

    return rule
