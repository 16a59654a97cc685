"""The ops between variables and the values whose gradients are taken, and the flow of values through them.

A node is one value of a variable on the path: its name, if written once. Each further value of a name written again, as in a loop, is a node of its
own: gradients never go to another value.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from foreshape.core.spec import LOD_TENSOR_ARRAY
from foreshape.errors import SchemaError
from foreshape.language.infer.loop_state import carried_names, written_before
from foreshape.language.operator.fields import NOT_DIFFERENTIABLE, NOT_WRITTEN, NoGradient
from foreshape.language.program import Block, Op, Role, Variable
from foreshape.language.program.op import EMPTY

_VERSION = "\0"


def name_of(node: str) -> str:
    """Return the variable of a node."""
    return node.partition(_VERSION)[0]


@dataclass(slots=True)
class Visit:
    """One op on the path. ``alias``: name -> node, for names read by it and overwritten before it."""

    op: Op
    index: int
    alias: dict[str, str]
    written: dict[str, str]
    """Name -> node of its write, if not the name itself."""

    def read(self, name: str) -> str:
        return self.alias.get(name, name)

    def wrote(self, name: str) -> str:
        return self.written.get(name, name)


@dataclass(slots=True)
class Path:
    """The ops on the path in their order, the nodes with needed gradients, and the last nodes of overwritten names."""

    visits: list[Visit]
    needed: set[str]
    last: dict[str, str]
    """Name -> its last node, if not the name itself."""
    reached: set[str]
    """The nodes that depend on a wanted name."""
    last_write: dict[str, int]
    """Name -> the position of the last op in the block that writes it; empty if every name is written once."""
    into: Block | None = None
    """The block of its gradient ops."""

    def final(self, name: str) -> str:
        return self.last.get(name, name)


def place_words(op: Op) -> str:
    """Return the user's place of an op, for the end of a sentence."""
    site = op.call_site
    return f", at {site.short()}" if site is not None else ""


def is_floating(variable: Variable | None) -> bool:
    """Tell whether a variable can have a gradient."""
    if variable is None:
        return False
    dtype = variable.spec.dtype
    return dtype is None or dtype.family == "float" or dtype.family == "complex"


def no_gradient(op: Op) -> NoGradient | None:
    """Return the reason why an op has no gradient, if it has one."""
    operator = op.operator
    gradient = operator.gradient if operator is not None else None
    return gradient if isinstance(gradient, NoGradient) else None


def reads_of(op: Op) -> set[str]:
    """Return the names behind an op's results: with a block that may not run also its writes, since they may keep their values."""
    reads = op.all_reads()
    if op.operator is not None and op.operator.region in ("while", "conditional"):
        reads.update(n for n in carried_names(op) if n not in reads and written_before(op, n))
    return reads


def find_path(block: Block, sources: Collection[str], ends: Sequence[str], stop: Collection[str]) -> Path:
    """Return the ops of a block from the wanted names to the final values of ``ends``.

    Raises:
        SchemaError: an op on the path has no gradient.
    """
    ops = [op for op in block.ops if not op.role & (Role.BACKWARD | Role.OPTIMIZE)]
    last_write, overwritten = _writes(block, ops)
    begun = {n for n in sources if n not in last_write or _is_read_first(ops, n)}
    walk = _ForwardWalk(block, sources, begun, stop, overwritten)
    for index, op in enumerate(ops):
        walk.forward(index, op)
    path = Path([], set(), walk.alias, walk.reached, last_write if overwritten else _NEVER)
    _walk_back(path, walk.candidates, {path.final(n) for n in ends})
    return path


class _ForwardWalk:
    """The walk along the ops of a block, from the wanted names on: the dependent ops, and a node for each value of a name."""

    def __init__(self, block: Block, sources: Collection[str], begun: set[str], stop: Collection[str], overwritten: set[str]) -> None:
        self.block, self.wanted, self.begun, self.stop, self.overwritten = block, sources, begun, stop, overwritten
        self.reached = set(begun)
        self.alias: dict[str, str] = {}
        self.candidates: list[Visit] = []
        self._used: set[str] = set()
        """The overwritten names read by ops on the path."""
        self._count = 0

    def forward(self, index: int, op: Op) -> None:
        """Take the next op."""
        alias, reached, sources = self.alias, self.reached, self.wanted
        if op.attributes.sub_blocks:
            reads, writes = list(reads_of(op)), sorted(op.all_writes())
        else:
            reads = [n for names in op.input_slots.values() for n in names]
            writes = [n for names in op.output_slots.values() for n in names]
            operator = op.attributes.operator
            if operator is not None and operator.accumulates:  # its target must not keep the gradient of the former value
                reads += writes
        flows = any(alias.get(n, n) in reached for n in reads) if alias else not reached.isdisjoint(reads)
        if not flows and not alias and reached.isdisjoint(writes) and not any(n in sources for n in writes):
            return
        visit = Visit(op, index, dict(alias) if alias else _NOTHING, _NOTHING)
        if flows:
            self.candidates.append(visit)
            if self.overwritten:
                self._used.update(n for n in reads if n in self.overwritten)
        for name in writes:
            if name and name != EMPTY:
                self._write(visit, name, flows)

    def _write(self, visit: Visit, name: str, flows: bool) -> None:
        """Take a result: another node than before where the name has been on the way already."""
        node, is_source = name, name in self.wanted
        variable = self.block.vars.get(name)
        if variable is None:
            variable = self.block.find(name)
        goes = flows and name not in self.stop and is_floating(variable) and not (variable is not None and variable.stop_gradient and not is_source)
        again = name in self.reached or name in self.alias or (goes and name in self._used)
        if again and not (variable is not None and variable.kind is LOD_TENSOR_ARRAY):
            self._count += 1  # another value than the one before; the gradient of an array is gathered in place
            node = f"{name}{_VERSION}{self._count}"
            self.alias[name] = node
            visit.written = visit.written | {name: node}
        if goes or (is_source and name not in self.begun):
            self.reached.add(node)


def _walk_back(path: Path, candidates: Sequence[Visit], live: set[str]) -> None:
    """Leave on the path the ops before the live nodes, and the nodes between."""
    reached = path.reached
    for visit in reversed(candidates):
        op, written, read = visit.op, visit.written, visit.alias
        regional = bool(op.attributes.sub_blocks)
        names = op.all_writes() if regional else [n for names in op.output_slots.values() for n in names]
        if not any([(node := written.get(n, n)) in live and node in reached for n in names]):  # noqa: C419  # a generator would cost more than it spares
            continue
        reason = no_gradient(op)
        if reason is NOT_DIFFERENTIABLE or reason is NOT_WRITTEN or op.operator is None:
            words = reason.reason if reason is not None else "its operator is not known here"
            raise SchemaError(f"{op.type} has no gradient ({words}), and the loss depends on it" + place_words(op))
        if reason is not None:
            continue
        path.visits.append(visit)
        for name in reads_of(op) if regional else op.input_names():
            node = read.get(name, name)
            if node in reached:
                live.add(node)
    path.visits.reverse()
    path.needed = live & reached


def _writes(block: Block, ops: Sequence[Op]) -> tuple[dict[str, int], set[str]]:
    """Return the position of the last write of each name, and the names with a value before an op writes them."""
    last: dict[str, int] = {}
    overwritten: set[str] = set()
    local = block.vars
    for index, op in enumerate(ops):
        if op.attributes.sub_blocks:
            names = op.all_writes()
            overwritten |= names
            last.update(dict.fromkeys(names, index))
            continue
        for names in op.output_slots.values():
            for name in names:
                last[name] = index
                variable = local.get(name)
                if variable is None or variable.op is not op:
                    overwritten.add(name)
    overwritten.discard(EMPTY)
    return last, overwritten


def _is_read_first(ops: Sequence[Op], name: str) -> bool:
    for op in ops:
        if name in reads_of(op):
            return True
        if name in op.all_writes():
            return False
    return True


_NOTHING: dict[str, str] = {}
_NEVER: dict[str, int] = {}
