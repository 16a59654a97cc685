"""The status of each rank, for the others when something goes wrong: its place, its signs of life, and its reason to stop.

It goes through torch's own store, key by key, as plain text of bounded length; nothing of it is ever executed or unpickled.
"""

from __future__ import annotations

import faulthandler
import json
import os
import re
import sys
import sysconfig
import tempfile
import threading
import time
from collections.abc import Callable, Collection
from contextlib import suppress
from typing import Any, TypeVar, cast

from foreshape.core.package_folder import PACKAGE
from foreshape.core.values.emitted_code import STEP_FILE, op_of
from foreshape.machine.communication.process_group import all_teams
from foreshape.machine.communication.store import held_by_torchrun

T = TypeVar("T")

BEAT = 1.0
"""Seconds between two signs of life."""
SILENT = 4.0
"""A rank whose last sign of life is older has died, or its machine has stopped."""
_LONGEST = 2000
"""Characters of a reason."""
_LINE = 16 * _LONGEST
"""The most bytes of a rank's word; the rest is not read."""
_NOT_THE_USERS = (PACKAGE, *{sysconfig.get_path(n) for n in ("stdlib", "platlib", "purelib")}, "<")
"""The path prefixes of files not written by users: of this package, of Python, and of other packages."""


_FRAME = re.compile(r'  File "(.*)", line (\d+) in (.*)')


def own_frames() -> list[tuple[str, int, str]]:
    """Return the frames of this thread: file, line and function, the innermost first."""
    out: list[tuple[str, int, str]] = []
    frame = sys._getframe(1)  # pyright: ignore[reportPrivateUsage]
    while frame is not None:
        out.append((frame.f_code.co_filename, frame.f_lineno, frame.f_code.co_name))
        frame = frame.f_back
    return out


def frames_of(thread: int) -> list[tuple[str, int, str]]:
    """Return the frames of another thread that stands still: file, line and function, the innermost first.

    They come from Python's own dump, made while no thread of Python can move: following the frames of a running thread has crashed Python 3.11. So has the
    dump, in a training with messages on the way. Python then learns of torch's threads for a moment, and a half-known one is read past its end. In a
    standstill there is none.
    """
    try:
        with open(os.memfd_create("frames"), "w+b") if hasattr(os, "memfd_create") else tempfile.TemporaryFile() as file:
            faulthandler.dump_traceback(file, all_threads=True)
            file.seek(0)
            lines = file.read().decode(errors="replace").splitlines()
    except OSError:  # no room for it: signs of life say less then
        return []
    out: list[tuple[str, int, str]] = []
    of_thread = False
    for line in lines:
        if line.startswith(("Thread 0x", "Current thread 0x")):
            of_thread = int(line.partition("0x")[2].split()[0], 16) == thread
        elif of_thread and (match := _FRAME.match(line)):
            out.append((match[1], int(match[2]), match[3]))
    return out


class StatusBoard:
    """A board read and written by all ranks: signs of life, and reasons of stopped ranks."""

    def __init__(self, store: Any, rank: int, ranks: int, patience: float) -> None:
        self.rank, self.ranks, self.patience = rank, ranks, patience
        self._store = store
        self._lists = bool(store.has_extended_api())
        """True if the store has lists to append to, and answers for many keys at once; otherwise each rank's key is asked for."""
        self._holder = "torchrun on the first machine" if held_by_torchrun() else "rank 0"
        self._gone = False
        self._seen: dict[int, tuple[str, float]] = {}
        self._count = 0
        self._said = False
        self._given_up: set[int] = set()
        """Ranks that this one has reported as missing."""
        self._told = 0.0
        self._runs = threading.get_ident()
        self._places, self._moves = 0, (-1, -1)
        self._spot = 0, _spot(own_frames())
        """The last reported line, and the number of the place there."""
        self._place = "before the first step"
        self._stood = ""
        """The last place where it stood still."""
        self._slept = 0.0
        """The longest standstill of this whole process, in seconds."""
        self.fed = ""
        """The current work of this rank, in equal words on ranks with equal work."""
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="signs of life", daemon=True)
        self._thread.start()

    def at(self, place: str) -> None:
        """Note the place of this rank now."""
        self._place = place
        self._places += 1
        if time.monotonic() - self._told > BEAT / 4:
            self._say()

    @property
    def place(self) -> str:
        """Return the place of this rank, in words."""
        return self._place

    def stopped(self, why: str) -> None:
        """Tell the others of this rank's own stop, and the reason; the first reason counts."""
        if self._said:
            return
        self._said = True
        self._tell("stopped", f"{self._place}\n{self.fed[:_LONGEST]}\n{why[:_LONGEST]}")

    def waited(self, why: str) -> None:
        """Tell the others of this rank's stop for want of others."""
        self.stopped(f"{WAITED}: {why}")

    def close(self) -> None:
        """Stop the signs of life. Rank 0 waits for the others a little, since its store may end with it while they still read."""
        self._ended.set()
        self._thread.join(timeout=2 * BEAT)
        self._tell("left", "yes")
        until = time.monotonic() + SILENT + 2 * BEAT
        ended = [r for r, process in self._told_by("there").items() if has_ended(process)]
        peers = {r for r in range(self.ranks) if r not in (self.rank, *self._given_up, *ended)}
        while self.rank == 0 and time.monotonic() < until and (waited := peers - self._told_by("left").keys()):
            beats = self._beats()
            if all(self._has_been_silent(r, beats.get(r, ""), SILENT) for r in sorted(waited)):
                break
            time.sleep(BEAT / 100)

    def explain(self) -> str:
        """Return the rank that stopped the others, in words. Wait until dead ranks can be told from waiting ones."""
        until = time.monotonic() + SILENT + 2 * BEAT
        first = self._beats()
        while True:
            stops, why = self._reasons()
            if why:
                return why
            if late := self._late():
                return late
            fed = {self.rank: self.fed} | {r: text.split("\n", 2)[1] for r, text in stops.items()}
            if len(set(fed.values())) > 1:
                return "the ranks are at different things: " + "; ".join(f"rank {r}: {words}" for r, words in sorted(fed.items()))
            if time.monotonic() > until or len(stops) == self.ranks - 1:
                break
            time.sleep(BEAT / 4)
        beats = self._beats()
        if not beats:
            return f"the store that the ranks meet at does not answer: {self._holder}, which holds it, is gone or has stopped"
        words: list[str] = []
        left = self._told_by("left")
        for rank in range(self.ranks):
            if rank == self.rank or rank in stops:
                continue
            self._given_up.add(rank)
            place = (beats.get(rank) or first.get(rank) or NOWHERE).partition(NEWLINE)[2]
            if beats.get(rank) is None or beats.get(rank) == first.get(rank):
                gone = f"rank {rank} is gone or has stopped: no sign of life since it was {place}"
                words.append(f"rank {rank} has left the run" if rank in left else gone)
            else:
                words.append(f"rank {rank} lives, and has not come for {self.patience:g} s; it is {place}")
        return "; ".join(words) or "all other ranks waited, too"

    def last_words(self) -> str:
        """Return the missing ranks, in words, for a rank ended from outside; nothing if all others live."""
        until = time.monotonic() + SILENT + 2 * BEAT
        first = self._beats()
        while True:
            stops, why = self._reasons()
            if why:
                return why
            beats = self._beats()
            silent = [r for r in range(self.ranks) if r != self.rank and r not in stops and beats.get(r) == first.get(r)]
            if not silent or time.monotonic() > until:
                return f"no sign of life of rank {', '.join(map(str, silent))}" if silent else ""
            time.sleep(BEAT / 10)

    def _reasons(self) -> tuple[dict[int, str], str]:
        """Return the words of the other stopped ranks, and the known reasons: stops of their own, or else ended processes here; nothing without any."""
        stops = {r: text for r, text in self._told_by("stopped").items() if r != self.rank}
        reasons = {r: text for r, text in stops.items() if not _why(text).startswith(WAITED)}
        words = "; ".join(f"rank {r} stopped {text.partition(NEWLINE)[0]}: {_why(text)}" for r, text in sorted(reasons.items()))
        return stops, words or self._ended_here(stops)

    def _ended_here(self, stops: Collection[int]) -> str:
        """Return the ranks with ended processes on this machine, without a word, and their places; nothing for none."""
        left, places = self._told_by("left"), dict[int, str]()
        ended = [r for r, text in sorted(self._told_by("there").items()) if r != self.rank and r not in stops and r not in left and has_ended(text)]
        places = self._beats() if ended else {}
        return "; ".join(f"rank {r} is gone: its process has ended; it was {(places.get(r) or NOWHERE).partition(NEWLINE)[2]}" for r in ended)

    def _late(self) -> str:
        """Return, in words, that this rank itself kept the others waiting for too long; nothing if it did not."""
        gaps = [last - previous for last, previous in ((team.began[1], team.began[0]) for team in all_teams()) if previous]
        longest = max([self._slept, *gaps])
        if longest <= self.patience:
            return ""
        return f"this rank itself was late: it stood still for {longest:.0f} s, and the others wait {self.patience:g} s, so that they have ended" + (
            f"; it was {self._stood}" if self._stood else ""
        )

    def is_silent(self, rank: int, seconds: float = SILENT) -> bool:
        """Return True if a rank has given no sign of life for so long, since the first question."""
        return self._has_been_silent(rank, self._get("beat", rank), seconds)

    def _has_been_silent(self, rank: int, beat: str, seconds: float) -> bool:
        previous, since = self._seen.get(rank, ("", 0.0))
        if beat != previous or not since:
            self._seen[rank] = (beat, time.monotonic())
            return False
        return time.monotonic() - since > seconds

    # --- the store

    def _beat(self) -> None:
        if self._say():
            self._tell("there", this_process())
        last = time.monotonic()
        while not self._ended.wait(BEAT) and self._say():
            last, previous = time.monotonic(), last
            self._slept = max(self._slept, last - previous - BEAT)

    def _say(self) -> bool:
        self._told = time.monotonic()
        self._count += 1
        return self._set("beat", f"{self._count}\n{self._place}{self._line()[:_LONGEST]}")

    def _line(self) -> str:
        """Return the op, and the user's line, of the thread that runs the steps, if known. Another thread asks while it stands still."""
        if threading.get_ident() == self._runs:
            self._spot = self._places, _spot(own_frames())
        elif self._stands():
            self._spot = self._places, _spot(frames_of(self._runs))
            self._stood = self._place + self._spot[1]
        place, words = self._spot
        return words if place == self._places else ""

    def _stands(self) -> bool:
        """Return True if the thread that runs the steps has neither begun a message nor come to another place since the last question."""
        previous, self._moves = self._moves, (self._places, sum(team.begun for team in all_teams()))
        return previous == self._moves

    def _beats(self) -> dict[int, str]:
        """Return the last sign of life of each rank with any. Their keys exist, so asking for many waits for none."""
        numbers = sorted(self._told_by("there"))
        if not numbers:
            return {}
        keys = [_key("beat", r) for r in numbers]
        values: list[Any] = self._answer(lambda: self._store.multi_get(keys) if self._lists else [self._store.get(k) for k in keys], [])
        return {r: _words(data) for r, data in zip(numbers, values, strict=False)}

    def _set(self, topic: str, text: str) -> bool:
        """Return True if the store still answers."""
        return self._answer(lambda: self._store.set(_key(topic, self.rank), text.encode()) or True, False)

    def _tell(self, topic: str, text: str) -> None:
        """Tell something once, to all later readers."""
        line = json.dumps([self.rank, text], ensure_ascii=False).encode(errors="replace") + b"\n"
        if self._lists:
            self._answer(lambda: self._store.append(_key(topic), line) or True, False)
        else:
            self._set(topic, text)

    def _told_by(self, topic: str) -> dict[int, str]:
        """Return the words of ranks; the first word of each counts."""
        if not self._lists:
            return {r: text for r in range(self.ranks) if (text := self._get(topic, r))}
        key = _key(topic)
        data = self._answer(lambda: bytes(self._store.get(key)) if self._store.check([key]) else b"", b"")
        out: dict[int, str] = {}
        for line in data[: self.ranks * _LINE].splitlines():
            entry = _line(line)
            if entry is not None and 0 <= entry[0] < self.ranks:
                out.setdefault(*entry)
        return out

    def _get(self, topic: str, rank: int) -> str:
        key = _key(topic, rank)
        return self._answer(lambda: _words(self._store.get(key)) if self._store.check([key]) else "", "")

    def _answer(self, ask: Callable[[], T], otherwise: T) -> T:
        """Return the store's answer. torch would wait for ever for a stopped process, so ask in another thread."""
        answers: list[T] = []

        def run() -> None:
            with suppress(RuntimeError):  # the store is gone, and with it whoever could read this
                answers.append(ask())

        if self._gone:
            return otherwise
        if threading.current_thread() is self._thread:
            run()
        else:
            thread = threading.Thread(target=run, name="a question to the store", daemon=True)
            thread.start()
            thread.join(SILENT)
        self._gone = not answers
        return answers[0] if answers else otherwise


def _spot(frames: list[tuple[str, int, str]]) -> str:
    """Return the op of the running step, or else the user's line, as words."""
    for file, line, name in frames:
        if file == STEP_FILE:
            op = op_of(name, line)
            if op is None:
                return ""
            site = op.call_site
            return f", at {op.type}" + (f" ({site.short()})" if site is not None else "")
        if not file.startswith(_NOT_THE_USERS):
            return f", at {os.path.basename(file)}:{line}"
    return ""


NEWLINE = "\n"
NOWHERE = "0\nbefore its first step"
WAITED = "waited"
"""The prefix of the reason of a rank stopped by missing others."""


def _key(topic: str, rank: int | None = None) -> str:
    return f"foreshape/{topic}" + ("" if rank is None else f"/{rank}")


def _words(data: Any) -> str:
    """Return the text under a key."""
    return bytes(data[: 2 * _LONGEST]).decode(errors="replace")


def _line(line: bytes) -> tuple[int, str] | None:
    """Return a rank and its word; None for bytes of no rank."""
    try:
        entry: Any = json.loads(line)
    except ValueError:
        return None
    if not isinstance(entry, list) or len(cast("list[Any]", entry)) != 2:
        return None
    rank, text = cast("list[Any]", entry)
    return (rank, text[: 3 * _LONGEST]) if type(rank) is int and isinstance(text, str) else None


def _why(text: str) -> str:
    """Return the reason in a stopped rank's word."""
    return text.split("\n", 2)[-1]


# --- The identity of a rank's process, and a test for an ended one on this machine.


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
    parts, own_parts = process.split(), this_process().split()
    if len(parts) != 4 or len(own_parts) != 4 or parts[:2] != own_parts[:2] or not parts[2].isdecimal():
        return False
    try:
        return _began(int(parts[2])) != parts[3]
    except FileNotFoundError:
        return True
    except (OSError, ValueError):
        return False


def _began(process: int) -> str:
    """Return the start of a process of this machine, in ticks of the system; nothing for an ended one that is still listed."""
    with open(f"/proc/{process}/stat", encoding="ascii", errors="replace") as file:
        fields = file.read().rpartition(")")[2].split()
    return "" if fields[0] in "ZX" else fields[19]
