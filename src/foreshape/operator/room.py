"""How much memory a run may take: for kernels whose needs no description tells."""

from __future__ import annotations

import threading

from foreshape.errors import Line, MemoryPlanError


class _Run(threading.local):
    memory_limit: int | None = None


this_run = _Run()
"""What holds for the step that runs in this thread: the executor sets it."""


def require_room(type: str, size: int, what: str, where: str = "", site: Line | None = None) -> None:
    """Refuse what takes more than the run may. Raises `MemoryPlanError`.

    Args:
        type: of the op.
        size: the bytes that it is about to take.
        what: what they are for.
        where, site: the end of the text, and the user's line, where they are known.
    """
    limit = this_run.memory_limit
    if limit is not None and size > limit:
        words = f"{type}: {what} takes {size:,} bytes, and this run may take {limit:,} (the executor's memory_limit){where}"
        raise MemoryPlanError(words).told(op=type, required=f"at most {limit:,} bytes", seen=f"{size:,} bytes", site=site)
