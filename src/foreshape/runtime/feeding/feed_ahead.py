"""A feed whose copy to a GPU has begun, on a stream of its own, while the step before it runs there. No run on a GPU has shown it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from foreshape.core.data_class import data_class
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ForeshapeError
from foreshape.runtime.feeding.feed import Feeder


@data_class(frozen=True)
class FeedAhead:
    """The arguments of a coming step; the error of a refused feed waits for its step.

    Attributes:
        tensors, signature: as `Feeder.tensors` gives them.
        copied: the event after the copies.
    """

    tensors: list[Any]
    signature: tuple[Any, ...]
    copied: Any
    error: ForeshapeError | None = None

    def taken(self) -> tuple[list[Any], tuple[Any, ...]]:
        """Return the arguments, after the current stream (not the host) was told to wait for the copies."""
        if self.error is not None:
            raise self.error
        stream: Any = torch.cuda.current_stream(self.copied.device)
        stream.wait_event(self.copied)
        for tensor in _tensors_in(self.tensors):
            tensor.record_stream(stream)  # its memory is not given to the next copy while a kernel reads it
        return self.tensors, self.signature


class CopyStream:
    """The stream of a device's copies, made at the first one."""

    def __init__(self, device: Any) -> None:
        self._device, self._stream = device, None

    def begin(self, feeder: Feeder, feed: Any, notes: Any) -> FeedAhead:
        """Begin to copy a feed, after all copies before it."""
        if self._stream is None:
            self._stream = torch.cuda.Stream(self._device)
        stream: Any = self._stream
        stream.wait_stream(torch.cuda.current_stream(self._device))  # it may be making the fed values
        with torch.cuda.stream(stream):
            try:
                tensors, signature = feeder.tensors(feed, notes)
            except ForeshapeError as error:
                return FeedAhead([], (), None, error)
            return FeedAhead(tensors, signature, stream.record_event())


def _tensors_in(values: Sequence[Any]) -> Iterator[Tensor]:
    for value in values:
        if isinstance(value, Offsets):
            yield from value.levels
        elif isinstance(value, Rows):
            yield value.rows
            yield value.values
        else:
            yield value
