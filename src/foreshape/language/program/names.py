"""The names read and written by the ops of a block and of the blocks within it, gathered once per version of a program."""

from __future__ import annotations

from typing import TYPE_CHECKING

from foreshape.core.data_class import data_class
from foreshape.errors import SchemaError

if TYPE_CHECKING:
    from foreshape.language.program.block import Block
    from foreshape.language.program.op import Op


@data_class(frozen=True)
class BlockNames:
    """The names in a block and in the blocks within it, without the inner blocks' own variables.

    ``outer_reads``, ``outer_writes``: the names outside of this block, too. ``in_order``: the written ones, in the order of writing.
    ``first``: names possibly read in a round before they are written, so their former values are visible.
    ``early``: names of these possibly read before any possible write in the round.
    """

    reads: frozenset[str]
    writes: frozenset[str]
    outer_reads: frozenset[str]
    outer_writes: frozenset[str]
    in_order: tuple[str, ...]
    first: frozenset[str]
    early: frozenset[str]


def names_of(block: Block) -> BlockNames:
    """Return the names of a block. Raises `SchemaError` if it is run by an op within itself."""
    program = block.program
    version, cache = program.names
    if version != program.version:
        cache = {}
        program.names = (program.version, cache)
    names = cache.get(block.idx)
    if names is None:
        cache[block.idx] = _RUNNING
        try:
            names = cache[block.idx] = _gathered(block)
        except BaseException:
            cache.pop(block.idx, None)
            raise
    if names is _RUNNING:
        raise SchemaError(f"the block {block.idx} is run by an op within itself")
    return names


_RUNNING = BlockNames(frozenset(), frozenset(), frozenset(), frozenset(), (), frozenset(), frozenset())


def _gathered(block: Block) -> BlockNames:
    reads: set[str] = set()
    order: dict[str, None] = {}
    first: set[str] = set()
    early: set[str] = set()
    written: set[str] = set()
    """Written whichever way a round takes."""
    for op in block.ops:
        if not op.attributes.sub_blocks:
            op_reads = set(op.input_names()) | added_to(op)
            reads |= op_reads
            early |= op_reads.difference(order)
            order.update(dict.fromkeys(op.output_names()))
            first |= op_reads - written
            written.update(op.output_names())
            continue
        mine, theirs = names_of_op(op)
        reads |= mine
        visible, seen_early = _seen_before(op, mine)
        first |= visible - written
        early |= seen_early.difference(order)
        order.update(theirs)
        if op.operator is not None and op.operator.region == "recurrent":  # loops and branches may run not at all
            written.update(op.output_names())
    blocks = block.program.blocks
    forward_names = blocks[block.forward_idx].vars.keys() if 0 <= block.forward_idx < len(blocks) else ()  # by the op of this block
    outer = reads.difference(forward_names) - block.vars.keys()
    writes = frozenset(order)
    op_reads = block.vars.keys()
    return BlockNames(frozenset(reads), writes, frozenset(outer), writes - op_reads, tuple(order), frozenset(first - op_reads), frozenset(early - op_reads))


def added_to(op: Op) -> set[str]:
    """Return the names of results accumulated by an op, so that it needs their former values."""
    operator = op.operator
    return set() if operator is None else {n for slot in operator.accumulates for n in op.outputs.get(slot, ())}


def names_of_op(op: Op) -> tuple[set[str], dict[str, None]]:
    """Return the outside reads of an op and its blocks, and their outside writes in the order of writing."""
    reads = set(op.input_names()) | added_to(op)
    writes = dict.fromkeys(op.output_names())
    for inner in blocks_of(op):
        block_names = names_of(inner)
        reads |= block_names.outer_reads
        writes.update((n, None) for n in block_names.in_order if n in block_names.outer_writes)
    return reads, writes


def blocks_of(op: Op) -> list[Block]:
    """Return the blocks of an op. Raises `SchemaError` if the program has no such block."""
    blocks = op.block.program.blocks
    for index in op.attributes.sub_blocks:
        if not 0 <= index < len(blocks):
            raise SchemaError(f"{op.type} runs a block of the program; there is no block {index}")
    return [blocks[index] for index in op.attributes.sub_blocks]


def _seen_before(op: Op, reads: set[str]) -> tuple[set[str], set[str]]:
    """Return the values visible to an op with a block (fewer than its slots for loops and branches), and those visible before its writes."""
    region = op.operator.region if op.operator is not None else ""
    slot = {"while": "Condition", "conditional": "Cond"}.get(region)
    if slot is None:
        return reads, reads
    conditions, inner = op.inputs.get(slot, ()), [names_of(block) for block in blocks_of(op)]
    return set(conditions).union(*(names.first for names in inner)), set(conditions).union(*(names.early for names in inner))
