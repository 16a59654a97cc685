"""The last words of a rank that a launcher ends."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Generator
from contextlib import contextmanager

from foreshape.errors import RankError
from foreshape.machine.communication.status import StatusBoard


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
    handler, previous = _LastWords(board), signal.getsignal(signal.SIGTERM)
    is_ours = threading.current_thread() is threading.main_thread() and (previous is signal.SIG_DFL or isinstance(previous, _LastWords))
    if is_ours:
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
