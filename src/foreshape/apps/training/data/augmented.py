"""Batches changed by a user's function before they are trained on."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from foreshape.apps.training.checkpoint.resume_check import Scalar
from foreshape.apps.training.data.batches import Batch, Data
from foreshape.errors import FeedError

Augment = Callable[[dict[str, Any], Any], Mapping[str, Any]]

_APART: Final = 0x617567
"""Separates the random numbers of batches from the numbers for the order of the examples; both are drawn from the seed and the epoch."""


class Augmented:
    """Batches of other data after ``function(batch, random)``.

    ``batch`` is a dict from inputs to arrays of its own, and may be written. ``random`` is a numpy ``Generator`` for each batch, from the seed,
    the epoch and the number of the batch: a resumed run, and every rank, draws the same.

    Raises:
        FeedError: the function does not take two arguments, or returns no dict of the same inputs.
    """

    def __init__(self, data: Data, function: Augment, seed: int) -> None:
        try:
            inspect.signature(function).bind({}, None)
        except TypeError:
            raise FeedError(f"augment is a function of a batch (a dict, input -> array) and a numpy Generator; seen {function!r}") from None
        except ValueError:  # of no known signature
            pass
        self.data, self.function, self.seed = data, function, seed
        self.batches = data.batches
        self.watched = False
        self.first: str | None = None

    def epoch(self, number: int, skip: int = 0) -> Iterator[Batch]:
        """Iterate over the batches of an epoch; the first ``skip`` are skipped when this returns."""
        self.data.watched = self.watched
        batches = self.data.epoch(number, skip)
        self.first = self.data.first
        return self._changed(batches, number, skip)

    def facts(self) -> dict[str, Scalar]:
        return {**self.data.facts(), "augment": getattr(self.function, "__qualname__", type(self.function).__name__)}

    def _changed(self, batches: Iterator[Batch], number: int, index: int) -> Iterator[Batch]:
        import numpy

        for batch in batches:
            self.first = self.data.first
            random = numpy.random.Generator(numpy.random.PCG64([self.seed, number, index, _APART]))
            copies = {name: _copy(value) for name, value in batch.items()}
            augmented: Any = self.function(copies, random)
            if not isinstance(augmented, Mapping) or set(augmented) != set(batch):  # pyright: ignore[reportUnknownArgumentType]
                answer = f"a dict of {', '.join(map(str, augmented)) or 'nothing'}" if isinstance(augmented, Mapping) else type(augmented).__name__  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]
                raise FeedError(f"augment must give a dict of the inputs that it takes, {', '.join(batch)}; it gave {answer}")
            yield augmented
            index += 1


def _copy(value: Any) -> Any:
    kind = value.__class__.__name__
    return value.copy() if kind == "ndarray" else value.clone() if kind == "Tensor" else value
