"""The messages of a client and rank 0, job by job: their keys, and the time of waiting."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any, Final, TypeVar

from foreshape.core.checked_json import bounded_json
from foreshape.core.checked_json.readers import count, document, text, truth
from foreshape.errors import ExecutionError, FormatError
from foreshape.machine.communication.parcel import word
from foreshape.machine.communication.rendezvous import HeartbeatMonitor, Meeting

JOBS: Final = "jobs"
"""The number of jobs announced."""
WORKER: Final = "worker"
"""Who works here: `Here`."""
WORKER_LIVES: Final = "worker lives"
GO: Final = b"go"
STOP: Final = b"stop"
AGAIN: Final = 0.05
"""Seconds between two looks."""

T = TypeVar("T")


class Keys:
    """The keys of one job."""

    def __init__(self, number: int) -> None:
        self.job = f"job {number}"
        self.client_lives = f"client lives {number}"
        self.replies = f"replies {number}"
        self.word = f"word {number}"
        """`GO` or `STOP`, by the client, before the first step."""
        self.end = f"end {number}"
        """The client wants the run to end after its current epoch."""
        self.result = f"result {number}"
        self.values = f"values {number}"
        self.taken = f"taken {number}"
        """The client has all results."""

    def epoch(self, number: int) -> str:
        """Return the figures of an epoch."""
        return f"{self.job} epoch {number}"


class Here:
    """The workers' description of themselves."""

    def __init__(self, version: str, ranks: int, keeps: bool) -> None:
        self.version, self.ranks, self.keeps = version, ranks, keeps

    def to_bytes(self) -> bytes:
        """Return the JSON."""
        return json.dumps({"foreshape": self.version, "ranks": self.ranks, "keeps": self.keeps}).encode()

    @staticmethod
    def from_bytes(data: bytes) -> Here:
        """Read the JSON. Raises `FormatError` for anything else."""
        fields = document(dict[str, Any], foreshape=text(100), ranks=count(1), keeps=truth)("the worker", bounded_json.parse(data))
        return Here(fields["foreshape"], fields["ranks"], fields["keeps"])


def until(look: Callable[[], T | None], seconds: float, check: Callable[[], None] | None = None) -> T | None:
    """Return the first result of ``look`` other than None; None after so many seconds. ``check`` may raise between the attempts."""
    end = time.monotonic() + seconds
    while (outcome := look()) is None:
        if check is not None:
            check()
        if time.monotonic() > end:
            return None
        time.sleep(AGAIN)
    return outcome


def worker_at(meeting: Meeting) -> Here:
    """Return the workers at a meeting. Raises `ExecutionError` if there are none, or workers of another version."""
    from foreshape.core.version import VERSION

    try:
        data = until(lambda: word(meeting, WORKER), meeting.patience)
        if data is None:
            raise ExecutionError(f"{meeting.where}: no worker has come within {meeting.patience:g} s")
        workers = Here.from_bytes(data)
    except FormatError as error:
        raise ExecutionError(f"{meeting.where}: who is there is no worker: {error}") from None
    if workers.version != VERSION:
        raise ExecutionError(f"{meeting.where}: the workers have foreshape {workers.version}, and here is {VERSION}")
    return workers


def alive(watch: HeartbeatMonitor, who: str, patience: float) -> None:
    """Raise `ExecutionError` where a watched process has given no sign for so long."""
    if watch.silent > patience:
        raise ExecutionError(f"{who} gives no sign of life for {patience:g} s")
