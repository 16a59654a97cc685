"""Dropping values of the forward pass, for the backward pass to compute them again."""

from __future__ import annotations

from collections.abc import Collection

from foreshape.backward.recompute import Recomputing
from foreshape.backward.split_gradients import set_apart
from foreshape.passes.framework import Pass
from foreshape.program import Program


def gradients_apart(program: Program, first: Collection[str] = ()) -> tuple[Program, list[str]]:
    """A copy in which gradients that can be computed alone are, after the others of their op, and those of ``first`` before; the program
    itself where there are none. And their names."""
    names: list[str] = []

    def change(copy: Program) -> bool:
        names.extend(set_apart(copy.global_block, first))
        return bool(names)

    return Pass("gradients_apart", change)(program)[0], names


def recompute_values(program: Program, names: Collection[str], anew: Collection[str] = ()) -> tuple[Program, list[str]]:
    """A copy whose backward pass computes these values of the forward pass again instead of keeping them.

    Args:
        program: with its backward ops; left as it is.
        names: values of the global block. Those that cannot be computed again (what a block gives, what is fed, what an op with
            side effects makes) are kept; so is what the computing again starts from.
        anew: those among them that are computed again for each op that reads them, and not kept from one to the next.

    Returns:
        The program, and the names of the values for which a copy is made.
    """
    made: list[str] = []

    def change(copy: Program) -> bool:
        version = copy.version
        made.extend(Recomputing(copy.global_block).apply(names, anew))
        return copy.version != version

    return Pass("recompute_values", change)(program)[0], made
