"""The rendezvous of processes: torch's own store at an address, with a deadline for every question."""

from __future__ import annotations

import contextlib
import errno
import queue
import re
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeAlias, TypeVar

from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError

T = TypeVar("T")
_ADDRESS = re.compile(r"(?:\[([0-9A-Fa-f:.%\w]{2,100})\]|([^\s:\[\]/]{1,253})):([0-9]{1,5})")
_AGAIN = 0.2
"""Seconds before another try after a refusal."""
_CLOSING = 2.0
"""Seconds to wait for an answer under way when leaving."""
_SOURCE = re.compile(r"^\[[^\]]*\] ")
_Said: TypeAlias = "queue.SimpleQueue[tuple[bool, Any]]"


@dataclass(frozen=True, slots=True)
class Address:
    """A host and a port. ``port`` 0: any free one, for a listener."""

    host: str
    port: int

    @staticmethod
    def of(text: str) -> Address:
        """Return an address from ``host:port`` or ``[IPv6]:port``. Raise `ExecutionError` for anything else."""
        match = _ADDRESS.fullmatch(text)
        if match is None or int(match[3]) > 65535:
            raise ExecutionError(f"an address is HOST:PORT, as 127.0.0.1:29600 or [::1]:29600; seen {text[:300]!r}")
        return Address(match[1] or match[2], int(match[3]))

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


class Meeting:
    """A store, asked in a thread of its own: a caller waits for ``patience`` seconds at most, even if the network hangs.

    After the other side is gone, every further question is an error at once.

    Args:
        where: its name in errors.
        open_store: opens the store; called in its own thread.
        address: for others to join, if they do not know it already.
    """

    def __init__(self, name: str, patience: float, open_store: Callable[[], Any], address: Address | None = None) -> None:
        self.where, self.patience, self.address = name, patience, address
        self._gone = ""
        self._asked: queue.SimpleQueue[tuple[Callable[[Any], Any], _Said] | None] = queue.SimpleQueue()
        opened: _Said = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._answer, args=(open_store, opened), name=f"store of {name}", daemon=True)
        self._thread.start()
        self._wait(opened, "no store of torch's that answers")

    # --- the methods of a store

    def set(self, key: str, value: bytes) -> None:
        """Let a key have a value."""
        self._ask(lambda store: store.set(key, bytes(value)))

    def get(self, key: str) -> bytes:
        """Return the value of a present key."""
        return self._ask(lambda store: bytes(store.get(key)))

    def check(self, keys: list[str]) -> bool:
        """Return True if all keys are there."""
        return self._ask(lambda store: bool(store.check(keys)))

    def delete_key(self, key: str) -> bool:
        """Remove a key; return True if there was one."""
        return self._ask(lambda store: bool(store.delete_key(key)))

    def add(self, key: str, amount: int) -> int:
        """Add to a number, 0 at first; return the sum."""
        return self._ask(lambda store: int(store.add(key, amount)))

    def close(self) -> None:
        """Leave. The opener of the store closes it for all, and nobody joins it any more: a late one would wait for nothing."""
        self._asked.put(None)
        if not self._gone and self._thread is not threading.current_thread():
            self._thread.join(_CLOSING)
        self._gone = self._gone or f"the store at {self.where} has been left"

    # --- the waiting thread

    def _ask(self, question: Callable[[Any], T]) -> T:
        if self._gone:
            raise ExecutionError(self._gone)
        answers: _Said = queue.SimpleQueue()
        self._asked.put((question, answers))
        return self._wait(answers, "no answer any more")

    def _wait(self, answers: _Said, otherwise: str) -> Any:
        try:
            done, value = answers.get(timeout=self.patience)
        except queue.Empty:
            self._gone = f"{self.where}: {otherwise}, for {self.patience:g} s"
            raise ExecutionError(self._gone) from None
        if done:
            return value
        reason = _SOURCE.sub("", str(value).strip().partition("\n")[0])[:300]
        self._gone = f"{self.where}: the other side is gone: {reason}"
        raise ExecutionError(self._gone) from value

    def _answer(self, open_store: Callable[[], Any], answers: _Said) -> None:
        try:
            store = open_store()
            answers.put((True, None))
            while (request := self._asked.get()) is not None:
                question, answers = request
                answers.put((True, question(store)))
        except (RuntimeError, ValueError, OSError) as error:  # torch's own errors of the store are RuntimeErrors
            answers.put((False, error))


class SignsOfLife:
    """A key whose number rises as long as this process lives, or until the end of the ``with`` block."""

    def __init__(self, meeting: Meeting, key: str, every: float = 1.0) -> None:
        self._meeting, self._key, self._every = meeting, key, every
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"signs of life at {meeting.where}", daemon=True)

    def __enter__(self) -> SignsOfLife:
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._ended.set()
        self._thread.join(timeout=2 * self._every)

    def _run(self) -> None:
        with contextlib.suppress(ExecutionError):  # whoever could see the signs is gone
            while not self._ended.is_set():
                self._meeting.add(self._key, 1)
                self._ended.wait(self._every)


class HeartbeatMonitor:
    """A watch over another process' signs of life."""

    def __init__(self, meeting: Meeting, key: str) -> None:
        self._meeting, self._key = meeting, key
        self._seen, self._since = -1, time.monotonic()

    @property
    def silent(self) -> float:
        """Return the seconds since the last new sign."""
        count = self._meeting.add(self._key, 0)
        if count != self._seen:
            self._seen, self._since = count, time.monotonic()
        return time.monotonic() - self._since


def listen(address: Address, patience: float) -> Meeting:
    """Open a store at an address of this machine, and there only. Raise `ExecutionError`: the port is in use, or the address is none of this machine's."""
    bound = bound_to(address)
    place = Address(*bound.getsockname()[:2])
    store: Any = torch.distributed.TCPStore  # pyright: ignore[reportPrivateImportUsage]

    def open_store() -> Any:
        return store(place.host, place.port, None, True, timedelta(seconds=patience), wait_for_workers=False, master_listen_fd=bound.detach())

    return Meeting(str(place), patience, open_store, place)


def connect(address: Address, patience: float) -> Meeting:
    """Connect to the store of another process within ``patience`` seconds. Raise `ExecutionError`: nobody listens there, or it is no store."""
    _knock(address, patience)
    store: Any = torch.distributed.TCPStore  # pyright: ignore[reportPrivateImportUsage]

    def open_store() -> Any:
        return store(address.host, address.port, None, False, timedelta(seconds=patience), wait_for_workers=False)

    return Meeting(str(address), patience, open_store, address)


def bound_to(address: Address) -> socket.socket:
    """Return a socket at this address, where torch's own would be at all addresses of the machine.

    Raises:
        ExecutionError: the port is in use, or the address is none of this machine's.
    """
    try:
        family, kind, protocol, _, place = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0]
    except (OSError, UnicodeError) as error:
        raise ExecutionError(f"cannot listen at {address}: there is no such host: {_reason(error)}") from None
    out = socket.socket(family, kind, protocol)
    try:
        out.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # a port whose last user has just gone
        out.bind(place)
    except OSError as error:
        out.close()
        words = {errno.EADDRINUSE: "the port is in use", errno.EADDRNOTAVAIL: "it is no address of this machine", errno.EACCES: "the port is not allowed"}
        raise ExecutionError(f"cannot listen at {address}: {words.get(error.errno or 0, _reason(error))}") from None
    return out


def _knock(address: Address, patience: float) -> None:
    """Wait until somebody listens at an address."""
    until = time.monotonic() + patience
    if not address.port:
        raise ExecutionError(f"{address}: nobody can be reached at port 0")
    while True:
        try:
            socket.create_connection((address.host, address.port), timeout=max(until - time.monotonic(), _AGAIN)).close()
            return
        except (socket.gaierror, UnicodeError) as error:
            raise ExecutionError(f"{address} cannot be reached: there is no such host: {_reason(error)}") from None
        except OSError as error:
            if time.monotonic() + _AGAIN > until:
                raise ExecutionError(f"{address} cannot be reached within {patience:g} s: {_reason(error)}") from None
        time.sleep(_AGAIN)


def _reason(error: Exception) -> str:
    return getattr(error, "strerror", None) or str(error)
