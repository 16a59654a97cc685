"""Whole numbers that count the examples of a batch, and the places that they name: a mask read at ``example * length + position`` is its own example's.

Networks traced from other frameworks read masks and positions so, with indices that name every example beside its own number.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, NamedTuple

from foreshape.core.dims import Size, equal, floordiv, less_equal, product
from foreshape.core.spec import INT32, INT64
from foreshape.language.infer.example_states import SHARED, Numbered, PerExample, State
from foreshape.language.operator import computations
from foreshape.language.program.op import Op

_MOVES: Final = (computations.Identity, computations.Reshape, computations.Expansion, computations.Cast, computations.Transposition)
"""Computations that leave their operand's numbers as they are."""

Dims = tuple[Size, ...]


class _Range(NamedTuple):
    """Bounds of the numbers of a value that all batches share."""

    low: Size
    high: Size


class ExampleNumbers:
    """The numbers known on the way through the ops of one block, in order.

    Attributes:
        never: truth values of which none holds.
    """

    def __init__(self, states: dict[str, State], dims: Callable[[Op, str], Dims | None], grows: Callable[[Size], bool]) -> None:
        """Follow numbers beside the states of values, read and never written here.

        Args:
            states: state of each value, by name; others are shared.
            dims: the dims of a value at an op.
            grows: whether a size grows with the examples.
        """
        self._states, self._dims, self._grows = states, dims, grows
        self._ranges: dict[str, _Range] = {}
        self.never: set[str] = set()

    def forget(self) -> None:
        """Forget all: what follows may run several times, or never."""
        self._ranges.clear()
        self.never.clear()

    def note(self, op: Op) -> None:
        """Note the bounds of an op's results, and that older ones of these names are gone."""
        ranges = self._range_after(op)
        for name in op.output_names():
            self._ranges.pop(name, None)
            self.never.discard(name)
        if ranges is not None:
            self._ranges[op.result()] = ranges

    def _range_after(self, op: Op) -> _Range | None:
        computed = None if op.operator is None else op.operator.computes()
        if isinstance(computed, computations.Counting):
            start, end, step = (self._number(op, op.operand(index)) for index in range(3))
            return None if start is None or end is None or step != 1 else _Range(start, end - 1)
        bound = self._ranges.get(op.operand(0))
        if bound is None or _moves(op, computed):
            return bound
        affine = _affine(computed)
        return None if affine is None else _Range(*(number * affine[0] + affine[1] for number in bound))

    def _state(self, name: str) -> State:
        return self._states.get(name, SHARED)

    def _number(self, op: Op, name: str) -> Size | None:
        """Return the number that a value is, if it is known to be a whole one that does not grow."""
        variable = op.block.find(name) if name else None
        value = None if variable is None else variable.spec.value
        if value is None or len(value) != 1 or isinstance(value[0], float):
            return None
        return value[0]

    def range_of(self, op: Op, name: str) -> _Range | None:
        """Return bounds of a value shared by all batches."""
        variable = op.block.find(name) if name else None
        values = None if variable is None else variable.spec.value
        if values and not any(isinstance(value, float) or self._grows(value) for value in values):
            if len(values) == 1:
                return _Range(values[0], values[0])
            integers = [value for value in values if isinstance(value, int)]
            return _Range(min(integers), max(integers)) if len(integers) == len(values) else None
        return self._ranges.get(name) if self._state(name) is SHARED else None

    # --- results

    def counted(self, op: Op) -> dict[str, State] | None:
        """Return the state of numbers that count examples; None for others."""
        if op.operator is None or not isinstance(op.operator.computes(), computations.Counting):
            return None
        start, end, step = (self._number(op, op.operand(index)) for index in range(3))
        dims = self._dims(op, op.result())
        if start is None or end is None or step != 1 or dims is None or self._grows(start) or not self._grows(dims[0]):
            return None
        return {op.result(): Numbered(PerExample(0, 1, dims[0]), 1, start, start)} if equal(end - start, dims[0]) is True else None

    def after(self, op: Op, follow: Callable[[dict[str, State]], State]) -> State | None:
        """Return the state of the first result of an op that reads counted numbers; None if nothing is known of it.

        Args:
            follow: the state of the op's first result, for other states of some operands.
        """
        computed = None if op.operator is None else op.operator.computes()
        if isinstance(computed, (computations.Picking, computations.PlacePicking)):
            return self._picked(op, computed)
        if isinstance(computed, computations.Concat):
            return self._joined(op, computed.axis)
        if isinstance(computed, computations.ChosenElements):
            condition, _, otherwise = (op.operand(index) for index in range(3))
            state = self._state(otherwise)
            alike = condition in self.never and self._dims(op, otherwise) == self._dims(op, op.result())
            return state if alike and isinstance(state, Numbered) else None
        name = next(n for n in op.input_names() if isinstance(self._state(n), Numbered))
        state = self._states[name]
        assert isinstance(state, Numbered)
        if isinstance(computed, computations.ComparedElements):
            bound = self.range_of(op, op.operand(1))
            if computed.how == "less" and name == op.operand(0) and bound is not None and _at_most(bound.high, state.low) and _at_most(0, state.stride):
                self.never.add(op.result())
            return None
        number = self._calculated(op, computed, name, state)
        if number is None or state.column is not None:
            return None
        place = follow({name: state.place})
        return Numbered(place, number.stride, number.low, number.high) if isinstance(place, PerExample) else None

    def _calculated(self, op: Op, computed: object, name: str, state: Numbered) -> Numbered | None:
        """Return the numbers of a result, still at the operand's place."""
        if _moves(op, computed):
            return state if name == op.operand(0) else None
        affine = _affine(computed)
        if affine is not None:
            factor, shift = affine
            return Numbered(state.place, state.stride * factor, state.low * factor + shift, state.high * factor + shift)
        if not isinstance(computed, (computations.Sum, computations.Product)):
            return None
        (operand,) = [op.operand(index) for index in range(2) if op.operand(index) != name] or [""]
        bound = self.range_of(op, operand) if operand else None
        if bound is None:
            return None
        if isinstance(computed, computations.Sum):
            return Numbered(state.place, state.stride, state.low + bound.low, state.high + bound.high)
        if equal(bound.low, bound.high) is not True or not _at_most(0, bound.low):
            return None
        stride, low, high = (product((size, bound.low)) for size in (state.stride, state.low, state.high))
        return Numbered(state.place, stride, low, high)

    def _joined(self, op: Op, axis: int) -> State | None:
        """Return the state of indices with the number of the example in front of others, in the last axis."""
        assert op.operator is not None
        names = op.inputs[op.operator.schema.operands[0].name]
        dims, first = self._dims(op, op.result()), self._state(names[0])
        if dims is None or not isinstance(first, Numbered) or first.column is not None or axis % len(dims) != len(dims) - 1:
            return None
        front = self._dims(op, names[0])
        alone = front is not None and front[-1] == 1 and first.place.axis < len(dims) - 1
        states = [s for n in names[1:] if (s := self._state(n)) is not SHARED]
        have_same_place = all(isinstance(s, PerExample) and _same_place(s, first.place) for s in states)
        return Numbered(first.place, first.stride, first.low, first.high, 0) if alone and have_same_place else None

    def _picked(self, op: Op, computed: computations.Picking | computations.PlacePicking) -> State | None:
        """Return the state of entries at counted numbers, if each is its own example's."""
        source, index = self._state(op.operand(0)), self._state(op.operand(1))
        dims = self._dims(op, op.operand(0))
        if not isinstance(source, PerExample) or not isinstance(index, Numbered) or dims is None or op.operand(2):
            return None
        axis = computed.axis % len(dims) if isinstance(computed, computations.Picking) else 0
        column = None if isinstance(computed, computations.Picking) else 0
        if source.axis != axis or source.outer != 1 or index.place.outer != 1 or index.column != column or equal(source.count, index.place.count) is not True:
            return None
        entries = floordiv(dims[axis], source.count)
        is_multiple = equal(product((entries, source.count)), dims[axis]) is True
        if not is_multiple or equal(entries, index.stride) is not True or not _at_most(0, index.low) or not _at_most(index.high, entries - 1):
            return None
        return PerExample(axis + index.place.axis, 1, source.count)


def _moves(op: Op, computed: object) -> bool:
    """Tell whether an op leaves its operand's numbers as they are; a narrower type would not."""
    operator, result = op.operator, op.block.find(op.result())
    if result is None or result.spec.dtype not in (INT32, INT64):
        return False
    reshapes = operator is not None and bool(operator.schema.results) and operator.schema.results[0].layout == "reshaped"
    return isinstance(computed, _MOVES) or reshapes


def _affine(computed: object) -> tuple[int, int] | None:
    """Return the whole numbers, the first not negative, by which a computation multiplies its operand, and which it adds."""
    if not isinstance(computed, (computations.Scaling, computations.Affine)):
        return None
    factor, shift = computed.by, computed.shift if isinstance(computed, computations.Affine) else 0.0
    return (int(factor), int(shift)) if factor.is_integer() and shift.is_integer() and factor >= 0 and max(factor, abs(shift)) < _EXACT else None


_EXACT: Final = 1 << 24
"""Whole numbers below it are exact in every float."""


def _at_most(a: Size, b: Size) -> bool:
    return less_equal(a, b) is True


def _same_place(a: PerExample, b: PerExample) -> bool:
    return a.axis == b.axis and equal(a.outer, b.outer) is True and equal(a.count, b.count) is True
