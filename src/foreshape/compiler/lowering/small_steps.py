"""A small step as instructions of one loop (`foreshape.machine.kernels.instructions`), for sizes in numbers.

A step takes part if each of its calls has instructions: a fused kernel's `FusedKernel.small`, an update's `Operator.instructions`, or a constant number. Its
values lie in one piece of memory, no larger than the calls' results at their peak, so the plan holds. Checks come before the first update: where one of
them refuses, the calls' own kernels run again from the beginning, and tell the error.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import prod
from random import Random
from typing import Any

from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, OpCall, Step, Value, values_of
from foreshape.core.data_class import data_class
from foreshape.core.dims import evaluate
from foreshape.core.spec import FP32, INT64, LOD_TENSOR
from foreshape.errors import ShapeError
from foreshape.language.operator.computations import Constant
from foreshape.machine.kernels.instructions import BLAS, CHECKS, CLASS_GRADIENT, CLASS_LOSS, DIMS, FILL, NUMBERS, OPERANDS, SCALE, WIDTH, Instruction

_CLASSES = {CLASS_LOSS: 1, CLASS_GRADIENT: 1}
"""The operands of class numbers."""
_ALIGNMENTS = (64, 4)
"""The alignment of values in bytes: the better one if the memory stays as small."""
_TRIES = 40
"""So many orders of its values are tried at most for a piece without gaps."""


@data_class(eq=False)
class SmallStep:
    """A step for some sizes as a table of instructions.

    Attributes:
        table, numbers: as `foreshape.machine.kernels.instructions.run` takes them.
        nbytes: of the piece of memory for its values.
        persistables, feeds: the used tensors, by their places in the step's.
        results: the dims of its results.

    Its memories are: BLAS's product, the piece, these persistables, feeds and results.
    """

    table: Sequence[int]
    numbers: Sequence[float]
    nbytes: int
    persistables: Sequence[int]
    feeds: Sequence[int]
    results: Sequence[tuple[int, ...]]


class _Other(Exception):
    """The sign of other calls, or other values."""


def small_step(lowered: Step, values: Mapping[str, int]) -> SmallStep | None:
    """Return a step as instructions; None if these sizes have none.

    Args:
        lowered: a step for which `may_be_small` is True.
        values: of the symbols.
    """
    try:
        return _Maker(lowered, values).make()
    except (_Other, ShapeError):
        return None


def may_be_small(lowered: Step) -> bool:
    """Return False if a step has calls without instructions, for any sizes."""
    return bool(lowered.calls) and not lowered.taken and not lowered.handed and all(map(_has_instructions, lowered.calls))


def _has_instructions(i: KernelCall) -> bool:
    if isinstance(i, FusedCall):
        return i.kernel.small is not None or isinstance(i.computes, Constant)
    return hasattr(i.op.operator, "instructions")


class _Maker:
    def __init__(self, lowered: Step, values: Mapping[str, int]) -> None:
        self.lowered, self.values = lowered, values
        self.roots: dict[Value, Value] = {}
        """The value in whose memory one lies."""
        self.first: dict[Value, int] = {}
        self.last: dict[Value, int] = {}
        self.rates = {v.number: v for v in lowered.rates}

    def make(self) -> SmallStep:
        lowered = self.lowered
        rows = [self._instructions(i) for i in lowered.calls]
        self._refuse_late_checks(rows)
        results = lowered.fetches
        if len({*results}) < len(results) or any(self.roots.get(v) is not v for v in results):  # fed, in the scope, or fetched twice
            raise _Other
        for position, i in enumerate(lowered.calls):
            for v in {self.roots.get(v, v) for v in (*i.reads(), *i.writes())}:
                self.first.setdefault(v, position)
                self.last[v] = position
        offsets, nbytes = self._divide([v for v in self.first if v in self.roots and v not in results])
        used = {u for row in rows for _, operands in row for u in operands if u is not None}
        persistables = [v for v in lowered.persistables if v in used]
        feeds = [v for v in lowered.feeds if v in used]
        memories = {v: (2 + position, 0) for position, v in enumerate((*persistables, *feeds, *results))}
        memories.update({v: (1, begin) for v, begin in offsets.items()})
        table: list[int] = []
        numbers: list[float] = []
        for row in rows:
            for instruction, operands in row:
                places = [memories[u] if u is not None else (BLAS, 0) for u in operands]
                table += [
                    instruction.code,
                    *(n for place in places for n in place),
                    *[0] * 2 * (OPERANDS - len(places)),
                    *instruction.dims,
                    *[0] * (DIMS - len(instruction.dims)),
                ]
                numbers += [*instruction.numbers, *[0.0] * (NUMBERS - len(instruction.numbers))]
        assert len(table) % WIDTH == 0
        index = {v: position for position, v in enumerate(lowered.persistables)}, {v: position for position, v in enumerate(lowered.feeds)}
        return SmallStep(table, numbers, nbytes, [index[0][v] for v in persistables], [index[1][v] for v in feeds], [self._dims(v) for v in results])

    def _instructions(self, i: KernelCall) -> list[tuple[Instruction, list[Value | None]]]:
        """Return the instructions of a call, each with its operands, and note where its results lie."""
        if i.copies or i.stores or any(isinstance(r, list) for r in i.results):
            raise _Other
        if isinstance(i, OpCall):
            return self._updates(i)
        assert isinstance(i, FusedCall)
        arguments, results = values_of(i.arguments), [r if isinstance(r, Value) else None for r in i.results]
        for index, out in enumerate(results):
            source = i.into if i.into is not None else i.argument(i.effects.in_place.get(index), 0)
            if out is None or out is source:
                continue
            root = out if source is None else self.roots.get(source)
            if root is None or out.persistable:  # in memory that is not the step's
                raise _Other
            self.roots[out] = root
        constant, small = i.computes, i.kernel.small
        if isinstance(constant, Constant) and constant.number is not None and not arguments and results[0] is not None:
            instructions: Sequence[Instruction] | None = [Instruction(FILL, (None, None, -1), (0, prod(self._dims(results[0]))), (constant.number,))]
        else:
            instructions = None if small is None else small([*map(self._dims, arguments)], [None if v is None else self._dims(v) for v in results])
        return self._placed(instructions, arguments, results)

    def _updates(self, i: OpCall) -> list[tuple[Instruction, list[Value | None]]]:
        """Return the instructions of one update or several, with the sizes of each; state advances behind all."""
        rule: Callable[..., Any] | None = getattr(i.op.operator, "instructions", None)
        if rule is None or not (i.updated or i.in_place):
            raise _Other
        count = len(i.updated) and max(len(a) for a in i.arguments if isinstance(a, list))
        out: list[tuple[Instruction, list[Value | None]]] = []
        for index in range(count or 1):
            arguments = [a[index] if isinstance(a, list) else a for a in i.arguments]
            if any(v.spec is None or v.spec.kind is not LOD_TENSOR for v in values_of(arguments)):
                raise _Other
            out += self._placed(rule(*(None if v is None else self._dims(v) for v in arguments)), arguments, [])
        return sorted(out, key=lambda row: row[0].code == SCALE)

    def _placed(
        self, instructions: Sequence[Instruction] | None, arguments: Sequence[Value | None], results: Sequence[Value | None]
    ) -> list[tuple[Instruction, list[Value | None]]]:
        """Return instructions with their operands."""
        if instructions is None:
            raise _Other
        return [
            (instruction, [self._operand(u, arguments, results, instruction, index) for index, u in enumerate(instruction.operands)])
            for instruction in instructions
        ]

    def _operand(
        self, operand: int | str | None, arguments: Sequence[Value | None], results: Sequence[Value | None], instruction: Instruction, index: int
    ) -> Value | None:
        if operand is None:
            return None
        value = self.rates[operand] if isinstance(operand, str) else arguments[operand] if operand >= 0 else results[-1 - operand]
        if value is None:
            raise _Other
        spec = value.spec
        dtype = INT64 if _CLASSES.get(instruction.code) == index else FP32
        if (spec is not None and (spec.dtype is not dtype or value.lod is not None)) or 0 in self._dims(value):
            raise _Other
        return self.roots.get(value, value)

    def _dims(self, value: Value) -> tuple[int, ...]:
        spec = value.spec
        return () if spec is None else tuple([evaluate(d, self.values) for d in spec.known_dims])

    def _refuse_late_checks(self, rows: Iterable[Sequence[tuple[Instruction, list[Value | None]]]]) -> None:
        """Refuse a check behind the first update."""
        updated = False
        for i, row in zip(self.lowered.calls, rows, strict=True):
            if updated and any(instruction.code in CHECKS for instruction, _ in row):
                raise _Other
            updated = updated or any(v.persistable for v in i.changes())

    def _divide(self, values: Sequence[Value]) -> tuple[dict[Value, int], int]:
        """Return the place of each value in the piece of memory, and its bytes: no more than all values at their peak."""
        first, last = self.first, self.last
        sizes = {v: 4 * prod(self._dims(v)) for v in values}
        peak = max((sum(sizes[v] for v in values if first[v] <= index <= last[v]) for index in range(len(self.lowered.calls))), default=0)
        orders: list[list[Value]] = [
            sorted(values, key=lambda v: -sizes[v]),
            sorted(values, key=lambda v: -sizes[v] * (1 + last[v] - first[v])),
            sorted(values, key=lambda v: first[v] - last[v]),
            [*values],
            sorted(values, key=lambda v: -last[v]),
        ]
        draws = Random(0)
        orders += [sorted(values, key=lambda v: -sizes[v] * (0.5 + draws.random())) for _ in range(min(_TRIES, _TRIES * 100 // (1 + len(values) ** 2)))]
        for alignment in _ALIGNMENTS:
            for order in orders:
                offsets: dict[Value, int] = {}
                for v in order:
                    begin = 0
                    for neighbor in sorted((o for o in offsets if first[o] <= last[v] and first[v] <= last[o]), key=offsets.__getitem__):
                        if begin + sizes[v] <= offsets[neighbor]:
                            break
                        begin = max(begin, -(-(offsets[neighbor] + sizes[neighbor]) // alignment) * alignment)
                    if begin + sizes[v] > peak:
                        break
                    offsets[v] = begin
                else:
                    return offsets, max((offsets[v] + sizes[v] for v in values), default=0)
        raise _Other
