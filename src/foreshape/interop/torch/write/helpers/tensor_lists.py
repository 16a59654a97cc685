"""Arrays of tensors as lists."""

from __future__ import annotations

from torch import Tensor


def with_element(array: list[Tensor | None], x: Tensor, place: int) -> list[Tensor | None]:
    """Return an array with a tensor at a place. Unwritten places before it are None."""
    longer = [*array, *[None] * (place + 1 - len(array))]
    return [*longer[:place], x, *longer[place + 1 :]]
