"""The run of a step as its kernels may ask: its limit of memory, its device, and its generator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from foreshape.errors import Line, MemoryPlanError

if TYPE_CHECKING:
    from torch import Generator


class MemoryLimit(NamedTuple):
    """The most memory of a run.

    Attributes:
        size: bytes.
        words: its origin, as "the executor's memory_limit".
        exact: a run of each shape is compared with it. Otherwise shapes far below one that fits are admitted at once.
    """

    size: int
    words: str
    exact: bool = False


class _Run(threading.local):  # of a thread: kernels and blocks are called by the step's text, with their operands alone
    memory_limit: MemoryLimit | None = None
    generator: Generator | None = None
    """The source of random numbers with seed 0; None: torch's default one."""
    device: Any = None
    """The device of tensors that a kernel makes without an operand; None: torch's default one."""
    run_block: Callable[[Any, Sequence[Any]], list[Any]] | None = None
    """The way of running the lowered blocks of ops, set by checked runs and the profiler; None: their compiled functions."""


this_run = _Run()
"""The settings of the step running in this thread, set by the executor."""


def require_room(type: str, size: int, what: str, ending: str = "", site: Line | None = None) -> None:
    """Refuse a need above the run's limit. Raises `MemoryPlanError`.

    Args:
        type: of the op.
        size: the bytes about to be taken.
        what: their purpose.
        ending, site: the end of the text, and the user's line, if known.
    """
    limit = this_run.memory_limit
    if limit is not None and size > limit.size:
        words = f"{type}: {what} takes {size:,} bytes, and this run may take {limit.size:,} ({limit.words}){ending}"
        raise MemoryPlanError(words).told(op=type, required=f"at most {limit.size:,} bytes", seen=f"{size:,} bytes", site=site)
