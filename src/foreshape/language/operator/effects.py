"""The effects of an operator's kernel on memory, as its results and its computation declare them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from foreshape.language.operator.computations import Computation, Concat, Slicing, Split, Stacking, Transposition, Unstacking
from foreshape.machine.kernels.fused import Effects, Order

if TYPE_CHECKING:
    from foreshape.language.operator.operator import Operator

_Cut: TypeAlias = tuple[Sequence[int], Sequence[int]] | None


def declared_effects(operator: Operator) -> Effects:
    """Return the effects of a kernel with these attribute values."""
    operands, results = {o.name: n for n, o in enumerate(operator.schema.operands)}, operator.schema.results
    views = {n: operands[r.view_of] for n, r in enumerate(results) if r.view_of is not None}
    computation, undone = (operator.computes(), operator.backward_of()) if views else (None, None)
    cut = _cut(computation, undone)
    element = operands.get("Out@GRAD", operands.get("X"))
    return Effects(
        views=views,
        in_place={n: operands[r.updates] for n, r in enumerate(results) if r.updates is not None},
        takes_over=next(((n, operands[r.may_share]) for n, r in enumerate(results) if r.may_share is not None), None),
        layouts={n: r.layout for n, r in enumerate(results) if r.layout != "row"},
        turned=_view_order(computation, undone),
        cut=None if cut is None else tuple(cut[0]),
        dropped=() if cut is None else tuple(cut[1]),
        may_sum=type(operator).forward_class is not None,
        merges_rows=operator.merges_rows,
        elements={n: None if r.name.startswith("Rest") else element for n, r in enumerate(results) if r.name in operator.accumulates},
    )


def _view_order(computation: Computation | None, undone: Computation | None) -> Order | None:
    """Return the axis of its operand for each axis of a transposed view; None for other views."""
    if isinstance(computation, Transposition):
        return tuple(a % len(computation.axes) for a in computation.axes)
    if isinstance(undone, Transposition):
        axes = tuple(a % len(undone.axes) for a in undone.axes)
        return tuple(map(axes.index, range(len(axes))))
    return None


def _cut(computation: Computation | None, undone: Computation | None) -> _Cut:
    """Return the cut axes of a view of a part of its operand, and the dropped ones; None for other views."""
    if isinstance(computation, Slicing):
        return [axis for axis, _, _ in computation.cuts], computation.dropped
    if isinstance(computation, Unstacking):
        return (computation.axis,), (computation.axis,)
    if isinstance(undone, Stacking):
        return (undone.axis,), (undone.axis,)
    part = computation if isinstance(computation, Split) else undone if isinstance(undone, Concat) else None
    return None if part is None else ((part.axis,), ())
