"""Ranks as processes, as torchrun starts them: with a free port, a deadline of their own, and an end for each of them whatever happens."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from support.prepared_process import PreparedProcess

SAFETY = 240.0
"""Seconds after which ranks that hang are ended: no measure of anything."""
SOURCES = Path(__file__).parents[2] / "src"


@dataclass
class Rank:
    """One process, and where its words go."""

    number: int
    process: subprocess.Popen[bytes] | PreparedProcess
    log: Path

    @property
    def words(self) -> str:
        """What it has written so far, to either stream."""
        return self.log.read_text(errors="replace")

    @property
    def code(self) -> int | None:
        """How it ended; None where it lives."""
        return self.process.poll()

    def send(self, number: int) -> None:
        """Send a signal to it."""
        self.process.send_signal(number)

    def end(self) -> None:
        """End it and all that it has started."""
        with suppress(ProcessLookupError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.wait()


@dataclass
class Started:
    """The ranks of a run."""

    ranks: list[Rank]
    until: float

    def wait(self, numbers: Sequence[int] | None = None) -> list[int]:
        """Wait for ranks, all of them where none are named; how each ended.

        Raises:
            AssertionError: one of them still runs at the deadline.
        """
        chosen = self.ranks if numbers is None else [self.ranks[n] for n in numbers]
        for rank in chosen:
            try:
                rank.process.wait(max(self.until - time.monotonic(), 0.1))
            except subprocess.TimeoutExpired:
                raise AssertionError(f"rank {rank.number} hangs\n{self.words()}") from None
        return [rank.process.wait() for rank in chosen]

    def wait_for(self, what: Callable[[], Any], words: str) -> None:
        """Wait until something holds.

        Raises:
            AssertionError: it does not at the deadline, or when all ranks have ended.
        """
        while not what():
            if time.monotonic() > self.until or all(r.code is not None for r in self.ranks):
                raise AssertionError(f"never: {words}\n{self.words()}")
            time.sleep(0.02)

    def words(self) -> str:
        """What all ranks have written."""
        return "\n".join(f"--- rank {r.number} ({r.code})\n{r.words}" for r in self.ranks)


def free_port() -> int:
    """A port of the loopback device that nobody has."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        return int(s.getsockname()[1])


def variables() -> dict[str, str]:
    """What processes of ranks are told beside their numbers: where the sources are, and one thread each."""
    path = [str(SOURCES), *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path), "OMP_NUM_THREADS": "1"}


@contextmanager
def started(
    ranks: int, script: Path | str, *arguments: object, deadline: float = SAFETY, environment: Mapping[str, str] | None = None,
    each: Callable[[int], Mapping[str, str]] | None = None, port: int | None = None, prepared: bool = False,
) -> Generator[Started]:  # fmt: skip
    """Ranks that run a script; all that is left of them is ended with the context.

    Args:
        environment: variables of all ranks.
        each: a rank's number -> variables of its own.
        prepared: fork them from a process that has torch imported: sooner, and by what they hold of memory no longer like new ones.
    """
    port = free_port() if port is None else port
    with tempfile.TemporaryDirectory(prefix="ranks") as folder:
        found: list[Rank] = []
        try:
            for number in range(ranks):
                whole = {
                    **variables(), "RANK": str(number), "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
                    **(environment or {}), **(each(number) if each is not None else {}),
                }  # fmt: skip
                log = Path(folder) / f"rank{number}"
                command = [str(script), *map(str, arguments)]
                with log.open("wb") as out:
                    if prepared:
                        process = PreparedProcess(command, whole, log)
                    else:
                        process = subprocess.Popen([sys.executable, *command], env=whole, stdout=out, stderr=out, start_new_session=True)
                found.append(Rank(number, process, log))
            yield Started(found, time.monotonic() + deadline)
        finally:
            for rank in found:
                rank.end()


def run(ranks: int, script: Path | str, *arguments: object, **settings: Any) -> list[str]:
    """Run ranks to their end; what each has written.

    Raises:
        AssertionError: one fails, or hangs.
    """
    with started(ranks, script, *arguments, **settings) as those:
        assert set(those.wait()) == {0}, those.words()
        return [r.words for r in those.ranks]
