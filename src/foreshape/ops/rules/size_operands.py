"""Sizes from attributes or from small integer tensors: their known values while describing, and at run time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.dims import Dim, Size
from foreshape.operator.require import RuleError, axis_of, require, require_equal
from foreshape.spec import MAX_RANK, Spec


def known_number(given: int, tensor: Spec | None, slot: str) -> Size | None:
    """Return the number in ``tensor`` if there is one, else the attribute's; None if known at run time only."""
    if tensor is None:
        return given
    require_equal(tensor.elements, 1, f"{slot} must hold one number, not {tensor.elements}", **{slot: None})
    return tensor.value[0] if tensor.value else None


def known_sizes(given: Sequence[int], tensor: Spec | None, listed: tuple[Spec, ...], slot: str, list_slot: str = "") -> tuple[Size | None, ...]:
    """Return the numbers of a list of one-number tensors, of a tensor, or of the attribute, in this order.

    Those known at run time only are None.
    """
    if listed:
        return tuple(known_number(0, s, list_slot or slot) for s in listed)
    if tensor is None:
        return tuple(given)
    if tensor.value is not None:
        return tensor.value
    count = tensor.elements
    if isinstance(count, Dim):
        raise RuleError("how many numbers it holds must be known before the run", {slot: None})
    require(count <= MAX_RANK, f"{slot} must hold at most {MAX_RANK} numbers, not {count}", **{slot: None})
    return (None,) * count


def number_at_run(given: int, tensor: Any) -> int:
    """Return the number in ``tensor`` if there is one, else the attribute's."""
    return given if tensor is None else int(tensor.reshape(-1)[0])


def sizes_at_run(given: Sequence[int], tensor: Any, listed: Sequence[Any] = ()) -> Sequence[int]:
    """Return the numbers of `known_sizes` at run time, from the tensors themselves."""
    if listed:
        return [int(t.reshape(-1)[0]) for t in listed]
    return given if tensor is None else [int(v) for v in tensor.reshape(-1).tolist()]


def known_axis(given: int, tensor: Spec | None, rank: int, slot: str, of: str) -> int | None:
    """Return an axis from an attribute or a tensor, as 0..rank-1; None if known at run time only."""
    axis = known_number(given, tensor, slot)
    if not isinstance(axis, int):
        return None
    return axis_of(axis, rank, "axis", **{of: None})


def axis_of_any(axis: int, rank: int, what: str = "axis", **sides: int | None) -> int:
    """Return `axis_of`, with a tensor without dims counted as one with one dim."""
    return axis_of(axis, max(rank, 1), what, **sides)


def axes_of(axes: Sequence[int], rank: int, what: str = "axis", **sides: int | None) -> tuple[int, ...]:
    """Return each of ``axes`` as 0..rank-1, no axis twice; a tensor without dims counts as one with one dim."""
    require(len(axes) <= MAX_RANK, f"at most {MAX_RANK} axes may be named; seen {len(axes)}", **sides)
    out = tuple(axis_of_any(a, rank, what, **sides) for a in axes)
    require(len(set(out)) == len(out), f"{what} must name each axis once; seen {list(axes)}", **sides)
    return out
