"""The target that a step is being made or planned for."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

from foreshape.machine.targets.cpu import CPU
from foreshape.machine.targets.target import DeviceTarget

_current: ContextVar[DeviceTarget] = ContextVar("target", default=CPU)


def current_target() -> DeviceTarget:
    """Return the target that a step is being made or planned for in this thread; by default the processor."""
    return _current.get()


@contextmanager
def compiling_for(target: DeviceTarget) -> Generator[None]:
    """Let rewrites, and the rules for the memory of kernels, ask for a target."""
    token = _current.set(target)
    try:
        yield
    finally:
        _current.reset(token)
