"""Removal of unused ops: unused by the fetches, or used only in training."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from foreshape.core.hints import did_you_mean
from foreshape.errors import SchemaError
from foreshape.language.operator.attributes import AttrType
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.computations import Selection
from foreshape.language.program import Block, Op, Program, Variable
from foreshape.language.program.dropping import drop_blocks, drop_variables, for_step
from foreshape.transforms.passes.contract import BLOCKS_IN_USE, NO_TRAINING, TEST_BEHAVIOUR, contract
from foreshape.transforms.passes.forward_and_back import LATER
from foreshape.transforms.passes.framework import named
from foreshape.transforms.passes.training_only import drop_training_only

__all__ = ["FOR_TEST", "for_step", "for_test", "prune"]

_PRUNE = contract("prune", ensures=[BLOCKS_IN_USE], idempotent=True)


def prune(program: Program, feeds: Iterable[Variable | str] | None, fetches: Iterable[Variable | str]) -> Program:
    """Return a copy with only the ops and variables behind the fetches.

    Args:
        program: left as it is.
        feeds: the fed variables; ops that would make them are dropped. None: all variables without an op may be fed.
        fetches: the results. Updates of parameters unused by them are dropped, too.

    Raises:
        SchemaError: a name unknown to the program, or an input needed by the fetches and missing among the feeds.
    """
    fed = None if feeds is None else _names(program, feeds)
    targets = _names(program, fetches)
    if not targets:
        raise SchemaError("prune needs at least one variable to fetch")

    def change(copy: Program) -> bool:
        block = copy.global_block
        count = len(block.ops)
        block.ops, inputs = _needed(block, targets, fed or [])
        if fed is not None:
            _check_inputs(block, inputs, targets)
        for op in block.ops:
            op.is_target = False
        blocks = drop_blocks(copy)
        return drop_variables(copy, {*targets, *(fed or ())}) or len(block.ops) != count or blocks

    return _PRUNE.run(program, change).program


def for_test(program: Program) -> Program:
    """Return a copy for inference: without backward, update, learning-rate and `foreshape.layer.in_training` ops, and with ``is_test`` set."""
    return FOR_TEST(program).program


@named("for_test", ensures=[NO_TRAINING, TEST_BEHAVIOUR, BLOCKS_IN_USE], idempotent=True)
def FOR_TEST(program: Program) -> bool:
    changed = False
    read: set[str] = set()
    written: set[str] = set()
    for block in program.blocks:
        remaining: list[Op] = []
        for op in block.ops:
            if op.role & LATER:
                read.update(op.input_names())
                written.update(op.output_names())
            else:
                remaining.append(op)
                changed |= _set_test(op)
        changed |= len(remaining) != len(block.ops)
        block.ops = remaining
    for op in drop_training_only(program):
        read.update(op.input_names())
        written.update(n for n in op.output_names() if not op.computes(Selection))
        changed = True
    drop_blocks(program)
    _drop_unread_results(program, read)
    drop_variables(program, {v.name for v in program.all_variables()} - read - written)
    return changed


def _names(program: Program, variables: Iterable[Variable | str]) -> list[str]:
    out: list[str] = []
    for variable in (variables,) if isinstance(variables, (Variable, str)) else variables:
        name = variable.name if isinstance(variable, Variable) else variable
        if program.global_block.find(name) is None:
            raise SchemaError(f"there is no variable {name!r} in the program's global block{did_you_mean(name, program.global_block.vars)}")
        if isinstance(variable, Variable) and variable.block.program is not program:
            raise SchemaError(f"{name} is a variable of another program")
        out.append(name)
    return out


def _needed(block: Block, targets: Sequence[str], fed: Sequence[str]) -> tuple[list[Op], set[str]]:
    """Return the ops behind the wanted names, in order, and the names read before any write."""
    available = set(fed)
    needed = set(targets) - available
    perhaps: set[str] = set()
    """The writes of a block that may not run."""
    remaining: list[Op] = []
    for op in reversed(block.ops):
        reads, writes = op.all_reads(), op.all_writes()
        if not writes & needed:
            continue
        remaining.append(op)
        if op.sub_block_indices():  # it may not run at all, so its former value, if any, is still needed
            perhaps |= writes
        else:
            needed -= writes
        needed |= reads - available
    remaining.reverse()
    return remaining, {n for n in needed if n not in perhaps or ((v := block.find(n)) is not None and v.need_check_feed)}


def _check_inputs(block: Block, inputs: set[str], targets: Sequence[str]) -> None:
    for name in sorted(inputs):
        variable = block.find(name)
        if variable is None:
            raise SchemaError(f"{name!r} is needed and is not described in the program")
        if not variable.persistable and variable.value is None:
            site = variable.call_site
            raise SchemaError(
                f"{', '.join(targets[:3])} needs {name} ({variable.spec.text()}), which is not among the feeds"
                + (f"; it is described at {site.short()}" if site is not None else "")
            )


def _set_test(op: Op) -> bool:
    """Switch an op with another behaviour in training."""
    entries = op.attributes.entries
    if "is_test" not in op.attributes.values and op.operator is not None and "is_test" in op.operator.schema.attributes:
        entries = (*entries, ("is_test", AttrType.BOOLEAN, False))  # a file with its default
    switched = tuple((n, t, True if n == "is_test" and t is AttrType.BOOLEAN else v) for n, t, v in entries)
    if switched == op.attributes.entries:
        return False
    op.attributes = Attributes.of(op.type, switched)
    return True


def _drop_unread_results(program: Program, read: set[str]) -> None:
    """Drop the optional results used only by backward ops, as ReserveSpace of batch_norm."""
    unread = read - {n for op in program.all_ops() for n in op.input_names()}
    for op in program.all_ops():
        for result in op.operator.schema.results if op.operator is not None else ():
            names = op.outputs.get(result.name, ())
            if result.optional and names and all(n in unread and not _persists(op.block, n) for n in names):
                op.drop_output(result.name)


def _persists(block: Block, name: str) -> bool:
    variable = block.find(name)
    return variable is not None and variable.persistable
