"""Traits of operators: the relation of results to operands, for passes to divide a program, plan it, or draw it.

A pass does not know operators by their types. It asks each for its computation (`foreshape.language.operator.computations`), and for traits open to any
operator: `Operator.per_element`, `Operator.sharding_rule`, `Operator.linear`, `Operator.merges_rows`, `Operator.totals`. The tests of all
operators hold each to its traits, by the numbers of its samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final, cast

from foreshape.core.data_class import data_class
from foreshape.core.spec import LOD_TENSOR, Spec
from foreshape.language.operator import computations as c
from foreshape.language.operator.byte_computations import Dequantization, Observed, Quantization
from foreshape.language.operator.computation import Computation

if TYPE_CHECKING:
    from foreshape.language.operator.operator import Operator

WHOLE: Final = ""
"""The name of an axis needed as a whole."""


@data_class(frozen=True)
class ShardingRule:
    """The relation of results' axes to operands' axes: slot -> a name for each axis, of a list for each axis of any entry.

    Along axes of one name, operands can be cut into equal parts. Each part gives its part of the results, whatever the other parts are. An operand
    without the name is read by every part. Axes named `WHOLE`, and slots missing here, cannot be cut.
    """

    operands: Mapping[str, tuple[str, ...]]
    results: Mapping[str, tuple[str, ...]]
    summed: tuple[str, ...] = ()
    """Names absent from results: the results of the parts along them add up to the result."""


def lined_up(operands: Mapping[str, Spec], results: Iterable[str], axis: int = -1) -> ShardingRule | None:
    """Return the axes of broadcast operands, and of results of their common shape; None if some dims are unknown.

    Args:
        axis: the place of dim 0 of an operand with fewer dims; -1 lines up the last dims.
    """
    if any(s.dims is None for s in operands.values()):
        return None
    rank = max((s.rank for s in operands.values()), default=0)
    names = axis_names(rank)
    axes: dict[str, tuple[str, ...]] = {}
    for slot, spec in operands.items():
        first = 0 if spec.rank == rank else rank - spec.rank if axis == -1 else axis
        axes[slot] = tuple(WHOLE if d == 1 else names[first + index] for index, d in enumerate(spec.known_dims))
    return ShardingRule(axes, dict.fromkeys(results, names))


def axis_names(rank: int, undivided: Iterable[int] = ()) -> tuple[str, ...]:
    """Return a name for each axis, `WHOLE` for those needed as a whole, possibly negative."""
    needed = {a % rank if rank else a for a in undivided}
    return tuple(WHOLE if index in needed else str(index) for index in range(rank))


def rule_along(specs: Mapping[str, Spec], results: Iterable[str], axes: Iterable[int], drops: bool = False) -> ShardingRule | None:
    """Return the rule of an operator along some axes: all others stand for themselves, in operands and results of one rank.

    Args:
        drops: the results have no such axes.
    """
    ranks = {None if s.dims is None else s.rank for s in specs.values()}
    (rank,) = ranks if len(ranks) == 1 else (None,)
    if rank is None:
        return None
    names = axis_names(rank, axes)
    left = tuple([n for n in names if n != WHOLE]) if drops else names
    return ShardingRule(dict.fromkeys(specs, names), dict.fromkeys(results, left))


def usual_rule(operator: Operator, specs: Iterable[Any]) -> ShardingRule | None:
    """Return the rule of an elementwise operator, of one along an axis, or of one with a computation; None for others.

    Args:
        specs: the arguments of its shape rule: specs, None for an absent operand, tuples for lists.
    """
    present_specs: dict[str, Spec] = {}
    for operand, spec in zip(operator.schema.operands, specs, strict=True):
        entries: tuple[Any, ...] = cast("tuple[Any, ...]", spec) if isinstance(spec, tuple) else (spec,)
        first = entries[0] if entries else None
        if isinstance(first, Spec):
            if any(s.kind is not LOD_TENSOR or s.dims is None or s.rank != first.rank for s in entries):
                return None
            present_specs[operand.name] = first
    results = [r.name for r in operator.schema.results]
    if operator.per_element:
        if operator.forward_class is not None and len({s.dims for s in present_specs.values()}) > 1:  # a summed gradient of a broadcast operand
            return None
        return lined_up(present_specs, results, getattr(operator, "axis", -1))
    if operator.works_along:
        axes: int | tuple[int, ...] = getattr(operator, operator.works_along)
        return rule_along(present_specs, results, (axes,) if isinstance(axes, int) else axes)
    computed = operator.computation
    if not present_specs or any(s.dims is None for s in present_specs.values()) or computed is None or len(present_specs) > computed.operands:
        return None
    slots = [o.name for o in operator.schema.operands]
    return _of_computation(computed, [present_specs.get(n) for n in slots], slots, results)


def _of_computation(computed: Computation, specs: list[Spec | None], slots: list[str], results: list[str]) -> ShardingRule | None:
    """Return the rule of a computation of operands with known dims, absent ones None."""
    x, y = specs[0], specs[1] if len(specs) > 1 else None
    if x is None:
        return None
    names, present = axis_names(x.rank), [n for n, s in zip(slots, specs, strict=True) if s is not None]
    first, out = slots[0], results[0]
    match computed:
        case c.Transposition(axes=axes):
            return ShardingRule({first: names}, {out: tuple([names[a] for a in axes[: len(names)]])})
        case c.MatrixProduct(x_transposed=left, y_transposed=right) if y is not None:
            return of_product({first: x, slots[1]: y}, out, left, right)
        case c.FlattenedProduct(x_rows=rows, y_rows=inner) if y is not None:
            columns = tuple([f"columns{place}" for place in range(y.rank - inner)])
            summed = ("k",) if x.rank - rows == inner == 1 else ()
            middle = summed or (WHOLE,)
            return ShardingRule({first: names[:rows] + middle * (x.rank - rows), slots[1]: middle * inner + columns}, {out: names[:rows] + columns}, summed)
        case c.Softmax(axis=axis) | c.Concat(axis=axis) | c.Split(axis=axis) if x.rank:
            left = axis_names(x.rank, (axis,))
            return ShardingRule({first: left}, {out: left})
        case c.Stacking(axis=axis):
            place = axis % (x.rank + 1)
            return ShardingRule({first: names}, {out: (*names[:place], WHOLE, *names[place:])})
        case c.Unstacking(axis=axis):
            return rule_along({first: x}, [out], (axis,), drops=True)
        case c.Picking(axis=axis) if y is not None and x.rank:
            place, ids = axis % x.rank, ("ids", *(WHOLE,) * (y.rank - 1))[: y.rank]  # a column of numbers is read as a row
            return ShardingRule({first: axis_names(x.rank, (place,)), slots[1]: ids}, {out: (*names[:place], *ids[:1], *names[place + 1 :])})
        case c.Triangle():
            return rule_along({first: x}, [out], (-2, -1))
        case c.Reduction(how=how, axes=axes, keeps=keeps):
            reduced = {a % x.rank for a in axes} if axes is not None and x.rank else set(range(x.rank))
            adds = how == "SUM"
            remaining = tuple([WHOLE if place in reduced else n for place, n in enumerate(names) if keeps or place not in reduced])
            return ShardingRule(
                {first: names if adds else axis_names(x.rank, reduced)}, {out: remaining}, tuple([names[a] for a in sorted(reduced)]) if adds else ()
            )
        case c.LayerNorm(begin=begin):
            rows = axis_names(x.rank, range(begin, x.rank))
            weights = {n: (WHOLE,) * s.rank for n, s in zip(slots[1:], specs[1:], strict=True) if s is not None}
            return ShardingRule({first: rows, **weights}, {out: rows})
        case c.FrozenBatchNorm() if x.rank > 1:
            return ShardingRule({first: names, **dict.fromkeys(present[1:], (names[1],))}, {out: names})
        case Quantization(axis=axis) | Dequantization(axis=axis):
            return ShardingRule(
                {first: names, **{n: (names[axis] if axis >= 0 else WHOLE,) * (specs[slots.index(n)] or x).rank for n in present[1:]}}, {out: names}
            )
        case Observed():
            return ShardingRule({first: names}, {out: names})
        case _:
            return None


def of_product(operands: Mapping[str, Spec], result: str, x_transposed: bool, y_transposed: bool) -> ShardingRule | None:
    """Return the rule of a product of matrices in the last two dims of two operands; the dims before are broadcast."""
    (x, first), (y, second) = operands.items()
    a, b = first.dims, second.dims
    if a is None or b is None or len(a) < 2 or len(b) < 2:
        return None
    batch = lined_up({x: first.with_dims(a[:-2]), y: second.with_dims(b[:-2])}, [result])
    if batch is None:
        return None
    left, right = ("k", "rows") if x_transposed else ("rows", "k"), ("columns", "k") if y_transposed else ("k", "columns")
    return ShardingRule({x: (*batch.operands[x], *left), y: (*batch.operands[y], *right)}, {result: (*batch.results[result], "rows", "columns")}, ("k",))


_OPERATORS: Final = "foreshape.language.ops."


@cache
def family_of(cls: type[Operator]) -> str:
    """Return the sort of an operator: declared by it or its forward operator, or by the folder of it or its base."""
    operator = cls.forward_class or cls
    modules = [base.__module__.removeprefix(_OPERATORS) for base in operator.__mro__ if base.__module__.startswith(_OPERATORS)]
    return operator.family or (modules[0].split(".")[0] if modules else "")


@cache
def is_update(cls: type[Operator]) -> bool:
    """Tell whether an operator changes a parameter by its gradient, as optimizers' operators."""
    operands = {o.name: o for o in cls.schema.operands}
    has_slots = "Grad" in operands and "Param" in operands and not operands["Param"].many
    return has_slots and any(r.updates == "Param" for r in cls.schema.results)


@cache
def is_usual_gradient(operator: type[Operator], computation: type[Computation]) -> bool:
    """Tell whether a gradient operator has the slots expected of a computation's gradient. One with a class of its own says so itself."""
    forward = operator.forward_class
    if forward is None:
        return True
    names = {f"X{index}": o.name for index, o in enumerate(forward.schema.operands)} | {f"Out{index}": r.name for index, r in enumerate(forward.schema.results)}
    expected = [
        [names.get(slot.removesuffix("@GRAD"), "") + slot.removeprefix(slot.removesuffix("@GRAD")) for slot in slots]
        for slots in (computation.inputs, computation.gives)
    ]
    besides = {names.get(slot) for slot in computation.besides}
    declared = [[s.name for s in slots if s.name.removesuffix("@GRAD") not in besides] for slots in (operator.schema.operands, operator.schema.results)]
    return expected == declared
