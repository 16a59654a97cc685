"""Traits of operators: the relation of results to operands, for passes to divide a program, plan it, or draw it.

A pass does not know operators by their types. It asks each for its computation (`foreshape.operator.computations`), and for traits open to any
operator: `Operator.per_element`, `Operator.sharding_rule`, `Operator.linear`, `Operator.merges_rows`, `Operator.totals`. The tests of all
operators hold each to its traits, by the numbers of its samples.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Any, Final

from foreshape.data_class import data_class
from foreshape.dims import equal
from foreshape.operator.computations import Computation, MatrixProduct, Transposition
from foreshape.spec import LOD_TENSOR, Spec

if TYPE_CHECKING:
    from foreshape.operator.operator import Operator

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
    names = tuple(map(str, range(rank)))
    given: dict[str, tuple[str, ...]] = {}
    for slot, spec in operands.items():
        first = 0 if spec.rank == rank else rank - spec.rank if axis == -1 else axis
        given[slot] = tuple(WHOLE if d == 1 else names[first + at] for at, d in enumerate(spec.known_dims))
    return ShardingRule(given, dict.fromkeys(results, names))


def usual_rule(operator: Operator, specs: Iterable[Any]) -> ShardingRule | None:
    """Return the rule of an elementwise operator, or of one with a computation; None for others.

    Args:
        specs: the arguments of its shape rule: specs, None for an absent operand, tuples for lists.
    """
    given: dict[str, Spec] = {}
    for operand, spec in zip(operator.schema.operands, specs, strict=True):
        one = spec[0] if isinstance(spec, tuple) and spec else spec  # pyright: ignore[reportUnknownVariableType]
        if isinstance(one, Spec):
            if one.kind is not LOD_TENSOR:
                return None
            given[operand.name] = one
    results = [r.name for r in operator.schema.results]
    if operator.per_element:
        if operator.forward_class is not None and len({s.dims for s in given.values()}) > 1:  # a summed gradient of a broadcast operand
            return None
        return lined_up(given, results, getattr(operator, "axis", -1))
    computed, first = operator.computes(), next(iter(given.values()), None)
    if first is None or first.dims is None or computed is None or len(given) > computed.operands:
        return None
    names = tuple(map(str, range(first.rank)))
    if isinstance(computed, Transposition):
        return ShardingRule({operator.schema.operands[0].name: names}, {results[0]: tuple([names[a] for a in computed.axes[: len(names)]])})
    return of_product(given, results[0], computed.x_transposed, computed.y_transposed) if isinstance(computed, MatrixProduct) else None


def of_product(operands: Mapping[str, Spec], result: str, x_transposed: bool, y_transposed: bool) -> ShardingRule | None:
    """Return the rule of a product of matrices in the last two dims of two operands, with equal batch dims in both."""
    (x, first), (y, second) = operands.items()
    a, b = first.dims, second.dims
    if a is None or b is None or len(a) != len(b) or len(a) < 2 or not all(equal(m, n) for m, n in zip(a[:-2], b[:-2], strict=True)):
        return None
    batch = tuple(map(str, range(len(a) - 2)))
    left, right = ("k", "rows") if x_transposed else ("rows", "k"), ("columns", "k") if y_transposed else ("k", "columns")
    return ShardingRule({x: (*batch, *left), y: (*batch, *right)}, {result: (*batch, "rows", "columns")}, ("k",))


@cache
def family_of(cls: type[Operator]) -> str:
    """Return the sort of an operator: declared by it or its forward operator, or by the folder of it or its base."""
    of = cls.forward_class or cls
    return of.family or next((base.__module__.split(".")[2] for base in of.__mro__ if base.__module__.startswith("foreshape.ops.")), "")


@cache
def is_update(cls: type[Operator]) -> bool:
    """Tell whether an operator changes a parameter by its gradient, as optimizers' operators."""
    of = {o.name: o for o in cls.schema.operands}
    named = "Grad" in of and "Param" in of and not of["Param"].many
    return named and any(r.updates == "Param" for r in cls.schema.results)


@cache
def is_usual_gradient(operator: type[Operator], computation: type[Computation]) -> bool:
    """Tell whether a gradient operator has the slots expected of a computation's gradient. One with a class of its own says so itself."""
    forward = operator.forward_class
    if forward is None:
        return True
    names = {f"X{at}": o.name for at, o in enumerate(forward.schema.operands)} | {f"Out{at}": r.name for at, r in enumerate(forward.schema.results)}
    wanted = [
        [names.get(slot.removesuffix("@GRAD"), "") + slot.removeprefix(slot.removesuffix("@GRAD")) for slot in slots]
        for slots in (computation.inputs, computation.gives)
    ]
    besides = {names.get(slot) for slot in computation.besides}
    found = [[s.name for s in slots if s.name.removesuffix("@GRAD") not in besides] for slots in (operator.schema.operands, operator.schema.results)]
    return wanted == found
