"""The store of a run's ranks: torch's own, one for the life of a process, with a part of its own for each join."""

from __future__ import annotations

import errno
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, TypeVar

from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError

T = TypeVar("T")

_BESIDES = 2.0
"""Seconds of a rank's wait for an answer, beyond its wait for others: torch ends its own waiting late."""


@dataclass(slots=True)
class _Met:
    store: Any
    joined: int = 0


_stores: dict[tuple[str, int, int, int], _Met] = {}
"""Meeting point of ranks -> the store there. It outlives a run: ranks that join again would have to take the port anew. An early one would still find the
store left by another.
"""


def store_at(host: str, port: int, rank: int, ranks: int, patience: float) -> Any:
    """Return the part of the store at an address for this join, with as many parts as joins before.

    Raises:
        ExecutionError: it cannot be reached or made, or not all ranks come.
    """
    return within(patience + _BESIDES, lambda: _store_at(host, port, rank, ranks, patience), f"rank {rank} of {ranks}: {host}:{port}")


def within(seconds: float, ask: Callable[[], T], who: str) -> T:
    """Return the result of ``ask``. torch may wait for it without end, so ask in a thread, and give it up.

    Raises:
        ExecutionError: the listener at the address accepts connections, and does not answer.
    """
    answers: list[T] = []
    failed: list[BaseException] = []

    def run() -> None:
        try:
            answers.append(ask())
        except BaseException as error:
            failed.append(error)

    thread = threading.Thread(target=run, name="a question to the store", daemon=True)
    thread.start()
    thread.join(seconds)
    if failed:
        raise failed[0]
    if not answers:
        raise ExecutionError(f"{who} accepts connections, and has not answered for {seconds:g} s: what listens there is no store of ranks, or has stopped")
    return answers[0]


def _store_at(host: str, port: int, rank: int, ranks: int, patience: float) -> Any:
    distributed: Any = torch.distributed
    met = _stores.get((host, port, rank, ranks))
    if met is None:
        met = _stores[host, port, rank, ranks] = _Met(_store(host, port, rank, ranks, patience))
    restarts = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")  # torchrun's store may hold keys of the ranks before
    shared = distributed.PrefixStore(f"foreshape/{restarts}/{met.joined}", met.store)
    _wait_for_all(shared, f"{host}:{port}", rank, ranks, patience)
    met.joined += 1
    return shared


def _store(host: str, port: int, rank: int, ranks: int, patience: float) -> Any:
    distributed: Any = torch.distributed
    settings: dict[str, Any] = {"timeout": timedelta(seconds=patience), "wait_for_workers": False}
    try:
        if rank == 0 and not held_by_torchrun():
            return distributed.TCPStore(host, port, ranks, True, master_listen_fd=_listening(host, port), **settings)
        return distributed.TCPStore(host, port, ranks, False, **settings)
    except (RuntimeError, ValueError) as error:  # torch's own errors of the store are RuntimeErrors
        reason = str(error).split("\n", 1)[0]
        raise ExecutionError(
            f"rank {rank} of {ranks} cannot reach the store of the ranks at {host}:{port} within {patience:g} s; "
            f"is rank 0 started there, and the port open? {reason}"
        ) from error


def held_by_torchrun() -> bool:
    """Return True if torchrun has made the store already."""
    return os.environ.get("TORCHELASTIC_USE_AGENT_STORE") == "True"


def _listening(host: str, port: int) -> int:
    """Return a socket for listening at this address alone; torch would listen at all of the machine's."""
    try:
        family, _, _, _, place = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        return socket.create_server((place[0], place[1]), family=family, backlog=1024).detach()
    except OSError as error:
        words = {errno.EADDRINUSE: "the port is in use", errno.EADDRNOTAVAIL: "no address of this machine, on which rank 0 runs"}
        why = words.get(error.errno or 0, error.strerror or str(error))
        raise ExecutionError(f"rank 0 cannot listen at {host}:{port} (MASTER_ADDR and MASTER_PORT): {why}") from error


def _wait_for_all(store: Any, address: str, rank: int, ranks: int, patience: float) -> None:
    """Wait until all ranks have come, and have come as so many."""
    keys = [f"here/{r}" for r in range(ranks)]
    try:
        store.set(keys[rank], str(ranks))
        until = time.monotonic() + patience
        while not store.check(keys):
            if time.monotonic() > until and (missing := [k for k in keys if not store.check([k])]):
                names = ", ".join(k.removeprefix("here/") for k in missing)
                raise ExecutionError(
                    f"rank {rank} of {ranks} has waited {patience:g} s at {address}: not there {'is' if len(missing) == 1 else 'are'} "
                    f"rank{'s' * (len(missing) > 1)} {names}"
                )
            time.sleep(0.005)
        counts = {r: bytes(data[:20]).decode(errors="replace") for r, data in enumerate(store.multi_get(keys))}
    except RuntimeError as error:
        raise ExecutionError(f"rank {rank} of {ranks}: the store of the ranks at {address} is gone, with the process that held it") from error
    if set(counts.values()) != {str(ranks)}:
        words = ", ".join(f"rank {r}: {n}" for r, n in counts.items())
        raise ExecutionError(f"the ranks do not agree on how many they are (WORLD_SIZE): {words}")
