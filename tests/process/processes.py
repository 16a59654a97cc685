"""Processes that are forked or spawned from one whose kernels have run on two threads: ``python processes.py WHAT``; prints what was seen as JSON."""

from __future__ import annotations

import json
import multiprocessing
import os
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

SAFETY = 900
"""Seconds after which a child that hangs is ended: no measure of anything."""


class Network:
    """A step that is large enough for two threads; an equal one wherever it is made."""

    def __init__(self, threads: Any = None) -> None:
        self.main, startup = fs.Program(), fs.Program()
        with fs.program_guard(self.main, startup):
            self.out = layer.fc(layer.data("x", shape=["batch", 512]), 512, weight="w", bias="b")
        self.executor, self.scope = fs.Executor(threads=threads), fs.Scope()
        self.executor.run(startup, scope=self.scope)
        self.scope.set("w", np.random.RandomState(1).rand(512, 512).astype("float32"))
        self.scope.set("b", np.zeros(512, "float32"))

    def step(self) -> float:
        x = np.random.RandomState(2).rand(64, 512).astype("float32")
        return float(self.executor.run(self.main, {"x": x}, [self.out], self.scope)[0].mean())


def look(network: Network | None, threads: Any = None) -> dict[str, Any]:
    """What a process sees: a network's result, and its own and torch's threads."""
    import torch

    try:
        network = network if network is not None else Network(threads)
        large = float(torch.ones(3_000_000).mul(2).mean())  # outside of an executor, as a data set may
        return {"value": network.step(), "threads": network.executor.threads, "torch": torch.get_num_threads(), "large": large}
    except fs.ForeshapeError as error:
        return {"error": type(error).__name__, "words": str(error)}


def tell(connection: Any, ask: Callable[..., Any], *given: Any) -> None:
    connection.send(ask(*given))
    connection.close()


def child(method: Any, ask: Callable[..., Any], *given: Any) -> Any:
    """What a function answers in a child of its own; "hangs" where it never does."""
    context = multiprocessing.get_context(method)
    here, there = context.Pipe(duplex=False)
    process = context.Process(target=tell, args=(there, ask, *given))
    process.start()
    there.close()
    try:
        return here.recv() if here.poll(SAFETY) else "hangs"
    except EOFError:
        return f"ended with {process.exitcode}"
    finally:
        process.kill()
        process.join()


def grandchild() -> Any:
    return child("fork", look, None)


def beside_steps(network: Network) -> list[Any]:
    """Children that are forked while another thread makes and runs steps."""
    stop = threading.Event()

    def run() -> None:
        while not stop.is_set():
            Network().step()

    other = threading.Thread(target=run)
    other.start()
    try:
        return [child("fork", look, None if k % 2 else network) for k in range(6)]
    finally:
        stop.set()
        other.join()


def main() -> None:
    what = sys.argv[1]
    seen: dict[str, Any] = {}
    if what == "torch":  # torch was there first, and foreshape runs in the child only
        import torch

        torch.set_num_threads(2)
        torch.ones(3_000_000).mul(2)
        seen["child"] = child("fork", look, None)
    elif what == "fresh":  # nothing has loaded torch
        seen["child"] = child("fork", look, None, 2)
    else:
        import torch

        network, told = Network(), Network(2)
        torch.set_num_threads(2)
        seen["before"] = look(network)
        if what == "fork":
            seen["inherited"] = child("fork", look, network)
            seen["own"] = child("fork", look, None)
            seen["adaptive"] = child("fork", look, None, "adaptive")
            seen["one"] = child("fork", look, None, 1)
            seen["told"] = child("fork", look, told)
            seen["two"] = child("fork", look, None, 2)
            seen["grandchild"] = child("fork", grandchild)
        elif what == "spawn":
            seen["own"] = child("spawn", look, None)
            seen["two"] = child("spawn", look, None, 2)
        else:
            seen["beside"] = beside_steps(network)
        seen["after"] = look(network)
    print(json.dumps(seen))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
