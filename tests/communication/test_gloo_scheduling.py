"""The threads that bring gloo's messages take no processor from those that send them."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest
import torch

from foreshape.machine.communication.join import join, let_senders_finish

pytestmark = pytest.mark.skipif(not hasattr(os, "SCHED_BATCH"), reason="only Linux schedules batches")


@pytest.fixture
def group() -> Iterator[None]:
    """A group of one rank, in this process, whose threads have their names: each gives itself its own when it runs first."""
    torch.distributed.init_process_group("gloo", store=torch.distributed.HashStore(), rank=0, world_size=1)
    for _ in range(1000):
        if threads("gloo_"):
            break
        time.sleep(0.01)
    yield
    torch.distributed.destroy_process_group()


def threads(begin: str) -> list[int]:
    """The threads whose names begin so, of those that are there."""
    found: list[int] = []
    for task in Path("/proc/self/task").iterdir():
        with suppress(OSError):  # one that ends meanwhile
            if (task / "comm").read_text().startswith(begin):
                found.append(int(task.name))
    return found


def policies(begin: str) -> list[int]:
    """How the threads are scheduled whose names begin so."""
    return [os.sched_getscheduler(thread) for thread in threads(begin)]


def test_loops_run_when_others_wait(group: None) -> None:
    if not policies("gloo_"):
        pytest.skip("this gloo names no threads")
    assert set(policies("gloo_")) == {os.SCHED_OTHER}
    with join(10.0):
        assert set(policies("gloo_")) == {os.SCHED_BATCH}
    assert set(policies("pt_gloo_runloop")) == {os.SCHED_OTHER}
    assert os.sched_getscheduler(0) == os.SCHED_OTHER
    assert let_senders_finish() == 0, "they are scheduled so by now"


def test_what_the_user_has_scheduled_stays(group: None) -> None:
    loops = threads("gloo_")
    for loop in loops:
        os.sched_setscheduler(loop, os.SCHED_IDLE, os.sched_param(0))
    assert let_senders_finish() == 0
    assert set(policies("gloo_")) <= {os.SCHED_IDLE}
