"""Programs for ranks that accumulate gradients over several batches, or scale their loss.

A strategy divides the updates; accumulation and scale are written into the rank's program after it. So a rank accumulates only the gradients
of its own updates.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from foreshape.core.spec import SELECTED_ROWS
from foreshape.errors import SchemaError
from foreshape.language.ops.math.scaling import Scale
from foreshape.language.program import Program, Role
from foreshape.transforms.passes.accumulate import accumulate
from foreshape.transforms.passes.contract import UPDATES_LAST, contract
from foreshape.transforms.passes.data_parallelism import update_last
from foreshape.transforms.passes.for_ranks import ForRanks, ShardedValue
from foreshape.transforms.passes.precision import scale_loss

_UPDATES_LAST = contract("updates_last", ensures=[UPDATES_LAST], idempotent=True)


@dataclass(frozen=True, slots=True)
class Ungathered:
    """A training program before the scaling of its loss and the accumulation of its gradients, and its startup program."""

    program: Program
    startup: Program
    batches: int = 1
    """The number of batches of one update (`accumulate`)."""
    scaled: bool = False
    """True if the loss is scaled (`scale_loss`)."""


class DistributedPass(Protocol):
    """A pass from a training program to a program for ranks."""

    def apply(self, program: Program, loss: str, ranks: int | None = None, startup: Program | None = None) -> ForRanks: ...


def gathered_over_ranks(strategy: DistributedPass, ungathered: Ungathered, described: Program, loss: str, ranks: int | None) -> ForRanks:
    """Return a strategy's program for ranks, with the loss scaled and the gradients accumulated as ``ungathered`` says.

    Args:
        described: the program of one rank, scaled and accumulating, whose values the ranks have parts of.
        ranks: their number; None for a plan of any number.

    Raises:
        SchemaError: as the strategy, `scale_loss` and `accumulate`.
    """
    for_ranks = strategy.apply(ungathered.program, loss, ranks, ungathered.startup if ranks is not None else None)  # a startup program is for a number of ranks
    program = _updates_last(for_ranks.program)
    startup = for_ranks.startup if for_ranks.startup is not None else ungathered.startup
    if ungathered.scaled:
        program, startup = scale_loss(program, loss, startup, over_ranks=bool(for_ranks.shards))
    program, startup = accumulate(program, ungathered.batches, startup)
    parts = (*for_ranks.parts, *_parts_of_sums(program, described, for_ranks.shards)) if ungathered.batches > 1 else for_ranks.parts
    _compare(program, described, parts)
    return replace(for_ranks, program=program, startup=startup, parts=parts)


def _updates_last(program: Program) -> Program:
    """Return a copy with the waits for gradients outside of the updates, and all updates behind them: a step may skip the updates."""

    def change(copy: Program) -> bool:
        block, changed = copy.global_block, False
        begun = {n for op in block.ops if not op.role & Role.OPTIMIZE for n in op.output_names()}
        for op in block.ops:
            if op.operator is not None and op.operator.awaits and op.role & Role.OPTIMIZE and begun.issuperset(op.inputs["X"]):
                op.role = Role.BACKWARD
                changed = True
        return update_last(block) or changed

    return _UPDATES_LAST.run(program, change).program


def sums_of(program: Program) -> dict[str, str]:
    """Return parameter -> the sum of its gradients, in a program made by `accumulate`."""
    out: dict[str, str] = {}
    for op in program.all_ops():
        total = op.input("X") if isinstance(op.operator, Scale) and op.role & Role.OPTIMIZE and len(op.role_variables) == 2 else None
        variable = program.global_block.find(total) if total is not None else None
        if total is not None and variable is not None and variable.persistable and not variable.is_parameter and op.output("Out") == op.role_variables[1]:
            out[op.role_variables[0]] = total
    return out


def _parts_of_sums(program: Program, described: Program, shards: tuple[ShardedValue, ...]) -> list[ShardedValue]:
    """Return the rank's parts of gradient sums, as parts of the described program's sums."""
    sums, by_name = sums_of(described), {p.name: p for p in shards}
    out: list[ShardedValue] = []
    for parameter, total in sums_of(program).items():
        shard = by_name.get(parameter)
        if shard is not None:
            pieces = tuple(replace(q, name=sums[q.name], inner="") for q in shard.pieces)
            out.append(replace(shard, name=total, pieces=pieces, begins_whole=False))
    return out


def _compare(program: Program, described: Program, parts: tuple[ShardedValue, ...]) -> None:
    """Check that a rank's persistable values are the described program's, or parts of them, as checkpoints need."""
    described_variables, of_parts = described.global_block.vars, {p.name for p in parts}
    for name, variable in program.global_block.vars.items():
        described_variable = described_variables.get(name)
        if (
            variable.persistable
            and name not in of_parts
            and (described_variable is None or not described_variable.persistable or described_variable.spec != variable.spec)
        ):
            if variable.kind is SELECTED_ROWS:
                raise SchemaError(
                    f"{name} would have the rows of one rank: sums of sparse gradients over several batches are not kept in parts; "
                    "leave accumulate= out, or split_tables"
                )
            has = "has not" if described_variable is None else f"has as {described_variable.spec.text()}"
            raise SchemaError(f"a rank would keep {name}, {variable.spec.text()}, which the program of one rank {has}")
