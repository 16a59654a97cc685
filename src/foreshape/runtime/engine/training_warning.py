"""Programs with unwanted updates in a run: of a network in use, or divided for other ranks."""

from __future__ import annotations

from collections.abc import Sequence
from weakref import WeakSet

from foreshape.errors import ExecutionError
from foreshape.language.program import Op, Program, Role
from foreshape.language.program.call_site import warn_user
from foreshape.machine.communication.process_group import team_of

_told: WeakSet[Program] = WeakSet()


def warn_of_updates(program: Program, fetches: Sequence[str]) -> None:
    """Warn once for a program with updates, although nothing fetched is of its training: no loss, gradient or parameter."""
    ops = program.global_block.ops
    if not fetches or program in _told or not any(op.role & Role.OPTIMIZE for op in ops):
        return
    losses = [op for op in ops if op.role & Role.LOSS and not op.role & Role.BACKWARD]
    training = {n for op in ops if op.role & (Role.BACKWARD | Role.OPTIMIZE) for n in op.output_names()} | _costs(losses)
    find = program.global_block.find
    if losses and not any(n in training or ((v := find(n)) is not None and v.persistable) for n in fetches):
        _told.add(program)
        names = ", ".join(fetches[:3]) + (", ..." if len(fetches) > 3 else "")
        warn_user(
            f"running this program trains it: it has updates of its parameters, which run too although {names} does not need them. To use the "
            "network, run the program that was described, without updates, or fs.passes.for_test(program)"
        )


def _costs(losses: Sequence[Op]) -> set[str]:
    """Return the losses, and their summands or elements."""
    out: set[str] = set()
    waiting = [(op, n) for op in losses for n in op.output_names()]
    while waiting:
        op, name = waiting.pop()
        out.add(name)
        if op.operator is not None and len(op.operator.linear) == 1 and {slot for slot, names in op.inputs.items() if names} <= {*op.operator.linear}:
            out.update(op.input_names())
            waiting += [(v.op, v.name) for v in op.input_variables() if v.op is not None]
    return out


def refuse_other_ranks(program: Program) -> None:
    """Refuse a program whose gradients another tool has divided for other ranks than there are.

    PaddlePaddle's transpilers multiply the gradient of the loss, in place, by one over the number of ranks, and sum gradients over them.

    Raises:
        ExecutionError: the loss's gradient is for another number of ranks.
    """
    exchanges = [op for op in program.global_block.ops if op.operator is not None and op.operator.collective and op.role & Role.BACKWARD]
    if not exchanges:
        return
    team = team_of(exchanges[0].attrs.get("ring_id", 0))
    rank = 1 if team is None else team.ranks
    losses = {n for op in program.global_block.ops if op.role == Role.BACKWARD | Role.LOSS for n in op.output_names()}
    for op in program.global_block.ops:
        share = op.attrs.get("scale") if op.role & Role.BACKWARD and op.input("X") in losses and list(op.input_names()) == list(op.output_names()) else None
        if isinstance(share, float) and 0 < share < 1 and abs(1 / share - round(1 / share)) < 1e-3 and round(1 / share) != rank:
            raise ExecutionError(
                f"the program is for {round(1 / share)} ranks: it multiplies the gradient of its loss, {op.input('X')}, by {share:g}, and "
                f"sums gradients over ranks ({exchanges[0].type}); this run has {rank}. Start as many, or train the network without them: "
                "fs.passes.for_test(program) drops its backward and update ops"
            )
