"""In which order the axes of values lie in memory, where that is not their own: what a kernel copies first, and what it need not."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.lowering.instruction import Instruction, Value
from foreshape.operator.fields import Layout

Order = tuple[int, ...]
"""The axes of a value, outermost first, as they lie in memory without gaps."""


class Layouts:
    """The values of a step that need not lie in a row."""

    __slots__ = ("strided",)

    def __init__(self) -> None:
        self.strided: dict[Value, Order | None] = {}
        """Those values, with the order in which their axes lie; None where that is not known."""

    def view(self, i: Instruction, source: Value, value: Value, layout: Layout) -> None:
        """Take in a view."""
        order = self.order(source)
        if layout == "strided":
            moved = _moved_axes(i)
            self._lies(value, None if order is None or moved is None or len(order) != len(moved) else tuple(moved.index(a) for a in order))
        elif layout == "same" and source in self.strided:
            self.strided[value] = order if order is not None and _rank(value) == len(order) else None

    def rewritten(self, i: Instruction) -> None:
        """Take in what a rewritten instruction makes."""
        for number, order in i.lies.items():
            value = i.results[number]
            if isinstance(value, Value):
                self._lies(value, order)

    def copied(self, i: Instruction) -> list[Value]:
        """The arguments that a rewritten instruction copies, as they lie."""
        out = [v for number in i.in_rows if isinstance(v := i.arguments[number], Value) and v in self.strided]
        for number, wanted in i.in_order.items():
            value = i.arguments[number]
            order = self.order(value) if isinstance(value, Value) else None
            if isinstance(value, Value) and (order is None or (wanted and order[-len(wanted) :] != wanted)):
                out.append(value)
        return out

    def order(self, value: Value) -> Order | None:
        """How the axes of a value lie; None where that is not known."""
        if value in self.strided:
            return self.strided[value]
        rank = _rank(value)
        return None if rank is None else tuple(range(rank))

    def _lies(self, value: Value, order: Order | None) -> None:
        if order is None or any(a != at for at, a in enumerate(order)):
            self.strided[value] = order


def _moved_axes(i: Instruction) -> Sequence[int] | None:
    """Which axis of its operand each axis of a transposed view is; None of other views."""
    if not i.op.type.startswith("transpose2"):
        return None
    axes: tuple[int, ...] = getattr(i.op.operator, "axis", ())
    axes = tuple(a % len(axes) for a in axes)
    return axes if i.op.type == "transpose2" else tuple(axes.index(a) for a in range(len(axes)))


def _rank(value: Value) -> int | None:
    spec = value.spec
    return None if spec is None or spec.dims is None else len(spec.dims)
