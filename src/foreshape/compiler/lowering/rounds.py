"""The questions before each round of a loop, and before a branch: its condition, and the memory for growing variables."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import symbols_of
from foreshape.core.spec import LOD_TENSOR, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ExecutionError
from foreshape.language.infer.loop_state import joined_sources
from foreshape.machine.process.this_run import require_room


def truth(type: str, name: str, value: Tensor) -> bool:
    """Return the truth of a condition; inference may not know its number of elements."""
    try:
        return bool(value)
    except RuntimeError:
        raise ExecutionError(f"{type}: {name} must hold one truth value; seen are {list(value.shape)}") from None


def may_grow(name: str, leaves: Spec | None) -> bool:
    """Return True if a dense tensor carried by a loop has other sizes after some rounds than before them: symbols of its own."""
    if leaves is None or leaves.kind is not LOD_TENSOR:
        return False
    prefix, _ = joined_sources(name)
    return any(symbol.startswith(prefix) for dim in leaves.dims or () if not isinstance(dim, int) for symbol in symbols_of(dim))


class RoundMemory:
    """The refusal of the next round of a loop with growing variables, if there is no memory for it: a plan counts one round."""

    def __init__(self, type: str) -> None:
        self._type, self._before = type, 0

    def look(self, growing: Sequence[Tensor | None]) -> None:
        """Look at the values before a round. Raise `MemoryPlanError`."""
        size = sum([v.nbytes for v in growing if v is not None])
        if size > self._before:  # a round's result is there beside it, larger by at least the last growth
            require_room(self._type, 2 * size + 2 * (size - self._before), "a further round of the loop, whose variables grow from round to round,")
        self._before = size
