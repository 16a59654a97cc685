"""A quick model of a training step: for a set of dropped values the peak and the extra work, without making the program.

It knows lifetimes, views and results in the memory of their operands, and nothing of kernels: `foreshape.plan` has the last word.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import numpy

from foreshape.compiler.lowering.call_memory import retained_by
from foreshape.compiler.memory.records import WORKSPACE, Liveness
from foreshape.core.dims import Size, evaluate, symbols_of
from foreshape.core.spec import LOD_TENSOR
from foreshape.language.operator.operator import Operator
from foreshape.language.program import Block, Op, Role
from foreshape.language.program.needed import needed_ops
from foreshape.language.program.work import multiplications, operand_specs
from foreshape.transforms.backward.recompute import OrderedOp, Recomputing

MULTIPLIES, BYTES, DRAWS = 50e9, 10e9, 1e8
"""The rates of a machine, for comparing ops: multiply-adds, bytes to and from memory, random numbers per second."""
_SMALL = 1 / 4096
"""The least share of all kept bytes worth dropping for its own sake."""


class Outcome(NamedTuple):
    """The outcome of a set of dropped values."""

    peak: int
    extra: float
    """Seconds, by estimate."""
    position: int
    """The step of the new order with the peak."""
    alive: tuple[str, ...]
    """The values kept for the backward pass, alive at the peak and not read there."""
    again: tuple[str, ...]
    """The values computed again, likewise."""


class StepModel:
    """Sizes, views and work of a block's ops for given values of its symbols."""

    def __init__(self, block: Block, fetch: Sequence[str], values: Mapping[str, int], live: Liveness | None = None) -> None:
        self.block, self.values = block, values
        self.recomputing = Recomputing(block)
        needed = {id(op) for op in needed_ops(block, fetch)}
        self.needed = [id(op) in needed for op in block.ops]
        self.fetch = set(fetch)
        self.sizes: dict[str, int] = dict(self._retained())
        self.work = [work_of(op, values) if self.needed[index] else 0.0 for index, op in enumerate(block.ops)]
        self.total = sum(self.work)
        self._workspace = self._workspaces(live)
        self.results = [self._op(op) for op in block.ops]
        self.reads = [
            () if self._joins_gradient(op) else tuple([n for n in names if self.size(n)]) for op, names in zip(block.ops, self.recomputing.reads, strict=True)
        ]
        self.root: dict[str, str] = {}
        """Name -> the name of the viewed tensor, itself if it is no view."""
        for results in self.results:
            for name, source, view in results:
                self.root[name] = self.root.get(source, source) if view and source is not None else name
        self.groups: dict[str, list[str]] = {}
        """The groups to drop as one: values in one piece of memory."""
        members: dict[str, list[str]] = {}
        for name, root in self.root.items():
            members.setdefault(root, []).append(name)
        maker, fixed = self.recomputing.maker, self.fetch | self.recomputing.beginning()
        for root, names in members.items():
            droppable = all(n in maker or not self.size(n) for n in names) and fixed.isdisjoint(names)
            if root in maker and self.size(root) and droppable:
                self.groups[root] = [n for n in names if n in maker]
        late = [index for index, late in enumerate(self.recomputing.late) if late and self.needed[index]]
        read_late = {self.root.get(n, n) for index in late for n in self.recomputing.reads[index]}
        self.base = frozenset(n for n in self.groups if n in read_late)
        """The groups kept without recomputation."""
        least = sum(self.size(n) for n in self.base) * _SMALL
        self.small = frozenset(n for n in self.base if self.size(n) < least)
        self._with = {n: [o for o in self.base - self.small if maker[o] == maker[n]] for n in self.small}

    def size(self, name: str) -> int:
        """Return the bytes of a value of the step; 0 if it is kept from run to run, or no dense tensor."""
        nbytes = self.sizes.get(name)
        if nbytes is None:
            variable = self.block.vars.get(name)
            nbytes = 0
            if variable is not None and not variable.persistable and variable.kind is LOD_TENSOR and variable.spec.dims is not None:
                nbytes = number(variable.spec.nbytes, self.values) if variable.spec.dtype is not None else 0
            self.sizes[name] = nbytes
        return nbytes

    def _retained(self) -> Iterator[tuple[str, int]]:
        """Yield the sizes of results that keep more alive than described."""
        for op in self.block.ops:
            operator = op.operator
            if operator is None or not operator.retains():
                continue
            specs = [operand_specs(op, o.name, o.many) for o in operator.schema.operands]
            sizes, _ = retained_by(operator, specs, [True] * len(operator.schema.results))  # a plan tells the unknown parts
            for slot, size in sizes.items():
                for name in op.outputs.get(slot, ()):
                    yield name, number(size, self.values)

    def _workspaces(self, live: Liveness | None) -> list[int]:
        """Return the workspace of each op's kernel, from the plan of the program."""
        sizes: dict[int, int] = {}
        for record in live.records if live is not None else ():
            if record.what == WORKSPACE and record.op is not None:
                op = id(record.op.whole)
                sizes[op] = sizes.get(op, 0) + number(record.size, self.values)
        return [sizes.get(id(op), 0) for op in self.block.ops]

    def _joins_gradient(self, op: Op) -> bool:
        """Return True if an update runs as soon as its gradient is there, alone or in a small group."""
        return bool(op.role & Role.OPTIMIZE) and len(op.role_variables) == 2

    def _op(self, op: Op) -> list[tuple[str, str | None, bool]]:
        """Return the results of an op with the operand whose memory each may be in, and True for a view of it."""
        operator = op.operator
        out: list[tuple[str, str | None, bool]] = []
        if operator is None or operator.sub_blocks:
            return [(n, None, False) for n in op.all_writes() if self.size(n)]
        for result in operator.schema.results:
            slot = result.updates or result.view_of or result.may_share
            sources = op.inputs.get(slot, ()) if slot is not None else ()
            for index, name in enumerate(op.outputs.get(result.name, ())):
                source = sources[index] if index < len(sources) else sources[0] if sources else None
                view = result.updates is not None or (result.view_of is not None and source is not None and self._is_view(operator, source, name))
                if self.size(name):
                    out.append((name, source, view))
        return out

    def _is_view(self, operator: Operator, source: str, name: str) -> bool:
        """Return True for a view: a gradient of another number of elements is a sum or a spread instead."""
        return type(operator).forward_class is None or self.size(source) == self.size(name)

    # --- outcomes of choices

    def dropped(self, groups: Collection[str]) -> set[str]:
        """Return the names of all groups but these, and of the small results of ops that run again in any case."""
        return {n for root, names in self.groups.items() if root not in groups or self._goes(root, groups) for n in names}

    def _goes(self, root: str, groups: Collection[str]) -> bool:
        siblings = self._with.get(root)
        return bool(siblings) and not any(n in groups for n in siblings or ())

    def members(self, roots: Collection[str]) -> set[str]:
        """Return the names of groups."""
        return {n for root in roots for n in self.groups[root]}

    def evaluate(self, groups: Collection[str], anew: Collection[str] = ()) -> Outcome:
        """Return the outcome of keeping these groups, with the others computed again where needed, and the groups of ``anew`` every time."""
        drop, repeated = self.dropped(groups), self.members(anew)
        steps = [s for s in self.recomputing.order(drop, repeated) if self.needed[s.at]]
        extra = sum([3 * self.size(s.again) / BYTES if s.again else self.work[s.at] for s in steps if s.copy], 0.0)
        lives = _Lives(self, drop, repeated)
        lives.run(steps)
        lives.end(len(steps) - 1)
        workspace = [0 if s.again else self._workspace[s.at] for s in steps]
        position, peak = lives.peak(workspace)
        return Outcome(peak, extra, position, lives.kept_over(position, groups), lives.waiting_at(position))

    def reads_again(self, step: OrderedOp) -> Iterable[str]:
        """Return the operands read to compute one value again."""
        return [n for n in self.recomputing.again_inputs(step.again, (), ()) or () if self.size(n)]

    def cost_of(self, root: str, groups: Collection[str]) -> float:
        """Return the work of computing one group again, from kept values."""
        visited: set[int] = set()
        total = 0.0
        maker, ops = self.recomputing.maker, self.block.ops
        waiting = list(self.groups[root])
        while waiting:
            name = waiting.pop()
            index = maker[name]
            if index in visited:
                continue
            inputs = self.recomputing.again_inputs(name, (), ())
            if inputs is not None and not any(maker.get(n) == index and self._lost(n, root, groups) for n in inputs):
                total += 3 * self.size(name) / BYTES
                waiting += [n for n in inputs if self._lost(n, root, groups)]
                continue
            visited.add(index)
            total += self.work[index]
            waiting += [n for n in ops[index].input_names() if self._lost(n, root, groups)]
        return total

    def _lost(self, name: str, root: str, groups: Collection[str]) -> bool:
        base = self.root.get(name, name)
        return base in self.groups and name in self.recomputing.maker and (base not in groups or base == root)


class _Lives:
    """The buffers of one order of steps: the first and the last step of each, and its bytes."""

    def __init__(self, model: StepModel, drop: Collection[str], repeated: Collection[str]) -> None:
        self._model, self._drop, self._repeated = model, drop, repeated
        self._first: list[int] = []
        self._last: list[int] = []
        self._size: list[int] = []
        self._original: dict[str, int] = {}
        """Name -> its buffer, as the forward pass made it."""
        self._again: dict[str, int] = {}
        """Name -> its buffer, computed again."""
        self._late_from: dict[int, int] = {}
        """Buffer -> the first step of the backward pass that reads it."""
        self._copies: dict[int, tuple[str, list[int]]] = {}
        """Buffer of a value computed again -> its name, and the steps that read it."""
        self._shared: list[tuple[int, int, int]] = []
        """Step, operand and result of equal size, so the result may be in the operand's memory."""

    def _place(self, name: str, t: int) -> int:
        self._first.append(t)
        self._last.append(t)
        self._size.append(self._model.sizes[name])
        return len(self._first) - 1

    def run(self, steps: Sequence[OrderedOp]) -> None:
        """Take the steps in turn: their operands live until then, their results from then on."""
        original, again, last, size, results, place = self._original, self._again, self._last, self._size, self._model.results, self._place
        for t, step in enumerate(steps):
            operands = self._read(t, step)
            target = again if step.copy else original
            for name, source, view in ((step.again, None, False),) if step.again else results[step.at]:
                if not step.copy and name in original:
                    last[original[name]] = t
                    continue
                operand = operands.get(source) if source is not None else None
                if view:
                    if operand is not None and (name not in target or name in self._repeated):
                        target[name] = operand
                    continue
                buffer = place(name, t)
                if not step.copy:
                    original[name] = buffer
                elif name in self._drop and (name not in again or name in self._repeated):
                    again[name] = buffer
                    self._copies[buffer] = (name, [])
                if operand is not None and size[operand] == size[buffer]:
                    self._shared.append((t, operand, buffer))

    def _read(self, t: int, step: OrderedOp) -> dict[str, int]:
        """Return the buffers of a step's operands."""
        original, again, copies, last = self._original, self._again, self._copies, self._last
        copy_or_late = step.copy or self._model.recomputing.late[step.at]
        operands: dict[str, int] = {}
        for name in self._model.reads_again(step) if step.again else self._model.reads[step.at]:
            buffer = again.get(name) if copy_or_late else None
            if buffer is None:
                buffer = original.get(name)
                if buffer is None:
                    buffer = original[name] = self._place(name, 0)  # fed, or written later by a block
                elif copy_or_late and buffer not in self._late_from:
                    self._late_from[buffer] = t
            last[buffer] = t
            if buffer in copies:
                copies[buffer][1].append(t)
            operands[name] = buffer
        return operands

    def end(self, t: int) -> None:
        """Keep fetches until the last step, and let results be in the memory of operands that end with their step."""
        first, last = self._first, self._last
        for name in self._model.fetch:
            if name in self._original:
                last[self._original[name]] = t
        operands: set[int] = set()
        for step, operand, result in self._shared:
            if last[operand] == step and first[operand] < step and operand not in operands and first[result] == step:
                last[operand] = step - 1
                operands.add(operand)

    def peak(self, workspace: Sequence[int]) -> tuple[int, int]:
        """Return the step with the most bytes, and these; ``workspace``: of each step."""
        change = numpy.zeros(len(workspace) + 1, dtype=numpy.int64)
        sizes = numpy.array(self._size, dtype=numpy.int64)
        numpy.add.at(change, self._first, sizes)
        numpy.subtract.at(change, numpy.array(self._last, dtype=numpy.int64) + 1, sizes)
        line = numpy.cumsum(change[:-1]) + numpy.array(workspace, dtype=numpy.int64)
        position = int(line.argmax()) if len(line) else 0
        return position, int(line[position]) if len(line) else 0

    def kept_over(self, position: int, kept_groups: Collection[str]) -> tuple[str, ...]:
        """Return the kept groups alive at a step without being read there for the first time."""
        first, last, groups = self._first, self._last, self._model.groups
        return tuple(
            n
            for n, buffer in self._original.items()
            if n in groups and n in kept_groups and first[buffer] <= position < last[buffer] and self._late_from.get(buffer, -1) != position
        )

    def waiting_at(self, position: int) -> tuple[str, ...]:
        """Return the groups computed again before a step and read behind it, not at it."""
        first, last, groups = self._first, self._last, self._model.groups
        return tuple(
            n
            for buffer, (n, used) in self._copies.items()
            if n in groups and n not in self._repeated and first[buffer] < position < last[buffer] and position not in used
        )


def number(size: Size, values: Mapping[str, int]) -> int:
    """Return a size as a number; a symbol without a value, known only in the run, counts as 1."""
    if isinstance(size, int):
        return size
    return max(evaluate(size, {**dict.fromkeys(symbols_of(size), 1), **values}), 0)


def work_of(op: Op, values: Mapping[str, int]) -> float:
    """Return seconds of one op, by estimate."""
    operator = op.operator
    if operator is None:
        return 0.0
    if operator.sub_blocks:
        return sum(work_of(inner, values) for index in op.sub_block_indices() for inner in op.block.program.blocks[index].ops)
    if all(r.view_of for r in operator.schema.results if not _empty(op, r.name)) and type(operator).forward_class is None:
        return 0.0
    moved_bytes = held_bytes = written_bytes = 0
    for name, out in [*((n, False) for n in op.input_names()), *((n, True) for n in op.output_names())]:
        variable = op.block.find(name)
        if variable is None or variable.kind is not LOD_TENSOR or variable.spec.dims is None or variable.spec.dtype is None:
            continue
        size = number(variable.spec.nbytes, values)
        if variable.persistable and not out:
            held_bytes += size
        else:
            moved_bytes += size
            written_bytes += size if out else 0
    moved_bytes += min(held_bytes, moved_bytes)  # only the looked up rows of a table are read
    counted = multiplications(op)
    seconds = moved_bytes / BYTES + (0 if counted is None else number(counted, values)) / MULTIPLIES
    return seconds + (written_bytes / 4 / DRAWS if operator.random and operator.draws() else 0.0)


def _empty(op: Op, slot: str) -> bool:
    variable = op.block.find(op.output(slot) or "")
    return variable is None or variable.spec.dims is None or variable.spec.elements == 0
