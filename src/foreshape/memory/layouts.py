"""The axis orders of values in memory, if not their own: the copies of a kernel, and the needless ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from foreshape.dims import Size
from foreshape.kernels.fused import Effects, Order
from foreshape.lowering.call_memory import copies_by_rule, workspace_of
from foreshape.lowering.kernel_calls import KernelCall, Value, values_of


class AxisOrders:
    """The values of a step that may not be contiguous."""

    __slots__ = ("gapped", "strided")

    def __init__(self) -> None:
        self.strided: dict[Value, Order | None] = {}
        """These values, with the order of their axes; None if unknown."""
        self.gapped: set[Value] = set()
        """The ones of a known order that are parts of larger values."""

    def view(self, i: KernelCall, source: Value, value: Value, layout: str | None) -> None:
        """Take in a view."""
        if layout == "reshaped" or (layout == "same" and source not in self.strided):
            return
        order = self.order(source) or ()
        axes = range(len(order)) if layout == "same" else _axes(i.effects, len(order))
        if not order or axes is None or len(axes) != _rank(value) or order[-1] not in axes:
            self.strided[value] = None
            return
        axis_order = tuple(axes.index(a) for a in order if a in axes)
        if source in self.gapped or not _is_whole(i, order):
            self.gapped.add(value)
            self.strided[value] = axis_order
        self._set_order(value, axis_order)

    def results(self, i: KernelCall) -> None:
        """Take in the results of a call."""
        for number, order in i.effects.result_order.items():
            value = i.results[number]
            if isinstance(value, Value):
                self._set_order(value, order)

    def needs(self, i: KernelCall, requested: Sequence[bool], rows: Mapping[Value, Size], nbytes: Callable[[Value], Size]) -> tuple[Size, Size]:
        """Return the workspace of a call, and the copies of its arguments in their layouts, which are a part of it."""
        copied = self._copied(i, nbytes) if self.strided or i.effects.axis_order else 0
        if not copies_by_rule(i, self.strided):
            return workspace_of(i, requested, (), rows) + copied, copied
        needs = workspace_of(i, requested, self.strided, rows)
        return needs + copied, copied + needs - workspace_of(i, requested, (), rows)

    def _copied(self, i: KernelCall, nbytes: Callable[[Value], Size]) -> Size:
        total: Size = 0
        contiguous, axis_order, gaps = i.effects.contiguous, i.effects.axis_order, i.effects.gap_bytes
        for number, value in [(n, v) for n in dict.fromkeys((*contiguous, *axis_order)) for v in values_of([i.arguments[n]])]:
            if number in contiguous and value not in self.strided:
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


def _axes(of: Effects, rank: int) -> Sequence[int] | None:
    """Return the axis of its operand, of this rank, for each axis of a transposed view or of a part; None for other views."""
    if of.turned is not None and rank:
        return of.turned
    return None if of.cut is None else [a for a in range(rank) if a not in {g % rank for g in of.dropped}]


def _is_whole(i: KernelCall, order: Order) -> bool:
    """Return True if a view has no gaps but its operand's, in this order of axes. So it is no part, or one along the outermost axis."""
    cut = i.effects.cut
    return cut is None or (not i.op.input("AxisTensor") and all(a % len(order) == order[0] for a in cut))


def _rank(value: Value) -> int | None:
    spec = value.spec
    return None if spec is None or spec.dims is None else len(spec.dims)
