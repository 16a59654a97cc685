"""From a block to instructions: pruned to what is asked for, every name resolved to one value."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

from foreshape.errors import ExecutionError
from foreshape.ops.operator import Schema
from foreshape.program import Block, Op, Variable
from foreshape.program.op import EMPTY


@dataclass(slots=True, eq=False)
class Value:
    """One value of a step: written once. ``name`` is its variable's; ``persistable`` ones live in the scope."""

    name: str
    index: int
    persistable: bool = False
    feed: bool = False
    variable: Variable | None = None

    def __repr__(self) -> str:
        return f"{'p' if self.persistable else 'f' if self.feed else 'v'}{self.index}"


Argument = Value | list["Value | None"] | None


@dataclass(slots=True, eq=False)
class Instruction:
    """One kernel call: its arguments by operand, its results by result slot, and which of them somebody reads.

    ``copies``: values that the kernel changes in place and that must be copied first; ``stores``: persistable results that
    the kernel does not write in place.
    """

    op: Op
    kernel: Callable[..., Any]
    arguments: list[Argument]
    results: list[Argument]
    takes_wants: bool = False
    copies: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    stores: list[tuple[Value, Value]] = field(default_factory=list[tuple[Value, Value]])
    in_place: frozenset[int] = frozenset()
    """The result slots that the kernel writes into their operands."""
    expression: str | None = None
    """Python text that is emitted instead of a call of ``kernel``: ``{0}``, ``{1}`` are the arguments, ``{name}`` a constant."""
    constants: dict[str, Any] = field(default_factory=dict[str, Any])
    tag: str = ""
    """What a rewrite made it, for the rewrites that come after: ``product``, ``weight gradient``."""

    def reads(self) -> list[Value]:
        return _values(self.arguments)

    def writes(self) -> list[Value]:
        return _values(self.results)


def _values(arguments: Sequence[Argument]) -> list[Value]:
    out: list[Value] = []
    for a in arguments:
        if isinstance(a, list):
            out.extend(v for v in a if v is not None)
        elif a is not None:
            out.append(a)
    return out


@dataclass(slots=True)
class Lowered:
    """A pruned block as instructions, with the values that come in and go out."""

    instructions: list[Instruction]
    feeds: list[Value]
    persistables: list[Value]
    fetches: list[Value]
    derived: list[tuple[str, Value, Callable[[Any], Any]]] = field(default_factory=list[tuple[str, Value, Callable[[Any], Any]]])
    """Names for what is made of a persistable once, when the step is bound: a transposed view of a weight."""
    prologue: list[str] = field(default_factory=list[str])
    """Statements that stand before all others."""


def needed_ops(block: Block, fetches: Sequence[str]) -> list[Op]:
    """The ops that the fetches and the persistable updates depend on, in order."""
    needed = set(fetches)
    kept: list[Op] = []
    find = block.find
    for op in reversed(block.ops):
        if op.type in ("feed", "fetch"):
            continue
        outputs = list(op.output_names())
        keep = any(n in needed for n in outputs)
        if not keep:
            operator = op.operator
            keep = operator is not None and operator.side_effects
            for name in outputs:
                variable = find(name)
                keep = keep or (variable is not None and variable.persistable)
        if keep:
            kept.append(op)
            reads = set(op.input_names())
            needed.difference_update(n for n in outputs if n not in reads)
            needed |= reads
    kept.reverse()
    return kept


def _protect(i: Instruction, schema: Schema, operand: str, count: int) -> int:
    """Let the kernel change a copy of an operand that it updates, where the op names no result for that."""
    at = next(k for k, o in enumerate(schema.operands) if o.name == operand)
    given = i.arguments[at]
    copies: list[Value | None] = []
    for one in given if isinstance(given, list) else [given]:
        copy = None if one is None else Value(one.name, count, False, False, one.variable)
        if one is not None and copy is not None:
            i.copies.append((copy, one))
            count += 1
        copies.append(copy)
    i.arguments[at] = copies if isinstance(given, list) else copies[0]
    return count


def lower(block: Block, fetches: Sequence[str]) -> Lowered:
    """The instructions of a block.

    Raises:
        ExecutionError: an operator that is not known here, or a name that nothing describes.
    """
    ops = needed_ops(block, fetches)
    current: dict[str, Value] = {}
    feeds: list[Value] = []
    persistables: list[Value] = []
    count = 0

    def read(name: str) -> Value:
        nonlocal count
        found = current.get(name)
        if found is None:
            variable = block.find(name)
            if variable is None:
                raise ExecutionError(f"{name!r} is not described in the program")
            found = Value(name, count, variable.persistable, not variable.persistable, variable)
            count += 1
            (persistables if variable.persistable else feeds).append(found)
            current[name] = found
        return found

    def argument(names: Sequence[str] | None, many: bool) -> Argument:
        if many:
            return [None if n == EMPTY or not n else read(n) for n in names or ()]
        return None if not names or names[0] == EMPTY or not names[0] else read(names[0])

    instructions: list[Instruction] = []
    for op in ops:
        operator = op.operator
        if operator is None:
            site = op.call_site
            raise ExecutionError(f"the operator {op.type!r} is not known here, so that it cannot run" + (f" (at {site.short()})" if site else ""))
        if op.sub_block_indices():
            raise ExecutionError(f"{op.type} runs a block of its own, which this engine cannot do yet")
        schema = operator.schema
        arguments = [argument(op.inputs.get(o.name), o.many) for o in schema.operands]
        made = Instruction(op, operator.kernel, arguments, [], type(operator).kernel_wants)
        in_place: set[int] = set()
        for at, result in enumerate(schema.results):
            names = op.outputs.get(result.name) or ()
            if not names and result.updates is not None:
                count = _protect(made, schema, result.updates, count)
            outs: list[Value | None] = []
            for position, name in enumerate(names):
                if name == EMPTY or not name:
                    outs.append(None)
                    continue
                variable = block.find(name)
                value = Value(name, count, False, False, variable)
                count += 1
                if result.updates is not None:
                    operand_at = next(i for i, o in enumerate(schema.operands) if o.name == result.updates)
                    source = made.arguments[operand_at]
                    one = source[position] if isinstance(source, list) else source
                    if one is not None and one.name == name:
                        value = one  # changed in place, as the names say
                        in_place.add(at)
                    elif one is not None:
                        made.copies.append((value, one))
                        in_place.add(at)
                        if isinstance(source, list):
                            source[position] = value
                        else:
                            made.arguments[operand_at] = value
                if variable is not None and variable.persistable and not value.persistable:
                    place = Value(name, count, True, False, variable)
                    count += 1
                    made.stores.append((place, value))
                    current[name] = place
                else:
                    current[name] = value
                outs.append(value)
            made.results.append(outs if result.many else outs[0] if outs else None)
        made.in_place = frozenset(in_place)
        instructions.append(made)
    return Lowered(instructions, feeds, persistables, [read(n) for n in fetches])
