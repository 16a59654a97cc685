"""The requirements of shape rules. "No" is an error now; "it depends" is a guard for the fed values.

A rule raises `RuleError` (through these functions) in terms of its slots; the infer room adds the variables, their dims and
the user's lines.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from typing import Any, NoReturn

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, bounds, broadcast, broadcasts, caps, equal, is_symbol, less_equal, product, substitute, symbol, symbols_of
from foreshape.errors import DescriptionError, ShapeError

PLACEHOLDER = "?"
"""The first character of the symbols made by `unknown_size`."""


class RuleError(Exception):
    """The finding of a rule: a sentence, and for each side the slot, its position in the slot and the axis concerned."""

    def __init__(self, requirement: str, sides: Mapping[str, int | None], error: type[DescriptionError] = ShapeError) -> None:
        super().__init__(requirement)
        self.requirement, self.sides, self.error = requirement, dict(sides), error


@data_class(frozen=True)
class Condition:
    """A guard without its place: ``left relation right`` must hold for the fed values.

    Relations: ``==``, ``<=``, ``divides``, ``broadcasts with`` (equal, or one of them is 1) and ``broadcasts to`` (equal, or the left is 1).
    """

    left: Size
    relation: str
    right: Size
    requirement: str

    def answer(self, values: Mapping[str, Size]) -> bool | None:
        """Tell whether it holds for these values of the symbols: True, False, or None if it depends on other symbols."""
        return self.of(substitute(self.left, values), substitute(self.right, values))

    def of(self, left: Size, right: Size) -> bool | None:
        """Tell whether it holds between these sizes in the place of its own, as `answer`."""
        if self.relation == "==":
            return equal(left, right)
        if self.relation == "<=":
            return less_equal(left, right)
        if self.relation.startswith("broadcasts"):
            return broadcasts(left, right) if self.relation == "broadcasts with" else _either(equal(left, right), equal(left, 1))
        if isinstance(left, int) and left == 0:
            return False
        remainder = right % left
        low, _ = bounds(remainder)
        return remainder == 0 if isinstance(remainder, int) else False if low is not None and low > 0 else None

    @property
    def symbols(self) -> set[str]:
        """Return the names of its symbols."""
        return symbols_of(self.left) | symbols_of(self.right)

    def __str__(self) -> str:
        if self.relation == "broadcasts with":
            return f"{self.left} == {self.right}, or one of them is 1"
        if self.relation == "broadcasts to":
            return f"{self.left} == {self.right}, or {self.left} == 1"
        return f"{self.left} {self.relation} {self.right}"


def _either(*answers: bool | None) -> bool | None:
    """Return True if one of the answers is True, None if none is and one is open."""
    return True if True in answers else None if None in answers else False


class _Collector(threading.local):  # of a thread: rules call `require_equal` and the like with sizes alone
    conditions: list[Condition] | None = None


collector = _Collector()
"""The receiver of the running rule's conditions, set by the infer room."""


def _leave_open(left: Size, relation: str, right: Size, requirement: str) -> None:
    if collector.conditions is not None:
        collector.conditions.append(Condition(left, relation, right, requirement))


def _decide(answer: bool | None, left: Size, relation: str, right: Size, requirement: str, sides: Mapping[str, int | None]) -> None:
    """Refuse a false condition, and leave an open one to a guard."""
    if answer is False:
        raise RuleError(requirement, sides)
    if answer is not None or collector.conditions is None:
        return
    size, limits = _limited(left, right) if relation != "<=" else (left, None)
    if limits is None or (relation != "==" and any((bounds(limit)[0] or 0) < 2 for limit in limits)):
        _leave_open(left, relation, right, requirement)
        return
    for limit in limits:
        if less_equal(size, limit) is None:
            _leave_open(size, "<=", limit, requirement)


def _limited(left: Size, right: Size) -> tuple[Size, list[Size] | None]:
    """Return ``words`` and ``[64]`` for ``words`` beside ``min(words, 64)``: they are equal up to 64. None for other sizes."""
    for size, least in ((left, right), (right, left)):
        limits = caps(least, size)
        if limits is not None:
            return size, limits
    return left, None


def fail(requirement: str, error: type[DescriptionError] = ShapeError, **sides: int | None) -> NoReturn:
    """Refuse: ``requirement`` does not hold. ``sides``: slot -> the axis concerned (None: the whole)."""
    raise RuleError(requirement, sides, error)


def require(holds: bool, requirement: str, **sides: int | None) -> None:
    """Refuse unless ``holds``."""
    if not holds:
        raise RuleError(requirement, sides)


def require_equal(a: Size, b: Size, requirement: str, **sides: int | None) -> Size:
    """Require ``a == b``. Returns the common size, the more definite one if still open."""
    if a is b:
        return a
    answer = equal(a, b)
    _decide(answer, a, "==", b, requirement, sides)
    if answer is None and _limited(a, b)[1] is not None:
        return _limited(a, b)[0]
    if answer is None and (isinstance(b, int) or (is_symbol(a) and not is_symbol(b) and not isinstance(a, int))):
        return b
    return a


def require_broadcast(a: Size, b: Size, requirement: str, **sides: int | None) -> Size:
    """Require ``a`` and ``b`` to be equal, or one of them 1. Returns their broadcast size."""
    _decide(broadcasts(a, b), a, "broadcasts with", b, requirement, sides)
    return broadcast(a, b)


def require_broadcast_to(a: Size, target: Size, requirement: str, **sides: int | None) -> Size:
    """Require ``a`` to be ``target``, or 1. Returns ``target``."""
    _decide(_either(equal(a, target), equal(a, 1)), a, "broadcasts to", target, requirement, sides)
    return target


def require_at_most(a: Size, b: Size, requirement: str, **sides: int | None) -> None:
    """Require ``a <= b``."""
    _decide(less_equal(a, b), a, "<=", b, requirement, sides)


def require_divides(divisor: Size, a: Size, requirement: str, **sides: int | None) -> Size:
    """Require ``divisor`` to divide ``a``. Returns the quotient."""
    if isinstance(divisor, int) and divisor <= 0:
        raise RuleError(requirement, sides)
    remainder = a % divisor
    low, _ = bounds(remainder)
    if (isinstance(remainder, int) and remainder) or (low is not None and low > 0):
        raise RuleError(requirement, sides)
    if not isinstance(remainder, int):
        _leave_open(divisor, "divides", a, requirement)
    return a // divisor


def axis_of(axis: int, rank: int, what: str = "axis", **sides: int | None) -> int:
    """Return ``axis`` as 0..rank-1; it may count from the back."""
    if not -rank <= axis < rank:
        raise RuleError(f"{what} must be in [{-rank}, {rank}), not {axis}", sides)
    return axis + rank if axis < 0 else axis


def unknown_size(name: str) -> Size:
    """Return a size set by the run, called ``name`` within the operator.

    A rule is pure and many ops share its answer, so the symbol is a placeholder. Each op replaces it by a symbol of its own,
    and two ops never share one.
    """
    return symbol(PLACEHOLDER + name)


def require_rank(rank: int, spec: Any, slot: str, like: Sequence[Size] = ()) -> None:
    """Refuse the tensor in ``slot`` unless it has ``rank`` dims; explain the change to the dims ``like``, if only dims of 1 differ."""
    if len(spec.dims) != rank:
        raise RuleError(f"{slot} must have {rank} dims, not {len(spec.dims)}{how_to_fit(slot, spec.dims, like)}", {slot: None})


def require_same_dims(x: Any, y: Any, x_slot: str, y_slot: str) -> None:
    """Refuse unless the tensors in ``x_slot`` and ``y_slot`` have equal dims: nothing is broadcast."""
    a, b = x.known_dims, y.known_dims
    if a is b:
        return
    if len(a) != len(b):
        raise RuleError(f"{y_slot} must have the dims of {x_slot}{how_to_fit(y_slot, b, a)}", {x_slot: None, y_slot: None})
    for axis, (p, q) in enumerate(zip(a, b, strict=True)):
        require_equal(p, q, f"{y_slot} must have the dims of {x_slot}", **{x_slot: axis, y_slot: axis})


def how_to_fit(name: str, dims: Sequence[Size], required: Sequence[Size]) -> str:
    """Return the code for a tensor of ``dims`` to have the ``required`` dims, if only dims of 1 differ; else nothing."""
    added, fewer = _ones_between(dims, required), _ones_between(required, dims)
    verb, axes = ("unsqueeze", added) if added else ("squeeze", fewer)
    return f"; write layer.{verb}({name}, {axes})" if axes else ""


def _ones_between(dims: Sequence[Size], required: Sequence[Size]) -> list[int]:
    """Return the axes of ``required`` where dims of 1 complete ``dims``; none if they do not."""
    axes: list[int] = []
    place = 0
    for axis, size in enumerate(required):
        if place < len(dims) and equal(dims[place], size) is True:
            place += 1
        elif equal(size, 1) is True:
            axes.append(axis)
        else:
            return []
    return axes if place == len(dims) else []


def require_one_per_row(spec: Any, slot: str, rows: Size, table: str) -> None:
    """Require one number in ``slot`` for each of the ``rows`` rows of ``table``: ``[rows, 1]`` or ``[rows]``."""
    requirement = f"{slot} must have one number for each row of {table}"
    require(len(spec.dims) > 0, requirement, **{slot: None})
    require_equal(spec.dims[0], rows, requirement, **{slot: 0, table: 0})
    require_equal(product(spec.dims[1:]), 1, requirement, **{slot: None})
