"""Values of the forward pass computed again in the backward pass instead of being kept.

A dropped value keeps its variable, alive to its last forward reader. Its backward readers read another variable,
``name@RECOMPUTE``. A copy of its op makes it just before the first of them, at the user's line of the op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from foreshape.infer.op_inference import key_of
from foreshape.infer.rules import answer, replace_symbols
from foreshape.operator.bound_attributes import Attributes
from foreshape.operator.operator import Operator
from foreshape.operator.registry import get
from foreshape.program import Block, Op, Role
from foreshape.program.op import EMPTY, Slots
from foreshape.program.scopes import RECOMPUTE_MARK
from foreshape.spec import LOD_TENSOR

SUFFIX: Final = "@RECOMPUTE"
LATE: Final = Role.BACKWARD | Role.OPTIMIZE
"""The roles of ops that may read another variable instead."""
_FORWARD: Final = ~(Role.LOSS | Role.RPC | Role.DIST)


class OrderedOp(NamedTuple):
    """One op in the new order: its old position, whether it is a copy, and the name whose value another operator makes, if any."""

    at: int
    copy: bool = False
    again: str = ""


class Recomputing:
    """The recomputable values of a block, and the order of ops for a set of them."""

    def __init__(self, block: Block) -> None:
        self.block = block
        self.dims_only = [_dims_only(op) for op in block.ops]
        """For each op, the slots read only for their dims, for which any value of these dims will do: slot -> value."""
        self.reads = [_reads(op, slots) for op, slots in zip(block.ops, self.dims_only, strict=True)]
        """For each op, whose values it needs."""
        self.writes = [op.all_writes() for op in block.ops]
        self.late = [bool(op.role & LATE) for op in block.ops]
        self._inputs = [tuple(op.input_names()) for op in block.ops]
        self.maker: dict[str, int] = {}
        """Droppable value -> the position of its op."""
        self._writers: dict[str, list[int]] = defaultdict(list)
        for at, names in enumerate(self.writes):
            for name in names:
                self._writers[name].append(at)
        self._end = max((at for at, op in enumerate(block.ops) if op.role & Role.BACKWARD), default=-1)
        fixed = set[str]().union(*(self.reads[at] for at, op in enumerate(block.ops) if op.sub_block_indices() and self.late[at]))
        for at, op in enumerate(block.ops):
            if self._repeats(at, op):
                for name in op.output_names():
                    if name not in fixed and self._is_plain(name) and self._takes_memory(name):
                        self.maker[name] = at

    def _is_plain(self, name: str) -> bool:
        """Tell whether a name has one value, in a variable of the step alone."""
        variable = self.block.vars.get(name)
        return variable is not None and not variable.persistable and not variable.need_check_feed and len(self._writers[name]) == 1

    def _takes_memory(self, name: str) -> bool:
        """Tell whether a value has elements, unlike XShape."""
        spec = self.block.vars[name].spec
        return spec.dims is not None and spec.elements != 0

    def _repeats(self, at: int, op: Op) -> bool:
        """Tell whether a later second run of a forward op in the backward pass gives equal results."""
        operator = op.operator
        if op.role & _FORWARD or operator is None or operator.sub_blocks or operator.side_effects or operator.collective:
            return False
        if operator.accumulates or operator.described_results:
            return False
        moving = {n for slot in operator.moving for n in op.outputs.get(slot, ())}
        for name in op.output_names():
            variable = self.block.vars.get(name)
            if variable is None or variable.kind is not LOD_TENSOR or not (name in moving or self._is_plain(name)):
                return False
        for result in operator.schema.results:
            if result.updates is not None and op.outputs.get(result.name) and result.name not in operator.moving:
                return False
        for name in op.input_names():
            if self.block.find(name) is None or any(at < w <= self._end or (w == at and name not in moving) for w in self._writers.get(name, ())):
                return False
        return not self._gives_new_sizes(op, operator)

    def _gives_new_sizes(self, op: Op, operator: Operator) -> bool:
        """Tell whether only the run determines a size or a grouping of its results: a copy's would not be known to be equal."""
        key = key_of(self.block, op, operator)
        known = self.block.program.guards.known
        return bool(answer(operator, replace_symbols(key, known) if known else key).unknown)

    def beginning(self) -> set[str]:
        """Return the loss and its source: the backward pass begins with it, so a drop would gain nothing."""
        ops = self.block.ops
        waiting = [at for at, op in enumerate(ops) if op.role & Role.LOSS and not self.late[at]]
        seen = set(waiting)
        while waiting:
            at = waiting.pop()
            if all(v is None or v.spec.dims is None or v.spec.elements == 1 for v in map(self.block.find, ops[at].output_names())):
                more = {self.maker[n] for n in self._inputs[at] if n in self.maker} - seen
                seen |= more
                waiting += more
        return {n for at in seen for n in self.writes[at]}

    def order(self, drop: Collection[str], anew: Collection[str] = ()) -> list[OrderedOp]:
        """Return all ops, with copies for the late readers of dropped values, each before its first reader.

        Values of ``anew`` are copied for each reader.
        """
        out: list[OrderedOp] = []
        made: set[str] = set()
        for at, late in enumerate(self.late):
            if late:
                for name in self.reads[at]:
                    if name in drop and name not in made and self.maker.get(name, at) < at:
                        self._make(name, drop, made, out)
                made.difference_update(anew)
            out.append(OrderedOp(at))
        return out

    def _make(self, name: str, drop: Collection[str], made: set[str], out: list[OrderedOp]) -> None:
        waiting = [name]
        while waiting:
            wanted = waiting[-1]
            if wanted in made:
                waiting.pop()
                continue
            at = self.maker[wanted]
            inputs = self.again_inputs(wanted, drop, made)
            missing = [n for n in (self._inputs[at] if inputs is None else inputs) if n in drop and n not in made and n in self.maker]
            if missing:
                waiting += missing
                continue
            if inputs is not None:
                out.append(OrderedOp(at, True, wanted))
                made.add(wanted)
            else:
                out.append(OrderedOp(at, True))
                made.update(n for n in self.writes[at] if n in drop and n in self.maker)
            waiting.pop()

    def is_dropped(self, name: str, drop: Collection[str]) -> bool:
        return name in drop and name in self.maker

    def again_inputs(self, name: str, drop: Collection[str], made: Collection[str]) -> list[str] | None:
        """Return the operands from which another operator makes a value (see `Operator.again`), if the op's own results among them exist."""
        op = self.block.ops[self.maker[name]]
        again = op.operator.again if op.operator is not None else None
        if again is None or op.output(again.result) != name:
            return None
        inputs = [n for slot in again.inputs.values() for n in (*op.inputs.get(slot, ()), *op.outputs.get(slot, ()))]
        own = self.writes[self.maker[name]]
        return inputs if all(n not in own or n in made or not self.is_dropped(n, drop) for n in inputs) else None

    def apply(self, drop: Collection[str], anew: Collection[str] = ()) -> list[str]:
        """Change the block so that the backward pass computes these values again, ``anew`` ones for each reader. Returns the values for which it does.

        Values from outside the block, or not recomputable, are kept. Late readers of dims alone read other values in any case.
        """
        steps = self.order(drop, anew)
        copied = {s.at for s in steps if s.copy and not s.again}
        rewriting = _Rewriting(self, drop, anew)
        for step in steps:
            op = self.block.ops[step.at]
            if step.copy:
                rewriting.copy(op, step)
            else:
                rewriting.original(op, step.at, step.at in copied)
        if len(rewriting.ops) != len(self.block.ops):
            self.block.ops = rewriting.ops
            self.block.program.touch()
        return list(rewriting.names)


class _Rewriting:
    def __init__(self, of: Recomputing, drop: Collection[str], anew: Collection[str]) -> None:
        self.of, self.drop, self.anew, self.block = of, drop, anew, of.block
        self.ops: list[Op] = []
        self.names: dict[str, str] = {}
        """Dropped value -> the variable of its last copy."""
        self._states: dict[int, str] = {}

    def original(self, op: Op, at: int, copied: bool) -> None:
        if self.of.late[at]:
            for slot, other in self.of.dims_only[at].items():
                if op.inputs[slot][0] in self.of.maker:
                    op.set_input(slot, other)
            for name in {n for n in op.input_names() if n in self.names}:
                op.rename_input(name, self.names[name])
        elif copied and _draws(op):
            state = self.block.program.unique_name(f"{op.type}.random_state")
            self._add("random_state", {}, {"State": (state,)}, op, op.role & ~Role.LOSS)
            self._states[id(op)] = state
        self.ops.append(op)

    def copy(self, op: Op, step: OrderedOp) -> None:
        operator = op.operator
        assert operator is not None
        if step.again:
            again = operator.again
            assert again is not None
            inputs = {slot: self._read((*op.inputs.get(own, ()), *op.outputs.get(own, ()))) for slot, own in again.inputs.items()}
            self.names[step.again] = self._new(step.again)
            self._append(Attributes.of(again.type, op.attributes.entries), inputs, {again.gives: (self.names[step.again],)}, op)
            return
        inputs = {slot: self._read(names) for slot, names in op.inputs.items()}
        outputs: Slots = {}
        for slot, names in op.outputs.items():
            outputs[slot] = tuple([n if n in ("", EMPTY) else self._moved(op, n, inputs) if slot in operator.moving else self._made(n) for n in names])
        state = self._states.get(id(op))
        before = self._swap(state, op) if state is not None else None
        self._append(op.attributes, inputs, outputs, op)
        if before is not None:
            self._swap(before, op)

    def _made(self, name: str) -> str:
        new = self._new(name)
        if self.of.is_dropped(name, self.drop) and (name not in self.names or name in self.anew):
            self.names[name] = new
        return new

    def _moved(self, op: Op, name: str, inputs: Slots) -> str:
        """Return a copy of an operand updated by an op, for the update of its second run; it replaces the original among the inputs."""
        new = self._new(name)
        if name in op.input_names():
            self._add("assign", {"X": (name,)}, {"Out": (new,)}, op)
            for slot, names in inputs.items():
                inputs[slot] = tuple([new if n == name else n for n in names])
        return new

    def _read(self, names: Iterable[str]) -> tuple[str, ...]:
        return tuple([self.names.get(n, n) for n in names])

    def _new(self, name: str) -> str:
        new = name + SUFFIX
        return self.block.program.unique_name(new) if self.block.find(new) is not None else new

    def _swap(self, state: str, op: Op) -> str:
        before = self.block.program.unique_name(f"{op.type}.random_state")
        self._add("swap_random_state", {"State": (state,)}, {"Before": (before,)}, op)
        return before

    def _add(self, type: str, inputs: Slots, outputs: Slots, like: Op, role: int = Role.BACKWARD) -> None:
        self._append(get(type).describe(None), inputs, outputs, like, role)

    def _append(self, attributes: Attributes, inputs: Slots, outputs: Slots, like: Op, role: int = Role.BACKWARD) -> None:
        made = Op(self.block, attributes, inputs, outputs, role, (), like.site)
        self.block.infer_op(made)
        self.ops.append(made)


def _dims_only(op: Op) -> dict[str, str]:
    operator = op.operator
    of = type(operator).forward_class if operator is not None else None
    if of is None or not of.gradient_reads_dims:
        return {}
    given = op.input("Out@GRAD")
    like = op.block.vars.get(given) if given is not None else None
    out: dict[str, str] = {}
    for slot in of.gradient_reads_dims if like is not None and given is not None else ():
        variable = op.block.vars.get(op.input(slot) or "") if len(op.inputs.get(slot, ())) == 1 else None
        if variable is not None and like is not None and given is not None and (variable.spec.dims, variable.spec.dtype) == (like.spec.dims, like.spec.dtype):
            out[slot] = given
    return out


def _reads(op: Op, dims_only: Mapping[str, str]) -> tuple[str, ...]:
    named = dict.fromkeys(n for slot, names in op.inputs.items() if slot not in dims_only for n in names if n and n != EMPTY)
    if not dims_only:
        named.update(dict.fromkeys(sorted(op.all_reads() - named.keys())))
    return tuple(named)


def _draws(op: Op) -> bool:
    """Tell whether an op draws from the executor's generator, also if only a seed tensor may tell it to."""
    operator = op.operator
    return operator is not None and operator.random and (operator.draws() or op.input("Seed") is not None)


# --- marks of the user


def recompute_marked(block: Block) -> None:
    """Let the backward pass compute again all values within recompute scopes, except those used outside."""
    scopes: dict[str, list[Op]] = defaultdict(list)
    for op in block.ops:
        place = op.attributes.values.get("op_namescope")
        found = RECOMPUTE_MARK.search(place) if isinstance(place, str) and not op.role & LATE else None
        if found is not None:
            scopes[found[1]].append(op)
    if not scopes:
        return
    drop: set[str] = set()
    for ops in scopes.values():
        inside = {id(op) for op in ops}
        left = set[str]().union(*(op.all_reads() for op in block.ops if id(op) not in inside and not op.role & LATE))
        drop.update(n for op in ops for n in op.output_names() if n not in left)
    Recomputing(block).apply(drop)
