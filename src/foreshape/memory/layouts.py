"""The axis orders of values in memory, if not their own: the copies of a kernel, and the needless ones."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foreshape.dims import Size
from foreshape.lowering.kernel_calls import FusedCall, KernelCall, Value
from foreshape.operator.computations import Concat, Slicing, Split, Stacking, Transposition, Unstacking
from foreshape.operator.fields import Layout

Order = tuple[int, ...]
"""The axes of a value, outermost first, as they lie in memory."""


class AxisOrders:
    """The values of a step that may not be contiguous."""

    __slots__ = ("gapped", "strided")

    def __init__(self) -> None:
        self.strided: dict[Value, Order | None] = {}
        """These values, with the order of their axes; None if unknown."""
        self.gapped: set[Value] = set()
        """The ones of a known order that are parts of larger values."""

    def view(self, i: KernelCall, source: Value, value: Value, layout: Layout) -> None:
        """Take in a view."""
        if layout == "reshaped" or (layout == "same" and source not in self.strided):
            return
        order = self.order(source) or ()
        axes = range(len(order)) if layout == "same" else _axes(i, len(order))
        if not order or axes is None or len(axes) != _rank(value) or order[-1] not in axes:
            self.strided[value] = None
            return
        axis_order = tuple(axes.index(a) for a in order if a in axes)
        if source in self.gapped or not _is_whole(i, order):
            self.gapped.add(value)
            self.strided[value] = axis_order
        self._set_order(value, axis_order)

    def rewritten(self, i: FusedCall) -> None:
        """Take in the results of a fused call."""
        for number, order in i.effects.result_order.items():
            value = i.results[number]
            if isinstance(value, Value):
                self._set_order(value, order)

    def copied(self, i: FusedCall, nbytes: Callable[[Value], Size]) -> Size:
        """Return the bytes of the copies that a fused call makes of its arguments in their layouts."""
        total: Size = 0
        contiguous, axis_order, gaps = i.effects.contiguous, i.effects.axis_order, i.effects.gap_bytes
        for number in dict.fromkeys((*contiguous, *axis_order)):
            value = i.arguments[number]
            if not isinstance(value, Value) or (number in contiguous and value not in self.strided):
                continue
            order = self.order(value)
            wanted = axis_order.get(number, tuple(range(len(order or ()))))
            if order is None or order[len(order) - len(wanted) :] != wanted:
                total = total + nbytes(value)
            elif value in self.gapped:
                total = total + (gaps[number] if number in gaps else nbytes(value))
        return total

    def order(self, value: Value) -> Order | None:
        """Return the order of a value's axes in memory; None if unknown."""
        if value in self.strided:
            return self.strided[value]
        rank = _rank(value)
        return None if rank is None else tuple(range(rank))

    def _set_order(self, value: Value, order: Order | None) -> None:
        if order is None or any(a != at for at, a in enumerate(order)):
            self.strided[value] = order


def _axes(i: KernelCall, rank: int) -> Sequence[int] | None:
    """Return the axis of its operand, of this rank, for each axis of a transposed view or of a part; None for other views."""
    operator = i.op.operator
    made, undone = (operator.computes(), operator.backward_of()) if operator is not None else (None, None)
    if isinstance(made, Transposition) and rank:
        return tuple(a % rank for a in made.axes)
    if isinstance(undone, Transposition) and rank:
        axes = tuple(a % rank for a in undone.axes)
        return tuple(axes.index(a) for a in range(len(axes)))
    cut = _cut(i)
    return None if cut is None else [a for a in range(rank) if a not in {g % rank for g in cut[1]}]


def _cut(i: KernelCall) -> tuple[Sequence[int], Sequence[int]] | None:
    """Return the axes of a view that is a part of its operand, with gaps between its rows, and its dropped axes. A part along the outermost axis has no gaps.
    None for other views.
    """
    operator = i.op.operator
    made, undone = (operator.computes(), operator.backward_of()) if operator is not None else (None, None)
    if isinstance(made, Slicing):
        return [axis for axis, _, _ in made.cuts], made.dropped
    if isinstance(made, Unstacking):
        return (made.axis,), (made.axis,)
    if isinstance(undone, Stacking):
        return (undone.axis,), (undone.axis,)
    part = made if isinstance(made, Split) else undone if isinstance(undone, Concat) else None
    return None if part is None else ((part.axis,), ())


def _is_whole(i: KernelCall, order: Order) -> bool:
    """Return True if a view has no gaps but its operand's, in this order of axes. So it is no part, or one along the outermost axis."""
    cut = _cut(i)
    return cut is None or (not i.op.input("AxisTensor") and all(a % len(order) == order[0] for a in cut[0]))


def _rank(value: Value) -> int | None:
    spec = value.spec
    return None if spec is None or spec.dims is None else len(spec.dims)
