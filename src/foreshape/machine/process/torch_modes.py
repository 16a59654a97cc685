"""torch modes of the user's thread that must not reach into a step: it would compute other numbers, or elsewhere."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager, nullcontext
from typing import Any

from foreshape.core.values.torch_private import private


def is_set() -> bool:
    """Return True if autocast is on, or a default device or another mode over torch's functions."""
    return private.is_any_autocast_enabled() or private.len_torch_function_stack() > 0


@contextmanager
def left_out(device: Any) -> Generator[None]:
    """Compute without it. The default device stays where ``device`` is given, since a step has one of its own inside of it then."""
    functions = private.DisableTorchFunction() if device is None else nullcontext()
    with private.DisableAutocast(), functions:
        yield
