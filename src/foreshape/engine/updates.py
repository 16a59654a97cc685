"""A warning for those who use a network by its training program: what they run trains it."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from foreshape.program import Op, Program, Role
from foreshape.program.call_site import warn_user

_told: WeakSet[Program] = WeakSet()
_JOINING = ("mean", "reduce_mean", "reduce_sum", "scale", "sum")
"""The ops by which the costs of examples become a loss."""


def warn_of_updates(program: Program, fetches: Sequence[str]) -> None:
    """Warn once for a program whose updates run too, although nothing that is fetched is of its training: no loss, gradient or parameter."""
    ops = program.global_block.ops
    if not fetches or program in _told or not any(op.role & Role.OPTIMIZE for op in ops):
        return
    losses = [op for op in ops if op.role & Role.LOSS and not op.role & Role.BACKWARD]
    training = {n for op in ops if op.role & (Role.BACKWARD | Role.OPTIMIZE) for n in op.output_names()} | _costs(losses)
    find = program.global_block.find
    if losses and not any(n in training or ((v := find(n)) is not None and v.persistable) for n in fetches):
        _told.add(program)
        shown = ", ".join(fetches[:3]) + (", ..." if len(fetches) > 3 else "")
        warn_user(f"running this program trains it: it has updates of its parameters, which run too although {shown} does not need them. To use the "
                  "network, run the program that was described, without updates, or fs.passes.for_test(program)")  # fmt: skip


def _costs(losses: Sequence[Op]) -> set[str]:
    """The losses, and what they are sums or means of."""
    out: set[str] = set()
    waiting = [(op, n) for op in losses for n in op.output_names()]
    while waiting:
        op, name = waiting.pop()
        out.add(name)
        if op.type in _JOINING:
            out.update(op.input_names())
            waiting += [(v.op, v.name) for v in op.input_variables() if v.op is not None]
    return out
