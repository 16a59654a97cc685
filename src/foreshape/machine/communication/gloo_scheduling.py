"""The scheduling of gloo's event loops, the threads that bring messages: they must not stop the thread that is sending one."""

from __future__ import annotations

import os
from pathlib import Path

_TASKS = Path("/proc/self/task")
_NAME = "gloo_"
"""The prefix of the names of gloo's threads; an older gloo gives them none, and they stay as they are."""


def let_senders_finish() -> int:
    """Schedule gloo's event loops as Linux schedules batches: such a thread takes no processor from another one when it wakes.

    A loop that finds a connection locked, with a thread sending on it, asks for its events again at once, until its time slice is over
    (https://github.com/pytorch/gloo/issues/246). With as many ranks as processors, it has often just taken the processor of this very thread. Both lose the
    slice: milliseconds, for messages of tens of microseconds. As a batch it runs when the sender waits. The user's own scheduling stays.

    Returns:
        The number of loops scheduled so just now; 0 on systems without such scheduling, or without permission.
    """
    if not hasattr(os, "SCHED_BATCH"):
        return 0
    count = 0
    for task in _TASKS.iterdir() if _TASKS.is_dir() else ():
        try:
            thread = int(task.name)
            if (task / "comm").read_text().startswith(_NAME) and os.sched_getscheduler(thread) == os.SCHED_OTHER:
                os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))
                count += 1
        except OSError:  # the thread has ended, or a sandbox forbids it: messages come as they would have
            continue
    return count
