"""The ops between what gradients are wanted of and what they are gradients of, and the values that flow through them.

A node is one value of a variable on the way: its name, where it is written once; where a name is written again, as by a loop
that carries it, each further value is a node of its own, so that gradients never go to another value than the one that was used.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foreshape.errors import SchemaError
from foreshape.ops.fields import NOT_DIFFERENTIABLE, NOT_WRITTEN, NoGradient
from foreshape.program import Block, Op, Role, Variable
from foreshape.spec import LOD_TENSOR_ARRAY

_VERSION = "\0"


def name_of(node: str) -> str:
    """The variable of a node."""
    return node.partition(_VERSION)[0]


@dataclass(slots=True)
class Visit:
    """One op on the way. ``alias``: name -> node, of the names that it reads and that have been written again before it."""

    op: Op
    index: int
    alias: dict[str, str]
    written: dict[str, str]
    """Name -> node, of what it writes, where that is not the name itself."""

    def read(self, name: str) -> str:
        return self.alias.get(name, name)

    def wrote(self, name: str) -> str:
        return self.written.get(name, name)


@dataclass(slots=True)
class Path:
    """The ops on the way in their order, the nodes whose gradients are needed, and the nodes that carried names end as."""

    visits: list[Visit]
    needed: set[str]
    last: dict[str, str]
    """Name -> its last node, where that is not the name itself."""
    reached: set[str]
    """The nodes to which something of what is wanted flows."""
    last_write: dict[str, int]
    """Name -> the position of the last op of the block that writes it."""
    into: Block | None = None
    """The block that its gradient ops go to."""

    def final(self, name: str) -> str:
        return self.last.get(name, name)


def at(op: Op) -> str:
    """Where the user wrote an op, for the end of a sentence."""
    site = op.call_site
    return f", at {site.short()}" if site is not None else ""


def is_floating(variable: Variable | None) -> bool:
    """Whether a variable can have a gradient."""
    return variable is not None and (variable.dtype is None or variable.dtype.is_floating)


def no_gradient(op: Op) -> NoGradient | None:
    """Why an op has no gradient, if it says so."""
    operator = op.operator
    given = operator.gradient if operator is not None else None
    return given if isinstance(given, NoGradient) else None


def find_path(block: Block, wanted: Collection[str], ends: Sequence[str], stop: Collection[str]) -> Path:
    """The ops of a block that lead from the wanted names to the values that ``ends`` have at its end.

    Raises:
        SchemaError: an op on the way has no gradient.
    """
    ops = [op for op in block.ops if not op.role & (Role.BACKWARD | Role.OPTIMIZE)]
    last_write: dict[str, int] = {}
    entering: set[str] = set()
    for index, op in enumerate(ops):
        regional = bool(op.attributes.sub_blocks)
        for name in op.all_reads() if regional else op.input_names():
            if name not in last_write:
                entering.add(name)
        for name in op.all_writes() if regional else op.output_names():
            last_write[name] = index
    reached = {n for n in wanted if n in entering or n not in last_write}
    alias: dict[str, str] = {}
    candidates: list[Visit] = []
    used: set[str] = set()
    """The names that ops on the way have read."""
    count = 0
    find = block.find
    for index, op in enumerate(ops):
        regional = bool(op.attributes.sub_blocks)
        reads = op.all_reads() if regional else [n for names in op._inputs.values() for n in names]  # pyright: ignore[reportPrivateUsage]
        flows = any(alias.get(n, n) in reached for n in reads)
        writes = sorted(op.all_writes()) if regional else list(op.output_names())
        if not flows and not alias and not any(n in wanted or n in reached for n in writes):
            continue
        visit = Visit(op, index, dict(alias) if alias else _NOTHING, _NOTHING)
        if flows:
            used.update(reads)
        for name in writes:
            node = name
            variable = find(name)
            goes = flows and name not in stop and is_floating(variable) and not (variable is not None and variable.stop_gradient and name not in wanted)
            again = name in reached or name in alias or (goes and name in used)
            if again and not (variable is not None and variable.kind is LOD_TENSOR_ARRAY):
                count += 1  # another value than the one before; the gradient of an array is gathered in place
                node = f"{name}{_VERSION}{count}"
                alias[name] = node
                visit.written = visit.written | {name: node}
            if goes or (name in wanted and name not in entering):
                reached.add(node)
        if flows:
            candidates.append(visit)
    path = Path([], set(), alias, reached, last_write)
    live = {path.final(n) for n in ends}
    for visit in reversed(candidates):
        op = visit.op
        regional = bool(op.attributes.sub_blocks)
        if any((node := visit.wrote(n)) in live and node in reached for n in (op.all_writes() if regional else op.output_names())):
            reason = no_gradient(op)
            if reason is NOT_DIFFERENTIABLE or reason is NOT_WRITTEN or op.operator is None:
                words = reason.reason if reason is not None else "its operator is not known here"
                raise SchemaError(f"{op.type} has no gradient ({words}), and the loss depends on it" + at(op))
            if reason is not None:
                continue
            path.visits.append(visit)
            for name in op.all_reads() if regional else op.input_names():
                node = visit.read(name)
                if node in reached:
                    live.add(node)
    path.visits.reverse()
    path.needed = live & reached
    return path


_NOTHING: dict[str, str] = {}
