"""Programs for ranks that gather gradients over several batches, or scale their loss: a strategy divides what updates, and what gathers and
scales is written into the rank's program after that, so that a rank gathers those gradients alone that it updates with.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

from foreshape.errors import SchemaError
from foreshape.ops.math.scaling import Scale
from foreshape.passes.accumulate import accumulate
from foreshape.passes.data_parallelism import update_last
from foreshape.passes.for_ranks import ForRanks, Part
from foreshape.passes.framework import Pass
from foreshape.passes.precision import scale_loss
from foreshape.program import Program, Role
from foreshape.spec import SELECTED_ROWS


@dataclass(frozen=True, slots=True)
class Ungathered:
    """A training program before its loss is scaled and its gradients are gathered, and what makes its first values."""

    program: Program
    startup: Program
    batches: int = 1
    """How many batches make one update (`accumulate`)."""
    scaled: bool = False
    """Whether the loss is scaled (`scale_loss`)."""


class Strategy(Protocol):
    """A pass that makes a training program one for ranks."""

    def apply(self, program: Program, loss: str, ranks: int | None = None, startup: Program | None = None) -> ForRanks: ...


def gathered_over_ranks(strategy: Strategy, given: Ungathered, described: Program, loss: str, ranks: int | None) -> ForRanks:
    """What a strategy makes of a training program, with its loss scaled and its gradients gathered as ``given`` says.

    Args:
        described: the program of one rank, scaled and gathered, whose values those of the ranks are parts of.
        ranks: how many there are; any number, for a plan, where it is None.

    Raises:
        SchemaError: what the strategy, `scale_loss` and `accumulate` refuse.
    """
    made = strategy.apply(given.program, loss, ranks, given.startup if ranks is not None else None)  # a startup program is for a number of ranks
    program = _updates_last(made.program)
    startup = made.startup if made.startup is not None else given.startup
    if given.scaled:
        program, startup = scale_loss(program, loss, startup, over_ranks=bool(made.shards))
    program, startup = accumulate(program, given.batches, startup)
    parts = (*made.parts, *_parts_of_sums(program, described, made.shards)) if given.batches > 1 else made.parts
    _compare(program, described, parts)
    return replace(made, program=program, startup=startup, parts=parts)


def _updates_last(program: Program) -> Program:
    """A copy in which what waits for gradients is no part of the updates, all of which come behind it: they may not happen in a step."""

    def change(copy: Program) -> bool:
        block = copy.global_block
        begun = {n for op in block.ops if not op.role & Role.OPTIMIZE for n in op.output_names()}
        for op in block.ops:
            if op.operator is not None and op.operator.awaits and op.role & Role.OPTIMIZE and begun.issuperset(op.inputs["X"]):
                op.role = Role.BACKWARD
        update_last(block)
        return True

    return Pass("updates last", change)(program)[0]


def sums_of(program: Program) -> dict[str, str]:
    """Parameter -> the value that its gradients are added to, in a program that `accumulate` has made."""
    out: dict[str, str] = {}
    for op in program.all_ops():
        total = op.input("X") if isinstance(op.operator, Scale) and op.role & Role.OPTIMIZE and len(op.role_variables) == 2 else None
        variable = program.global_block.find(total) if total is not None else None
        if total is not None and variable is not None and variable.persistable and not variable.is_parameter and op.output("Out") == op.role_variables[1]:
            out[op.role_variables[0]] = total
    return out


def _parts_of_sums(program: Program, described: Program, shards: tuple[Part, ...]) -> list[Part]:
    """Where a rank gathers its part of gradients: of which sums of the described program it is a part."""
    whole, by_name = sums_of(described), {p.name: p for p in shards}
    out: list[Part] = []
    for parameter, total in sums_of(program).items():
        shard = by_name.get(parameter)
        if shard is not None:
            pieces = tuple(replace(q, name=whole[q.name], inner="") for q in shard.pieces)
            out.append(replace(shard, name=total, pieces=pieces, begins_whole=False))
    return out


def _compare(program: Program, described: Program, parts: tuple[Part, ...]) -> None:
    """Make sure that what a rank keeps is what the described program keeps, or a part of it: a checkpoint is of that."""
    one, of_parts = described.global_block.vars, {p.name for p in parts}
    for name, variable in program.global_block.vars.items():
        whole = one.get(name)
        if variable.persistable and name not in of_parts and (whole is None or not whole.persistable or whole.spec != variable.spec):
            if variable.kind is SELECTED_ROWS:
                raise SchemaError(f"{name} would have the rows of one rank: sums of sparse gradients over several batches are not kept in parts; "
                                  "leave accumulate= out, or split_tables")  # fmt: skip
            has = "has not" if whole is None else f"has as {whole.spec.text()}"
            raise SchemaError(f"a rank would keep {name}, {variable.spec.text()}, which the program of one rank {has}")
