"""A block as a function, called in each round by its op."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.errors import ExecutionError

if TYPE_CHECKING:
    from foreshape.lowering.kernel_calls import Step, Value


class _Running(threading.local):
    checked: Callable[[Step, Sequence[Any]], list[Any]] | None = None


def _not_compiled(*given: Any) -> Any:
    raise ExecutionError("this block has not been compiled")


running = _Running()
"""The way of running blocks in this thread, set by checked mode."""


class Region:
    """A block as a function of the values of ``entries``, then of its other values from outside.

    Attributes:
        lowered: its kernel calls.
        entries: names with new values at every call.
        results: names of the values returned at the end.
        saved: names of values for the backward pass; of an entry the incoming one.
        captured: its other values from outside, as its own values.
        used: the entries read by the block or its op.
        in_place: the results in their old place in the scope.
        function: the block as one straight-line function; set by the step's compiler.
    """

    def __init__(
        self, lowered: Step, entries: Sequence[str], results: Sequence[str], saved: Sequence[str], captured: list[Value], used: set[str],
        in_place: list[int],
    ) -> None:  # fmt: skip
        self.lowered = lowered
        self.entries, self.results, self.saved = list(entries), list(results), list(saved)
        self.captured, self.used, self.in_place = captured, used, in_place
        self.ragged_results = [at for at, v in enumerate(lowered.fetches) if v.lod is not None]
        self.function: Callable[..., Any] = _not_compiled

    def call(self, *given: Any) -> tuple[list[Any], list[Any], tuple[Any, ...]]:
        """Return the results, the offsets of each of them (None if dense), and the saved values, then their offsets."""
        out = running.checked(self.lowered, given) if running.checked is not None else self.function(*given)
        fetched, offsets = len(self.lowered.fetches), [None] * len(self.lowered.fetches)
        for at, found in zip(self.ragged_results, out[fetched:], strict=True):
            offsets[at] = found
        count = len(self.results)
        return list(out[:count]), offsets[:count], (out[count:fetched], offsets[count:])
