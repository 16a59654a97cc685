"""Imports in several threads: one at a time, unseen by the others."""

from __future__ import annotations

import math
import threading
from typing import Any

import pytest

import foreshape as fs

torch = pytest.importorskip("torch")
nn = torch.nn
functional = torch.nn.functional
WATCHED: list[tuple[Any, str]] = [
    *((torch, name) for name in ("div", "linspace", "max_pool1d", "ctc_loss", "stack", "cat", "istft", "unbind", "split", "cdist", "lstm")),
    *((functional, name) for name in ("max_pool1d", "max_pool2d", "avg_pool2d", "gaussian_nll_loss", "alpha_dropout", "_VF")),
    *((nn.Module, name) for name in ("to", "float", "double", "half", "forward", "__setattr__")),
    *((nn.LSTM, name) for name in ("forward",)),
    *((nn.AdaptiveLogSoftmaxWithLoss, name) for name in ("forward",)),
    *((torch.Tensor, name) for name in ("__iter__", "unbind", "split", "register_hook")),
    *((torch.linalg, name) for name in ("matrix_norm",)),
    *((torch.autograd.Function, name) for name in ("forward", "setup_context")),
]


@pytest.fixture(autouse=True)
def _checked_distributions(monkeypatch):
    monkeypatch.setattr(torch.distributions.Distribution, "_validate_args", True)  # torch.compile turns it off for good


def half(n):
    return int(n / 2) + len([n])


class Base(nn.Module):
    def forward(self, x):
        return x.reshape(len(x), -1) / math.sqrt(x.shape[0])


class Net(Base):
    def __init__(self):
        super().__init__()
        self.l, self.steps = nn.Linear(8, 3), 0

    def scaled(self, x):
        return x * half(x.shape[0])

    @staticmethod
    def rooted(x):
        return x * math.sqrt(x.shape[0])

    def forward(self, x):
        for t in range(x.shape[1]):
            x = x + t
        return self.rooted(self.scaled(self.l(super().forward(x).float())))


def names():
    seen = {f"{getattr(holder, '__name__', holder)}.{name}": holder.__dict__.get(name, getattr(holder, name)) for holder, name in WATCHED}
    return seen | {name: value for name, value in globals().items() if name in ("math", "len", "int", "range", "half", "Net", "Base")} | vars(Net)


def test_other_threads_see_what_is_there():
    before, seen, stop = names(), set(), threading.Event()
    net = Net()

    def watch():
        while not stop.wait(0.0002):
            now = names()
            seen.update(name for name in {*before, *now} if now.get(name) is not before.get(name))
            if not torch.distributions.Distribution._validate_args:
                seen.add("validation of distributions")

    watcher = threading.Thread(target=watch)
    watcher.start()
    try:
        model = fs.from_torch(net, torch.ones(4, 8))
    finally:
        stop.set()
        watcher.join()
    assert seen == set()
    assert names() == before
    assert not {"forward", "to", "scaled", "rooted"} & set(vars(net))
    x = torch.rand(7, 8)
    torch.testing.assert_close(model(x), net(x).detach())  # open sizes through len, math, int, and parents


def test_three_at_once():
    before, failed, models = names(), list[str](), list[Any]()

    def run():
        try:
            models.append(fs.from_torch(Net(), torch.ones(4, 8)))
        except Exception as error:  # of any kind: there is to be none
            failed.append(f"{type(error).__name__}: {error}")

    threads = [threading.Thread(target=run) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []
    assert len(models) == 3
    assert names() == before


def test_checks_of_distributions_are_there_for_others():
    class Drawn(nn.Module):
        def forward(self, x):
            return torch.distributions.Normal(x, x.exp()).log_prob(x + 1).mean()

    model = fs.from_torch(Drawn(), torch.ones(4, 2))
    x = torch.rand(5, 2)
    torch.testing.assert_close(model(x), Drawn()(x))
    with pytest.raises(ValueError, match="GreaterThan"):
        torch.distributions.Normal(0.0, torch.tensor(-1.0))


@pytest.mark.long
@pytest.mark.parametrize(("p", "rows"), [(2.0, 40), (1.0, 5), *(pytest.param(p, n, marks=pytest.mark.long) for p, n in ((2.0, 5), (1.0, 40)))])
def test_distances_of_equal_rows(rows, p):
    class Distances(nn.Module):
        def __init__(self):
            super().__init__()
            self.l = nn.Linear(3, 4)

        def forward(self, x):
            e = self.l(x)
            return torch.cdist(e, e, p=p).mean() + functional.pdist(e).mean()

    torch.manual_seed(0)
    net, x = Distances(), torch.randn(rows, 3)
    x[1] = x[0]
    net(x).backward()
    got = fs.from_torch(net, x).gradients(x)
    for name, parameter in net.named_parameters():
        assert torch.isfinite(got[name]).all()
        torch.testing.assert_close(got[name], parameter.grad, rtol=2e-3, atol=2e-4)
