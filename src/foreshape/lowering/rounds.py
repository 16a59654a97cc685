"""What is asked before each round of a loop, and before a branch: whether it runs, and whether there is room for what grows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from foreshape.dims import symbols_of
from foreshape.errors import ExecutionError
from foreshape.infer.loop_state import joined_sources
from foreshape.operator.room import require_room
from foreshape.spec import LOD_TENSOR, Spec

if TYPE_CHECKING:
    from torch import Tensor


def truth(type: str, name: str, value: Tensor) -> bool:
    """What a condition says, for which inference may not know how many elements it has."""
    try:
        return bool(value)
    except RuntimeError:
        raise ExecutionError(f"{type}: {name} must hold one truth value; seen are {list(value.shape)}") from None


def may_grow(name: str, leaves: Spec | None) -> bool:
    """Whether a dense tensor that a loop carries has other sizes after some rounds than before them: symbols of its own."""
    if leaves is None or leaves.kind is not LOD_TENSOR:
        return False
    own, _ = joined_sources(name)
    return any(symbol.startswith(own) for dim in leaves.dims or () if not isinstance(dim, int) for symbol in symbols_of(dim))


class Room:
    """Refuses the next round of a loop whose variables grow from round to round, where there would be no memory for it: a plan counts one round."""

    def __init__(self, type: str) -> None:
        self._type, self._before = type, 0

    def look(self, growing: Sequence[Tensor | None]) -> None:
        """Take what a round begins with. Raises `MemoryPlanError`."""
        size = sum([v.nbytes for v in growing if v is not None])
        if size > self._before:  # what a round makes of it is there beside it, as much larger as this one has become or more
            require_room(self._type, 2 * size + 2 * (size - self._before), "a further round of the loop, whose variables grow from round to round,")
        self._before = size
