"""State and random numbers of Python in a network's code: the program has the first call, and says so where another call differs."""

from __future__ import annotations

import collections
import random
import threading
import warnings
from typing import Any

import numpy as np
import pytest

import foreshape as fs

torch = pytest.importorskip("torch")
nn = torch.nn
HISTORY: list[Any] = []
LAST: Any = None


class Memory:
    def __init__(self):
        self.frames = []


class Net(nn.Module):
    calls = 0

    def __init__(self, way):
        super().__init__()
        self.l, self.drop, self.way = nn.Linear(3, 3), nn.Dropout(0.5), way
        self.h, self.kept, self.count, self.memory = None, [], {"calls": 0}, Memory()
        self.queue, self.config = collections.deque(maxlen=2), {"scale": 2.0}
        self.rng, self.own = np.random.default_rng(0), random.Random(0)

    def forward(self, x):
        return getattr(self, self.way)(x, self.l(x))

    # --- what another call changes

    def none(self, x, y):
        y = y if self.h is None else y + self.h
        self.h = y.detach()
        return y

    def frames(self, x, y):
        self.kept.append(y)
        return torch.stack(self.kept[-2:]).mean(0)

    def counter(self, x, y):
        self.count["calls"] += 1
        return y * self.count["calls"]

    def held(self, x, y):
        self.memory.frames.append(y)
        return sum(self.memory.frames)

    def queued(self, x, y):
        self.queue.append(y)
        return sum(self.queue)

    def of_class(self, x, y):
        Net.calls += 1
        return y * Net.calls

    def of_file(self, x, y):
        HISTORY.append(y)
        return sum(HISTORY)

    def of_name(self, x, y):
        global LAST
        y = y if LAST is None else y + LAST
        LAST = y
        return y

    def drawn(self, x, y):
        return y if random.random() < 0.5 else x

    def drawn_by_numpy(self, x, y):
        return y * float(np.random.rand())

    def drawn_by_own(self, x, y):
        return y * self.rng.random() * self.own.random()

    def drawn_afresh(self, x, y):
        return y * np.random.default_rng().random()

    # --- what it does not

    def cached(self, x, y):
        if self.h is None:
            self.h = torch.ones(3, 3).tril()
        return y @ self.h

    def table(self, x, y):
        if x.shape[1] not in self.count:
            self.count[x.shape[1]] = torch.arange(x.shape[1]).float()
        return y + self.count[x.shape[1]]

    def watched(self, x, y):
        self.h = y
        self.kept.append(y)
        self.memory.last = y.detach()
        return self.drop(y) * self.config["scale"]

    def seeded(self, x, y):
        return y * random.Random(0).random()


def imported(net, x):
    with warnings.catch_warnings(record=True) as record:
        warnings.simplefilter("always")
        model = fs.from_torch(net, x)
    return model, " ".join(str(one.message) for one in record)


@pytest.fixture(autouse=True)
def fresh():
    global LAST
    yield
    HISTORY.clear()
    LAST, Net.calls = None, 0


TOLD = {
    "none": r"Net.h    test_python_state.py:\d+", "frames": r"Net.kept\[0\]    test_python_state.py:\d+", "held": "Net.memory.frames",
    "counter": r"changes numbers or tensors of Python.*Net.count\['calls'\] from 0 to 1    test_python_state.py:\d+", "queued": "Net.queue",
    "of_class": "changes numbers.*Net.calls from 0 to 1", "of_file": "HISTORY", "of_name": "LAST", "drawn": r"draws random numbers.*test_python_state.py:\d+",
    "drawn_by_numpy": r"draws random numbers.*test_python_state.py:\d+", "drawn_by_own": "Net.rng.*Net.own", "drawn_afresh": "other results in each call",
}  # fmt: skip


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("way", TOLD)
@pytest.mark.filterwarnings("ignore")
def test_told(way):
    import re

    torch.manual_seed(0)
    net, x = Net(way), torch.ones(2, 3)
    model, words = imported(net, x)
    assert re.search(TOLD[way], words), words
    assert (net.h, net.kept, net.count, net.memory.frames, len(net.queue), Net.calls, HISTORY, LAST) == (None, [], {"calls": 0}, [], 0, 0, [], None)
    assert model(x).shape == (2, 3)


@pytest.mark.parametrize("way", ["cached", "table", "watched", "seeded"])
def test_not_told(way):
    torch.manual_seed(0)
    net, x = Net(way), torch.ones(2, 3)
    model, words = imported(net, x)
    assert words == ""
    torch.testing.assert_close(model.for_test()(x), net.eval()(x).detach())


def test_another_thread_draws():
    net, x, stop = Net("cached"), torch.ones(2, 3), threading.Event()

    def draw():
        while not stop.wait(0.0001):
            random.random()
            np.random.rand()

    thread = threading.Thread(target=draw)
    thread.start()
    try:
        net.way = "watched"
        _, words = imported(net, x)
    finally:
        stop.set()
        thread.join()
    assert "draws" not in words


def test_generators_stay_as_they_are():
    random.seed(0)
    np.random.seed(0)
    torch.manual_seed(0)
    before = random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist()
    imported(Net("watched").train(), torch.ones(2, 3))
    fresh = Net("watched")  # draws its weights from torch
    del fresh
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before[:2]


NAMES: dict[str, Any] = {"torch": torch}


def test_code_that_runs_in_a_namespace_kept_beside_the_class():
    """A namespace is no state: it was emptied while its code ran."""
    exec("def forward(self, x):\n    y = self.l(x)\n    return y + torch.ones(3)\n", NAMES)

    class Written(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(3, 3)

        forward = NAMES["forward"]

    net, x = Written(), torch.randn(2, 3)
    torch.testing.assert_close(fs.from_torch(net, x)(x), net(x).detach())
