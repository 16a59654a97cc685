"""A block as a function, called in each round by its op."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.errors import ExecutionError

if TYPE_CHECKING:
    from foreshape.lowering.kernel_calls import Lowered, Value


class _Running(threading.local):
    checked: Callable[[Lowered, Sequence[Any]], list[Any]] | None = None


def _not_compiled(*given: Any) -> Any:
    raise ExecutionError("this block has not been compiled")


running = _Running()
"""How blocks are run in this thread: checked mode sets what it runs them with."""


class Region:
    """A block as a function: of the values of ``entries``, then of what else it reads from outside.

    Attributes:
        lowered: its kernel calls.
        entries: names whose values come in anew at every call.
        results: names whose values at the end are given back.
        saved: names whose values the backward pass needs: of an entry that which came in.
        captured: what else the block reads from outside, as its own values.
        used: the entries whose values the block, or the op that runs it, looks at.
        in_place: the results that stand where they stood before, in the scope.
        function: the block as one straight-line function; whoever compiles the step sets it.
    """

    def __init__(
        self, lowered: Lowered, entries: Sequence[str], results: Sequence[str], saved: Sequence[str], captured: list[Value], used: set[str],
        in_place: list[int],
    ) -> None:  # fmt: skip
        self.lowered = lowered
        self.entries, self.results, self.saved = list(entries), list(results), list(saved)
        self.captured, self.used, self.in_place = captured, used, in_place
        self.ragged_results = [at for at, v in enumerate(lowered.fetches) if v.lod is not None]
        self.function: Callable[..., Any] = _not_compiled

    def call(self, *given: Any) -> tuple[list[Any], list[Any], tuple[Any, ...]]:
        """Return the results, the offsets of each of them (None where dense), and what is saved: values, then offsets."""
        out = running.checked(self.lowered, given) if running.checked is not None else self.function(*given)
        fetched, offsets = len(self.lowered.fetches), [None] * len(self.lowered.fetches)
        for at, found in zip(self.ragged_results, out[fetched:], strict=True):
            offsets[at] = found
        count = len(self.results)
        return list(out[:count]), offsets[:count], (out[count:fetched], offsets[count:])
