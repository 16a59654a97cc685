"""The axis orders of values in memory, if not their own: the copies of a kernel, and the needless ones."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence

from foreshape.compiler.lowering.call_memory import copies_by_rule, same_size, workspace_of
from foreshape.compiler.lowering.kernel_calls import KernelCall, Value, values_of
from foreshape.core.dims import Size, evaluate, maximum, product, symbols_of
from foreshape.core.spec import FP32, FP64
from foreshape.machine.kernels.fused import Effects, Order
from foreshape.machine.kernels.packed import CHANNELS_LAST

_PRIME = 1009


class AxisOrders:
    """The values of a step that may not be contiguous."""

    __slots__ = ("gapped", "repeated", "strided")

    def __init__(self) -> None:
        self.strided: dict[Value, Order | None] = {}
        """These values, with the order of their axes; None if unknown."""
        self.gapped: set[Value] = set()
        """The ones of a known order that are parts of larger values, or repeated."""
        self.repeated: set[Value] = set()
        """The ones of these whose elements are repeated along an axis. Kernels that take gaps between rows copy them all the same."""

    def view(self, i: KernelCall, source: Value, value: Value, layout: str | None) -> None:
        """Take in a view."""
        if source not in self.strided and layout in ("reshaped", "same"):
            return
        if layout == "reshaped":
            self.strided[value] = self.reshaped(source, value)
            return
        order = self.order(source) or ()
        axes = range(len(order)) if layout == "same" else _axes(i.effects, len(order))
        rank = _rank(value)
        if axes is None and i.effects.may_sum and rank and source not in self.strided:  # a sum's gradient, repeated along axes, which keep their order
            self.gapped.add(value)
            self.repeated.add(value)
            self.strided[value] = tuple(range(rank))
            return
        if not order or axes is None or len(axes) != _rank(value) or order[-1] not in axes:
            self.strided[value] = None
            return
        axis_order = tuple(axes.index(a) for a in order if a in axes)
        if source in self.gapped or not _is_whole(i, order):
            self.gapped.add(value)
            self.strided[value] = axis_order
        if source in self.repeated:
            self.repeated.add(value)
        self._set_order(value, axis_order)

    def reshaped(self, source: Value, value: Value) -> Order | None:
        """Return the order of the axes of a view with other dims, with axes taken apart or neighbours in memory joined; () of a copy; None if unknown."""
        order = self.order(source)
        if order is None or source in self.gapped or source.spec is None or value.spec is None:
            return None
        groups = _groups(source.spec.known_dims, value.spec.known_dims)
        if groups is None:
            return None
        place = {axis: index for index, axis in enumerate(order)}
        if any(place[b] != place[a] + 1 for old, _ in groups for a, b in itertools.pairwise(old)):
            return () if all(d != 1 for d in source.spec.known_dims) else None
        return tuple(axis for _, new in sorted((place[old[0]] if old else len(order), new) for old, new in groups) for axis in new)

    def same(self, i: KernelCall, value: Value) -> None:
        """Take in a result in memory of its own that lies as its operands do: those of its dims, if they lie alike. Operands that are copied say nothing."""
        settled = {*i.effects.contiguous, *i.effects.axis_order}
        if not any(v in self.strided for n, argument in enumerate(i.arguments) if n not in settled for v in values_of([argument])):
            return
        if all((order := self.order(v)) is not None and order == tuple(range(len(order))) for v in i.reads()):
            return  # parts of values, too, are made whole in this order
        dims = value.spec.dims if value.spec is not None else None
        if dims is not None and len(dims) < 2:
            return
        like = [v for v in i.reads() if v.spec is not None and v.spec.dims == dims] if dims is not None else []
        orders = {self.order(v) for v in like}
        if len(orders) == 1 and all(v in like or v not in self.strided for v in i.reads()):
            self._set_order(value, orders.pop())
        else:
            self.strided[value] = None

    def results(self, i: KernelCall) -> None:
        """Take in the results of a call."""
        if i.innermost is not None:
            self._images(i, self._innermost(i))
        for number, order in i.effects.result_order.items():
            value = i.results[number]
            if isinstance(value, Value):
                self._set_order(value, order)

    def needs(self, i: KernelCall, requested: Sequence[bool], rows: Mapping[Value, Size], nbytes: Callable[[Value], Size]) -> tuple[Size, Size]:
        """Return the workspace of a call, and the copies of its arguments in their layouts, which are a part of it."""
        if i.innermost is not None and (innermost := self._innermost(i)) is not False:
            return self._of_innermost(i, innermost, nbytes)
        copied = self._copied(i, nbytes) if self.strided or i.effects.axis_order else 0
        strided = self._copied_by_rule(i)
        if not copies_by_rule(i, strided):
            return workspace_of(i, requested, (), rows) + copied, copied
        needs = workspace_of(i, requested, strided, rows)
        return needs + copied, copied + needs - workspace_of(i, requested, (), rows)

    def _copied_by_rule(self, i: KernelCall) -> Collection[Value]:
        """Return the values that may not be contiguous, without the ones that a batched product reads as they lie: whole, with their matrices transposed."""
        operator, read = i.op.operator, i.reads()
        if operator is None or not operator.reads_transposed or not all(_is_batched(v) for v in read):
            return self.strided
        return [v for v in read if v in self.strided and ((order := self.order(v)) is None or v in self.gapped or order[:-2] != tuple(range(len(order) - 2)))]

    def _copied(self, i: KernelCall, nbytes: Callable[[Value], Size]) -> Size:
        total: Size = 0
        contiguous, axis_order, gaps = i.effects.contiguous, i.effects.axis_order, i.effects.gap_bytes
        for number, value in [(n, v) for n in dict.fromkeys((*contiguous, *axis_order)) for v in values_of([i.arguments[n]])]:
            if number in contiguous and value not in self.strided:
                continue
            order = self.order(value)
            required_order = axis_order.get(number, tuple(range(len(order or ()))))
            if order is None or order[len(order) - len(required_order) :] != required_order:
                total = total + nbytes(value)
            elif value in self.gapped:
                total = total + (gaps[number] if number in gaps and value not in self.repeated else nbytes(value))
        return total

    def _innermost(self, i: KernelCall) -> bool | None:
        """Return True if torch computes a convolution with the channels innermost: its images or its filters lie so; None if that is unknown."""
        orders = [self.order(v) for v in values_of(i.arguments[:2])]
        return True if CHANNELS_LAST in orders else None if None in orders else False

    def _of_innermost(self, i: KernelCall, is_certain: bool | None, nbytes: Callable[[Value], Size]) -> tuple[Size, Size]:
        """Return the workspace of a convolution with the channels innermost, or maybe so, and the copies of its images, which are a part of it."""
        assert i.innermost is not None and i.workspace is not None
        images = [v for n in i.effects.contiguous for v in values_of([i.arguments[n]])]
        copied: Size = sum((nbytes(v) for v in images if self.order(v) != CHANNELS_LAST or v in self.gapped), start=0)
        if is_certain:
            return i.innermost + copied, copied
        plain = self._copied(i, nbytes)
        return maximum(i.innermost + copied, i.workspace + plain), maximum(copied, plain)

    def _images(self, i: KernelCall, innermost: bool | None) -> None:
        """Take in the results of a convolution: their channels lie as those of its images; filters of one channel or place are contiguous either way."""
        for value in values_of(i.results) if innermost is not False else ():
            dims = value.spec.dims if value.spec is not None else None
            if dims is not None and len(dims) == 4 and dims[1] != 1 and tuple(dims[2:]) != (1, 1):
                self.strided[value] = CHANNELS_LAST if innermost else None

    def order(self, value: Value) -> Order | None:
        """Return the order of a value's axes in memory; None if unknown."""
        if value in self.strided:
            return self.strided[value]
        rank = _rank(value)
        return None if rank is None else tuple(range(rank))

    def _set_order(self, value: Value, order: Order | None) -> None:
        if order is None or any(a != index for index, a in enumerate(order)):
            self.strided[value] = order
        else:
            self.strided.pop(value, None)


def _is_batched(value: Value) -> bool:
    """Tell whether a value is matrices in a batch, in the precision of products without copies."""
    spec = value.spec
    return spec is not None and (spec.rank or 0) > 2 and spec.dtype in (FP32, FP64)


def _groups(old: Sequence[Size], new: Sequence[Size]) -> list[tuple[list[int], list[int]]] | None:
    """Return axes of ``old`` and of ``new`` with as many elements together, as few as possible at once; None if they cannot be told."""
    names = sorted({n for d in (*old, *new) for n in symbols_of(d)})
    values = {n: _PRIME + 2 * positions for positions, n in enumerate(names)}  # numbers that show what is equal; it is proved below
    counts = [[evaluate(d, values) for d in dims] for dims in (old, new)]
    if any(n < 1 for row in counts for n in row):
        return None
    out: list[tuple[list[int], list[int]]] = []
    positions = [0, 0]
    while positions != [len(old), len(new)]:
        axes: list[list[int]] = [[], []]
        totals = [1, 1]
        side = 0 if positions[0] < len(old) else 1
        while totals[0] != totals[1] or not (axes[0] or axes[1]):
            if positions[side] == len(counts[side]):
                return None
            totals[side] *= counts[side][positions[side]]
            axes[side].append(positions[side])
            positions[side] += 1
            side = int(totals[0] > totals[1])
        if not same_size(product([old[k] for k in axes[0]]), product([new[k] for k in axes[1]])):
            return None
        out.append((axes[0], axes[1]))
    return out


def _axes(effects: Effects, rank: int) -> Sequence[int] | None:
    """Return the axis of its operand, of this rank, for each axis of a transposed view or of a part; None for other views."""
    if effects.turned is not None and rank:
        return effects.turned
    return None if effects.cut is None else [a for a in range(rank) if a not in {g % rank for g in effects.dropped}]


def _is_whole(i: KernelCall, order: Order) -> bool:
    """Return True if a view has no gaps but its operand's, in this order of axes. So it is no part, or one along the outermost axis."""
    cut = i.effects.cut
    return cut is None or (not i.op.input("AxisTensor") and all(a % len(order) == order[0] for a in cut))


def _rank(value: Value) -> int | None:
    spec = value.spec
    return None if spec is None or spec.dims is None else len(spec.dims)
