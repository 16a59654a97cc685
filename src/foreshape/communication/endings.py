"""The ends of ranks' processes: a test for an ended one on this machine, and the last words of one ended by a launcher."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from foreshape.errors import RankError

if TYPE_CHECKING:
    from foreshape.communication.status import StatusBoard


def this_process() -> str:
    """Return the identity of this process among all: its machine, its number, and the time of its start; nothing if unknown."""
    try:
        with open("/proc/sys/kernel/random/boot_id", encoding="ascii") as file:
            machine = file.read().strip()
        return f"{machine} {os.stat('/proc/self/ns/pid').st_ino} {os.getpid()} {_began(os.getpid())}"
    except (OSError, ValueError):  # no Linux
        return ""


def has_ended(process: str) -> bool:
    """Return whether a process, by its `this_process`, was one of this machine and has ended; False if unknown."""
    told, own = process.split(), this_process().split()
    if len(told) != 4 or len(own) != 4 or told[:2] != own[:2] or not told[2].isdecimal():
        return False
    try:
        return _began(int(told[2])) != told[3]
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _began(process: int) -> str:
    """Return the start of a process of this machine, in ticks of the system; nothing for an ended one that is still listed."""
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]


class _LastWords:
    """The handler of SIGTERM: the rank names the missing ones, and ends as it would have."""

    def __init__(self, board: StatusBoard) -> None:
        self._board = board
        self.found = ""
        """The reason of the run's failure, if known."""

    def __call__(self, number: int, frame: object) -> None:
        signal.signal(number, signal.SIG_IGN)  # torchrun sends it twice
        board = self._board
        board.waited("SIGTERM")
        words = self.found or board.last_words()
        sys.stderr.write(f"rank {board.rank} of {board.ranks} was told to end (SIGTERM) {board.place}{'; ' * bool(words)}{words}\n")
        sys.stderr.flush()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)


@contextmanager
def saying_last_words(board: StatusBoard) -> Generator[None]:
    """Let this rank name the missing ones before SIGTERM ends it. A launcher sends it to all ranks as soon as one has died.

    After a `RankError` this stays so: the launcher may end the process before anybody has read the error.
    """
    handler, now = _LastWords(board), signal.getsignal(signal.SIGTERM)
    own = threading.current_thread() is threading.main_thread() and (now is signal.SIG_DFL or isinstance(now, _LastWords))
    if own:
        signal.signal(signal.SIGTERM, handler)
    try:
        yield
    except RankError as error:
        handler.found = str(error)
        raise
    except BaseException:
        _put_back(handler)
        raise
    else:
        _put_back(handler)


def _put_back(handler: _LastWords) -> None:
    if threading.current_thread() is threading.main_thread() and signal.getsignal(signal.SIGTERM) is handler:
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
