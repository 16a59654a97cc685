"""The run of a step as its kernels may ask: its limit of memory, and its generator."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.errors import Line, MemoryPlanError

if TYPE_CHECKING:
    from torch import Generator


class _Run(threading.local):  # of a thread: kernels and blocks are called by the step's text, with their operands alone
    memory_limit: int | None = None
    generator: Generator | None = None
    """The source of random numbers with seed 0; None: torch's default one."""
    run_block: Callable[[Any, Sequence[Any]], list[Any]] | None = None
    """The way of running the lowered blocks of ops, set by checked runs and the profiler; None: their compiled functions."""


this_run = _Run()
"""The settings of the step running in this thread, set by the executor."""


def require_room(type: str, size: int, what: str, where: str = "", site: Line | None = None) -> None:
    """Refuse a need above the run's limit. Raises `MemoryPlanError`.

    Args:
        type: of the op.
        size: the bytes about to be taken.
        what: their purpose.
        where, site: the end of the text, and the user's line, if known.
    """
    limit = this_run.memory_limit
    if limit is not None and size > limit:
        words = f"{type}: {what} takes {size:,} bytes, and this run may take {limit:,} (the executor's memory_limit){where}"
        raise MemoryPlanError(words).told(op=type, required=f"at most {limit:,} bytes", seen=f"{size:,} bytes", site=site)
