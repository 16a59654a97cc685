"""What steps leave behind: nothing. No bytes after hundreds of them, none for the sizes that came before, and no new pages."""

from __future__ import annotations

import gc
import resource
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from support.measured import allocator_events, most_and_last

import foreshape as fs
from foreshape import layer
from foreshape.machine.process.pages import keep_pages

BATCHES = (4, 64, 16, 1)
KINDS = ["dense", *(pytest.param(k, marks=pytest.mark.long) for k in ("images", "ragged"))]


@pytest.fixture
def no_collector() -> Iterator[None]:
    """What is dead must be freed when it is, and not when garbage is collected."""
    gc.collect()
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


class Net:
    """A network that trains, and batches of any size for it."""

    def __init__(self, kind: str) -> None:
        self.main, startup, self.kind = fs.Program(), fs.Program(), kind
        with fs.program_guard(self.main, startup):
            if kind == "dense":
                h = layer.fc(layer.data("x", shape=["batch", 32]), 64, "relu")
            elif kind == "images":
                h = layer.batch_norm(layer.conv2d(layer.data("x", shape=["batch", 3, 12, 12]), 8, 3, bias=False), "relu")
                h = layer.dropout(layer.pool2d(h, 2, stride=2), 0.3)
            else:
                words = layer.embedding(layer.data("x", shape=["rows", 1], dtype="int64", lod_level=1), [50, 16], is_sparse=True)
                h = layer.sequence_pool(words, "sum")
            self.loss = layer.mean(layer.square_error_cost(layer.fc(h, 1), layer.data("y", shape=["batch", 1])))
            fs.optimizer.Adam(0.01, lazy_mode=True).minimize(self.loss)
        self.executor, self.scope = fs.Executor(seed=3), fs.Scope()
        self.executor.run(startup, scope=self.scope)

    def step(self, batch: int) -> Any:
        x: Any
        if self.kind == "dense":
            x = np.ones((batch, 32), np.float32)
        elif self.kind == "images":
            x = np.ones((batch, 3, 12, 12), np.float32)
        else:
            x = fs.LoDTensor(np.arange(3 * batch).reshape(-1, 1) % 50, [[3] * batch])
        return self.executor.run(self.main, {"x": x, "y": np.ones((batch, 1), np.float32)}, self.loss, self.scope)

    def bytes(self, batches: list[int]) -> tuple[int, int]:
        """The most bytes above the start in some steps, and what is left of all of them."""

        def run() -> None:
            for batch in batches:
                self.step(batch)

        return most_and_last(allocator_events(run)[0])


@pytest.mark.parametrize("kind", KINDS)
def test_different_batch_sizes_in_turn_do_not_add_up(kind: str, no_collector: None) -> None:
    net = Net(kind)
    net.bytes([*BATCHES])
    alone = [net.bytes([b]) for b in BATCHES]
    most, left = net.bytes([*BATCHES, *BATCHES])
    assert {one[1] for one in alone} == {left} == {0}
    assert most == max(one[0] for one in alone)


@pytest.mark.parametrize("kind", KINDS)
def test_hundreds_of_steps_hold_no_more_than_one(kind: str, no_collector: None) -> None:
    net = Net(kind)
    net.bytes([8, 8])
    one, many = net.bytes([8]), net.bytes([8] * 200)
    assert one[1] == many[1] == 0 and many[0] == one[0] > 0


def test_this_measure_sees_what_is_kept(no_collector: None) -> None:
    net = Net("dense")
    net.step(8)
    kept: list[Any] = []
    events, _ = allocator_events(lambda: kept.extend(net.step(8) for _ in range(5)))
    assert most_and_last(events)[1] == 5 * 4


@pytest.mark.parametrize("kind", KINDS)
def test_a_steady_step_takes_no_new_pages(kind: str) -> None:
    if not keep_pages():
        pytest.skip("the allocator of this system gives pages back")
    net, steps = Net(kind), 60
    fewest = 1e9
    for _ in range(5):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        for _ in range(steps):
            net.step(64)
        fewest = min(fewest, (resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before) / steps)
    assert fewest < 0.5
