"""Parts of `Operator.workspace` rules: the memory of kernels for copies of operands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from foreshape.dims import Size
from foreshape.spec import Spec

_TILE = 60 * 60
"""The elements of a tile in torch's transposition of a matrix."""


def turned(strided: Collection[str], **operands: Spec | None) -> Size:
    """Return the bytes besides the results to make some possibly strided operands contiguous."""
    return sum(_TILE * spec.known_dtype.itemsize for slot, spec in operands.items() if spec is not None and spec.rank == 2 and _slot(slot) in strided)


def _slot(keyword: str) -> str:
    return keyword.replace("_GRAD", "@GRAD")


def copies(strided: Collection[str], **operands: Spec | None) -> Size:
    """Return the bytes of the possibly strided ones among some operands, for copies. ``Out_GRAD`` stands for ``Out@GRAD``."""
    out: Size = 0
    for slot, spec in operands.items() if strided else ():
        if spec is not None and _slot(slot) in strided:
            out = out + spec.nbytes
    return out + turned(strided, **operands)


def one_like(slot: str, times: int = 1) -> Callable[..., Size]:
    """Return a rule for gradients: the bytes of the operand in a slot, or a multiple."""

    def rule(self: Any, *specs: Any) -> Size:
        spec: Spec = specs[[o.name for o in self.schema.operands].index(slot)]
        return times * spec.nbytes

    return rule
