"""What training takes of the process: pages in the steady state, growth, many batch sizes, several executors, and threads."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.values.torch_proxy import torch

STEADY = Path(__file__).parents[1] / "support" / "steady.py"
MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="pages are kept on Linux with glibc")


def process(network: str, sizes: list[int], *options: str, **environment: str) -> dict[str, float]:
    """What a process of its own took to train; with oneDNN's products, whatever the processor, and on one thread."""
    asked = {"FORESHAPE_PRODUCTS": "onednn", "FORESHAPE_KEEP_PAGES": "1", "OMP_NUM_THREADS": "1"} | environment
    done = subprocess.run(
        [sys.executable, str(STEADY), network, ",".join(map(str, sizes)), *options], env=os.environ | asked, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def least_peak(network: str, sizes: list[int], *options: str) -> float:
    """The peak of the process that leaves the smallest gaps between tensors, of three: where glibc puts them differs."""
    return min(process(network, sizes, *options, PYTHONHASHSEED=seed)["peak"] for seed in "123")


# --- pages


@linux
@pytest.mark.long
@pytest.mark.parametrize(
    ("network", "sizes", "warm"), [("images", [32], 200), ("table", [64], 200), ("text", [16, 24], 200), ("dense", [128], 200), ("large", [2560], 10)]
)
def test_a_steady_step_takes_no_pages(network: str, sizes: list[int], warm: int) -> None:
    assert process(network, sizes, f"warm={warm}", "steps=20")["faults"] < 5


@linux
@pytest.mark.long
def test_steps_take_their_pages_anew_where_they_are_not_kept() -> None:
    assert process("large", [2560], "warm=3", "steps=3", FORESHAPE_KEEP_PAGES="0")["faults"] > 5000


# --- growth


@linux
@pytest.mark.longest
@pytest.mark.parametrize(
    ("network", "sizes"), [("dense", [64, 32, 128, 48, 200, 8]), ("images", [8, 16, 12, 24]), ("text", [16, 24, 8, 16, 32]), ("table", [64, 32, 48])]
)
def test_a_thousand_steps_leave_nothing_behind(network: str, sizes: list[int]) -> None:
    took = process(network, sizes, "warm=300", "steps=1000")
    assert took["grown"] < 2 * MIB and took["objects"] <= 10


@pytest.mark.long
@linux
@pytest.mark.parametrize(
    ("network", "sizes"),
    [("dense", [16, 32]), ("dense", [64, 32]), ("text", [16, 24]), ("table", [64, 32])],
)
def test_nothing_of_a_step_waits_for_the_garbage_collector(network: str, sizes: list[int]) -> None:
    took = process(network, sizes, "warm=10", "steps=40")
    assert took["cycles"] == 0 and took["objects"] <= 10


# --- batch sizes in turn


@linux
@pytest.mark.longest
def test_batch_sizes_in_turn_do_not_add_up() -> None:
    """glibc leaves gaps of up to three tensors, which differ from process to process; tensors of all sizes would be eight more."""
    sizes, tensor, alive = [160, 320, 640, 1280, 2560, 1920, 960], 40 * MIB, 4
    alone = least_peak("large", [2560])
    in_turn = process("large", sizes)
    together = alone + alive * tensor * sum(sizes) / max(sizes) - alive * tensor
    assert in_turn["peak"] < alone + 3.5 * tensor < together - 3.5 * tensor
    assert in_turn["faults"] < 5


@linux
@pytest.mark.long
def test_what_onednn_keeps_for_sizes_of_products_does_not_add_up() -> None:
    sizes = list(range(33, 224, 3))
    few, exact = process("dense", sizes)["warmed"], process("dense", sizes, "exact")["warmed"]
    assert few < exact / 2


# --- several executors, and threads


@linux
@pytest.mark.longest
@pytest.mark.parametrize(("network", "batch", "gaps"), [("large", 2560, 100 * MIB), ("dense", 512, 10 * MIB)])
def test_a_second_executor_needs_its_scope_and_no_more(network: str, batch: int, gaps: int) -> None:
    """If each kept its own memory, a second one of "large" would take four tensors more, 160 MiB."""
    one, two = least_peak(network, [batch]), least_peak(network, [batch], "executors=2")
    assert two < one + process(network, [batch])["held"] + gaps


BATCHES = [16, 24, 64, 16, 9]


def network() -> tuple[fs.Program, fs.Program, fs.Variable]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", shape=["batch", 64]), layer.data("y", shape=["batch"], dtype="int64")
        h = layer.dropout(layer.fc(x, 96, activation="relu"), 0.3)
        loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 10), y))
        fs.optimizer.Adam(0.01).minimize(loss)
    return main, startup, loss


def feeds(seed: int) -> list[dict[str, np.ndarray]]:
    rng = np.random.RandomState(seed)
    return [{"x": rng.standard_normal((n, 64)).astype(np.float32), "y": rng.randint(0, 10, n)} for n in BATCHES * 4]


class User:
    """An executor that trains in a scope, and what it saw."""

    def __init__(self, described: tuple[fs.Program, fs.Program, fs.Variable], seed: int, executor: fs.Executor | None = None) -> None:
        self.main, startup, self.loss = described
        self.executor, self.scope, self.seen = executor or fs.Executor(seed=seed), fs.Scope(), list[bytes]()
        fs.Executor(seed=seed).run(startup, scope=self.scope)

    def step(self, feed: dict[str, np.ndarray]) -> None:
        self.seen.append(self.executor.run(self.main, feed, [self.loss], self.scope)[0].tobytes())

    def train(self, seed: int) -> None:
        for feed in feeds(seed):
            self.step(feed)

    def result(self) -> tuple[list[bytes], dict[str, bytes]]:
        return self.seen, {n: self.scope.get(n).tobytes() for n in self.scope.names()}


def alone(described: Any, seed: int) -> tuple[list[bytes], dict[str, bytes]]:
    user = User(described, seed)
    user.train(seed)
    return user.result()


def test_executors_that_take_turns_compute_what_each_would_alone() -> None:
    described = network()
    users = [User(described, k) for k in range(3)]
    for together in zip(*(feeds(k) for k in range(3)), strict=True):
        for user, feed in zip(users, together, strict=True):
            user.step(feed)
    assert [u.result() for u in users] == [alone(described, k) for k in range(3)]


def test_two_executors_take_turns_on_one_scope() -> None:
    described = plain_network()
    one = User(described, 0)
    one.train(0)
    user, executors = User(described, 0), [fs.Executor(seed=5), fs.Executor(seed=6)]
    for k, feed in enumerate(feeds(0)):
        user.executor = executors[k % 2]
        user.step(feed)
    assert user.result() == one.result()


def plain_network() -> tuple[fs.Program, fs.Program, fs.Variable]:
    """Without random operators: what it computes does not depend on whose generator is asked."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", shape=["batch", 64]), layer.data("y", shape=["batch"], dtype="int64")
        loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(layer.fc(x, 96, activation="relu"), 10), y))
        fs.optimizer.Momentum(0.01, 0.9).minimize(loss)
    return main, startup, loss


def at_once(users: list[User]) -> None:
    """Each user in a thread of its own, all starting together."""
    start, errors = threading.Barrier(len(users)), list[BaseException]()

    def go(user: User, seed: int) -> None:
        try:
            start.wait()
            user.train(seed)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=go, args=(user, k)) for k, user in enumerate(users)]
    for t in threads:
        t.start()
    for t in threads:
        t.join()
    assert not errors


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("shared", [False, True])
def test_threads_compute_what_each_would_alone(shared: bool) -> None:
    """With random operators where each has its executor; one executor has one generator."""
    described = plain_network() if shared else network()
    wanted = [alone(described, k) for k in range(4)]
    for _ in range(3):
        one = fs.Executor() if shared else None
        users = [User(described, k, one) for k in range(4)]
        at_once(users)
        assert [u.result() for u in users] == wanted


def test_threads_make_a_step_once(monkeypatch: pytest.MonkeyPatch) -> None:
    from foreshape.runtime.engine import executor as engine

    described, one, made = plain_network(), fs.Executor(), list[str]()
    make = engine.CompiledStep.__init__
    users = [User(described, k, one) for k in range(4)]
    monkeypatch.setattr(engine.CompiledStep, "__init__", lambda self, *a, **k: (made.append("step"), make(self, *a, **k))[1])
    at_once(users)
    assert made == ["step"]


@contextmanager
def torch_threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def test_a_new_thread_does_not_inherit_the_one_thread_of_a_small_step() -> None:
    from foreshape.machine.process.threads import back_on, on_others, threads_here

    seen: list[int] = []

    def new(ask: Any) -> None:
        thread = threading.Thread(target=lambda: seen.append(ask()))
        thread.start()
        thread.join()

    with torch_threads(2):
        assert threads_here() == 2
        on_others(1, 2)
        new(torch.get_num_threads)  # as torch has it
        new(threads_here)
        assert torch.get_num_threads() == 1
        back_on(2)
        new(threads_here)
        assert torch.get_num_threads() == 2
    assert seen == [1, 2, 2]


def test_after_a_step_torch_has_as_many_threads_as_before() -> None:
    with torch_threads(2):
        user = User(plain_network(), 0)
        user.train(0)
        assert torch.get_num_threads() == 2
        with pytest.raises(fs.ExecutionError):
            user.step(feeds(0)[0] | {"y": np.full(BATCHES[0], 99)})
        assert torch.get_num_threads() == 2
