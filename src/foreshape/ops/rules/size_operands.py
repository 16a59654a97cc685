"""Sizes that an operator takes as attributes or as small integer tensors: what is known of them while describing, and at run."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.dims import Dim, Size
from foreshape.operator.require import RuleError, axis_of, require, require_equal
from foreshape.spec import MAX_RANK, Spec


def known_number(given: int, tensor: Spec | None, slot: str) -> Size | None:
    """The number in ``tensor`` where there is one, else the attribute's; None where only the run tells."""
    if tensor is None:
        return given
    require_equal(tensor.elements, 1, f"{slot} must hold one number, not {tensor.elements}", **{slot: None})
    return tensor.value[0] if tensor.value else None


def known_sizes(given: Sequence[int], tensor: Spec | None, listed: tuple[Spec, ...], slot: str, list_slot: str = "") -> tuple[Size | None, ...]:
    """The numbers of a list of one-number tensors, of a tensor, or of the attribute, in that order; None for each that only the run tells."""
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
    """The number in ``tensor`` where there is one, else the attribute's."""
    return given if tensor is None else int(tensor.reshape(-1)[0])


def sizes_at_run(given: Sequence[int], tensor: Any, listed: Sequence[Any] = ()) -> Sequence[int]:
    """What `known_sizes` is about, from the tensors themselves."""
    if listed:
        return [int(t.reshape(-1)[0]) for t in listed]
    return given if tensor is None else [int(v) for v in tensor.reshape(-1).tolist()]


def known_axis(given: int, tensor: Spec | None, rank: int, slot: str, of: str) -> int | None:
    """An axis that may come as a tensor, as 0..rank-1; None where only the run tells which it is."""
    axis = known_number(given, tensor, slot)
    if not isinstance(axis, int):
        return None
    return axis_of(axis, rank, "axis", **{of: None})


def axis_of_any(axis: int, rank: int, what: str = "axis", **sides: int | None) -> int:
    """`axis_of`, where a tensor without dims counts as having one."""
    return axis_of(axis, max(rank, 1), what, **sides)


def axes_of(axes: Sequence[int], rank: int, what: str = "axis", **sides: int | None) -> tuple[int, ...]:
    """Each of ``axes`` as 0..rank-1, no axis twice; a tensor without dims counts as having one."""
    require(len(axes) <= MAX_RANK, f"at most {MAX_RANK} axes may be named; seen {len(axes)}", **sides)
    out = tuple(axis_of_any(a, rank, what, **sides) for a in axes)
    require(len(set(out)) == len(out), f"{what} must name each axis once; seen {list(axes)}", **sides)
    return out
