"""Dropping values of the forward pass, for the backward pass to compute them again."""

from __future__ import annotations

from collections.abc import Collection

from foreshape.language.program import Program
from foreshape.transforms.backward.recompute import Recomputing
from foreshape.transforms.backward.split_gradients import set_apart
from foreshape.transforms.passes.contract import contract

_GRADIENTS_APART = contract("gradients_apart", idempotent=True)
_RECOMPUTE = contract("recompute_values")


def gradients_apart(program: Program, first: Collection[str] = ()) -> tuple[Program, list[str]]:
    """Return a copy with separately computable gradients in ops of their own, and the names of these gradients.

    They stand after the others of their op, or before if in ``first``. Without any the program itself is returned.
    """
    names: list[str] = []

    def change(copy: Program) -> bool:
        names.extend(set_apart(copy.global_block, first))
        return bool(names)

    return _GRADIENTS_APART.run(program, change).program, names


def recompute_values(program: Program, names: Collection[str], anew: Collection[str] = ()) -> tuple[Program, list[str]]:
    """Return a copy whose backward pass computes these values of the forward pass again instead of keeping them.

    Args:
        program: with its backward ops; left as it is.
        names: values of the global block. Values that cannot be computed again are kept: results of blocks, fed values, results of ops with
            side effects. So are the operands of the second computation.
        anew: the values among them computed again for each reader, and not kept from one to the next.

    Returns:
        The program, and the names of the copied values.
    """
    recomputed: list[str] = []

    def change(copy: Program) -> bool:
        version = copy.version
        recomputed.extend(Recomputing(copy.global_block).apply(names, anew))
        return copy.version != version

    return _RECOMPUTE.run(program, change).program, recomputed
