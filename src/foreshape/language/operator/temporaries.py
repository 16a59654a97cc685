"""Parts of `Operator.workspace` rules: the memory of kernels for copies of operands."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

from foreshape.core.dims import Size, reaches
from foreshape.core.spec import INT64, Spec

_TILE = 60 * 60
"""The elements of a tile in torch's transposition of a matrix, and the least elements of a matrix transposed by tiles."""


def turned(strided: Collection[str], **operands: Spec | None) -> Size:
    """Return the bytes besides the results to make some possibly strided operands contiguous."""
    size: Size = 0
    for slot, spec in operands.items() if strided else ():
        if spec is not None and spec.rank == 2 and _slot(slot) in strided:
            size = size + _TILE * spec.known_dtype.itemsize * reaches(spec.elements, _TILE)  # of fewer elements torch copies them one by one
    return size


def _slot(keyword: str) -> str:
    return keyword.replace("_GRAD", "@GRAD")


def copies(strided: Collection[str], **operands: Spec | None) -> Size:
    """Return the bytes of the possibly strided ones among some operands, for copies. ``Out_GRAD`` stands for ``Out@GRAD``."""
    out: Size = 0
    for slot, spec in operands.items() if strided else ():
        if spec is not None and _slot(slot) in strided:
            out = out + spec.nbytes
    return out + turned(strided, **operands)


def widened(*indices: Spec) -> Size:
    """Return the bytes of copies of indices as 64-bit numbers, if they are others."""
    return sum([8 * spec.elements for spec in indices if spec.dtype is not INT64], 0)


def one_like(slot: str, times: int = 1) -> Callable[..., Size]:
    """Return a rule for gradients: the bytes of the operand in a slot, or a multiple."""

    def rule(self: Any, *specs: Any) -> Size:
        spec: Spec = specs[[o.name for o in self.schema.operands].index(slot)]
        return times * spec.nbytes

    return rule
