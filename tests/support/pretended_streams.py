"""The streams and graphs of the pretended device."""

from __future__ import annotations

from collections.abc import Generator, Sequence
from contextlib import contextmanager
from typing import Any


class PretendedStream:
    """A stream of the device. What it writes must not be read from another one that has not waited for it."""

    def __init__(self, device: Any = None) -> None:
        self.device = device

    def synchronize(self) -> None:
        _on().synchronize()

    def record_event(self) -> PretendedStream:
        return self

    def wait_stream(self, other: PretendedStream) -> None:
        for block in _on().blocks():
            if block.stream is other:
                block.stream = None

    wait_event = wait_stream


class PretendedGraph:
    """A CUDA graph: the operators that were called within `capturing`, which are computed at a replay, into the same memory, and not before."""

    def __init__(self) -> None:
        self.calls: list[Any] = []
        self.written: dict[int, tuple[Any, Any]] = {}
        """The memory written while it was captured, with what was there before."""

    def register_generator_state(self, generator: Any) -> None: ...

    def replay(self) -> None:
        _on().launched("graph")
        for call in self.calls:
            call()

    def keep(self, tensors: Sequence[Any]) -> None:
        """Keep what is in memory that is about to be written."""
        for tensor in tensors:
            storage = tensor.untyped_storage()
            if storage._cdata not in self.written:
                self.written[storage._cdata] = storage, storage.clone()


@contextmanager
def capturing(graph: PretendedGraph, pool: Any = None) -> Generator[None]:
    """Note the operators that are called; a wait, or a copy from unpinned memory, is the error of CUDA."""
    device = _on()
    device.graph = graph
    try:
        yield
    finally:
        device.graph = None
        for storage, before in graph.written.values():
            storage.copy_(before)


@contextmanager
def within_stream(stream: PretendedStream) -> Generator[None]:
    """Let a stream be the current one."""
    device = _on()
    before, device.stream = device.stream, stream
    try:
        yield
    finally:
        device.stream = before


def _on() -> Any:
    """Return the device that is entered."""
    assert current, "there is a pretended device"
    return current[-1]


current: list[Any] = []
