"""Values of the forward pass computed again in the backward pass instead of being kept.

A dropped value keeps its variable, alive to its last forward reader. Its backward readers read another variable,
``name@RECOMPUTE``. A copy of its op makes it just before the first of them, at the user's line of the op.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping
from typing import Final, NamedTuple

from foreshape.core.spec import LOD_TENSOR
from foreshape.language.infer.op_inference import key_of
from foreshape.language.infer.rules import answer, replace_symbols
from foreshape.language.operator.bound_attributes import Attributes
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.registry import get
from foreshape.language.program import Block, Op, Role
from foreshape.language.program.op import EMPTY, Slots
from foreshape.language.program.scopes import RECOMPUTE_MARK

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
        for index, names in enumerate(self.writes):
            for name in names:
                self._writers[name].append(index)
        self._end = max((index for index, op in enumerate(block.ops) if op.role & Role.BACKWARD), default=-1)
        fixed = set[str]().union(*(self.reads[index] for index, op in enumerate(block.ops) if op.sub_block_indices() and self.late[index]))
        for index, op in enumerate(block.ops):
            if self._repeats(index, op):
                for name in op.output_names():
                    if name not in fixed and self._is_plain(name) and self._takes_memory(name):
                        self.maker[name] = index

    def _is_plain(self, name: str) -> bool:
        """Tell whether a name has one value, in a variable of the step alone."""
        variable = self.block.vars.get(name)
        return variable is not None and not variable.persistable and not variable.need_check_feed and len(self._writers[name]) == 1

    def _takes_memory(self, name: str) -> bool:
        """Tell whether a value has elements, unlike XShape."""
        spec = self.block.vars[name].spec
        return spec.dims is not None and spec.elements != 0

    def _repeats(self, index: int, op: Op) -> bool:
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
            if self.block.find(name) is None or any(index < w <= self._end or (w == index and name not in moving) for w in self._writers.get(name, ())):
                return False
        return not self._gives_new_sizes(op, operator)

    def _gives_new_sizes(self, op: Op, operator: Operator) -> bool:
        """Tell whether only the run determines a size or a grouping of its results: a copy's would not be known to be equal."""
        key = key_of(self.block, op, operator)
        known_sizes = self.block.program.guards.known
        return bool(answer(operator, replace_symbols(key, known_sizes) if known_sizes else key).unknown)

    def beginning(self) -> set[str]:
        """Return the loss and its source: the backward pass begins with it, so a drop would gain nothing."""
        ops = self.block.ops
        waiting = [index for index, op in enumerate(ops) if op.role & Role.LOSS and not self.late[index]]
        visited = set(waiting)
        while waiting:
            index = waiting.pop()
            if all(v is None or v.spec.dims is None or v.spec.elements == 1 for v in map(self.block.find, ops[index].output_names())):
                makers = {self.maker[n] for n in self._inputs[index] if n in self.maker} - visited
                visited |= makers
                waiting += makers
        return {n for index in visited for n in self.writes[index]}

    def order(self, drop: Collection[str], anew: Collection[str] = ()) -> list[OrderedOp]:
        """Return all ops, with copies for the late readers of dropped values, each before its first reader.

        Values of ``anew`` are copied for each reader.
        """
        out: list[OrderedOp] = []
        copied: set[str] = set()
        for index, late in enumerate(self.late):
            if late:
                for name in self.reads[index]:
                    if name in drop and name not in copied and self.maker.get(name, index) < index:
                        self._make(name, drop, copied, out)
                copied.difference_update(anew)
            out.append(OrderedOp(index))
        return out

    def _make(self, name: str, drop: Collection[str], copied: set[str], out: list[OrderedOp]) -> None:
        waiting = [name]
        while waiting:
            value = waiting[-1]
            if value in copied:
                waiting.pop()
                continue
            index = self.maker[value]
            inputs = self.again_inputs(value, drop, copied)
            missing = [n for n in (self._inputs[index] if inputs is None else inputs) if n in drop and n not in copied and n in self.maker]
            if missing:
                waiting += missing
                continue
            if inputs is not None:
                out.append(OrderedOp(index, True, value))
                copied.add(value)
            else:
                out.append(OrderedOp(index, True))
                copied.update(n for n in self.writes[index] if n in drop and n in self.maker)
            waiting.pop()

    def is_dropped(self, name: str, drop: Collection[str]) -> bool:
        return name in drop and name in self.maker

    def again_inputs(self, name: str, drop: Collection[str], copied: Collection[str]) -> list[str] | None:
        """Return the operands from which another operator makes a value (see `Operator.again`), if the op's own results among them exist."""
        op = self.block.ops[self.maker[name]]
        again = op.operator.again if op.operator is not None else None
        if again is None or op.output(again.result) != name:
            return None
        inputs = [n for slot in again.inputs.values() for n in (*op.inputs.get(slot, ()), *op.outputs.get(slot, ()))]
        op_results = self.writes[self.maker[name]]
        return inputs if all(n not in op_results or n in copied or not self.is_dropped(n, drop) for n in inputs) else None

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
    def __init__(self, recomputing: Recomputing, drop: Collection[str], anew: Collection[str]) -> None:
        self.recomputing, self.drop, self.anew, self.block = recomputing, drop, anew, recomputing.block
        self.ops: list[Op] = []
        self.names: dict[str, str] = {}
        """Dropped value -> the variable of its last copy."""
        self._states: dict[int, str] = {}

    def original(self, op: Op, index: int, copied: bool) -> None:
        if self.recomputing.late[index]:
            for slot, source in self.recomputing.dims_only[index].items():
                if op.inputs[slot][0] in self.recomputing.maker:
                    op.set_input(slot, source)
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
            inputs = {slot: self._read((*op.inputs.get(forward_slot, ()), *op.outputs.get(forward_slot, ()))) for slot, forward_slot in again.inputs.items()}
            self.names[step.again] = self._new(step.again)
            self._append(Attributes.of(again.type, op.attributes.entries), inputs, {again.gives: (self.names[step.again],)}, op)
            return
        inputs = {slot: self._read(names) for slot, names in op.inputs.items()}
        outputs: Slots = {}
        for slot, names in op.outputs.items():
            outputs[slot] = tuple(
                [n if n in ("", EMPTY) else self._updated_copy(op, n, inputs) if slot in operator.moving else self._result_copy(n) for n in names]
            )
        state = self._states.get(id(op))
        previous_state = self._swap(state, op) if state is not None else None
        self._append(op.attributes, inputs, outputs, op)
        if previous_state is not None:
            self._swap(previous_state, op)

    def _result_copy(self, name: str) -> str:
        new = self._new(name)
        if self.recomputing.is_dropped(name, self.drop) and (name not in self.names or name in self.anew):
            self.names[name] = new
        return new

    def _updated_copy(self, op: Op, name: str, inputs: Slots) -> str:
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
        previous_state = self.block.program.unique_name(f"{op.type}.random_state")
        self._add("swap_random_state", {"State": (state,)}, {"Before": (previous_state,)}, op)
        return previous_state

    def _add(self, type: str, inputs: Slots, outputs: Slots, like: Op, role: int = Role.BACKWARD) -> None:
        self._append(get(type).describe(None), inputs, outputs, like, role)

    def _append(self, attributes: Attributes, inputs: Slots, outputs: Slots, like: Op, role: int = Role.BACKWARD) -> None:
        op = Op(self.block, attributes, inputs, outputs, role, (), like.site)
        self.block.infer_op(op)
        self.ops.append(op)


def _dims_only(op: Op) -> dict[str, str]:
    operator = op.operator
    forward = type(operator).forward_class if operator is not None else None
    if forward is None or not forward.gradient_reads_dims:
        return {}
    gradient_name = op.input("Out@GRAD")
    like = op.block.vars.get(gradient_name) if gradient_name is not None else None
    out: dict[str, str] = {}
    for slot in forward.gradient_reads_dims if like is not None and gradient_name is not None else ():
        variable = op.block.vars.get(op.input(slot) or "") if len(op.inputs.get(slot, ())) == 1 else None
        if (
            variable is not None
            and like is not None
            and gradient_name is not None
            and (variable.spec.dims, variable.spec.dtype) == (like.spec.dims, like.spec.dtype)
        ):
            out[slot] = gradient_name
    return out


def _reads(op: Op, dims_only: Mapping[str, str]) -> tuple[str, ...]:
    names_read = dict.fromkeys(n for slot, names in op.inputs.items() if slot not in dims_only for n in names if n and n != EMPTY)
    if not dims_only:
        names_read.update(dict.fromkeys(sorted(op.all_reads() - names_read.keys())))
    return tuple(names_read)


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
        match = RECOMPUTE_MARK.search(place) if isinstance(place, str) and not op.role & LATE else None
        if match is not None:
            scopes[match[1]].append(op)
    if not scopes:
        return
    drop: set[str] = set()
    for ops in scopes.values():
        inside = {id(op) for op in ops}
        left = set[str]().union(*(op.all_reads() for op in block.ops if id(op) not in inside and not op.role & LATE))
        drop.update(n for op in ops for n in op.output_names() if n not in left)
    Recomputing(block).apply(drop)
