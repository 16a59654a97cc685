"""Small steps as instructions of one loop, beside the same steps on torch's kernels."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import ExecutionError
from foreshape.machine.kernels import instructions
from foreshape.runtime.engine.finite import NotFinite

pytest.importorskip("numba")
if not instructions.can_compile():
    pytest.skip("this torch has no product of matrices to call", allow_module_level=True)

OPTIMIZERS: dict[str, Callable[[], Any]] = {
    "sgd": lambda: fs.optimizer.SGD(0.1),
    "momentum": lambda: fs.optimizer.Momentum(0.05, 0.9),
    "nesterov": lambda: fs.optimizer.Momentum(0.05, 0.9, use_nesterov=True),
    "adam": lambda: fs.optimizer.Adam(0.01),
    "adamw": lambda: fs.optimizer.AdamW(0.01),
}


class Network:
    """A classifier of rows of 8 numbers, its executor, and a scope with the same first parameters each time."""

    def __init__(self, optimizer: Callable[[], Any] = OPTIMIZERS["sgd"], widths: tuple[int, ...] = (16,), bias: bool = True, ignored: int = -100) -> None:
        self.main, self.startup, self.scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(self.main, self.startup):
            h, label = layer.data("x", shape=["batch", 8]), layer.data("y", shape=["batch", 1], dtype="int64")
            for width in widths:
                h = layer.fc(h, width, "relu", bias=None if bias else False)
            losses = layer.softmax_with_cross_entropy(layer.fc(h, 5), label, ignore_index=ignored)
            self.loss = layer.mean(losses)
            optimizer().minimize(self.loss)
        self.executor = fs.Executor(seed=3)
        self.executor.run(self.startup, scope=self.scope)

    def step(self, batch: int, seed: int = 0, low: int = 0) -> float:
        rng = np.random.RandomState(seed)
        feed = {"x": rng.standard_normal((batch, 8)).astype("float32"), "y": rng.randint(low, 5, (batch, 1))}
        return self.run(feed)

    def run(self, feed: dict[str, Any]) -> float:
        return float(self.executor.run(self.main, feed, [self.loss], self.scope)[0])

    def plans(self) -> list[Any]:
        return [*self.executor.step(self.main, [self.loss]).plan_cache.values()]

    def values(self) -> dict[str, np.ndarray]:
        return {v.name: self.scope[v.name].copy() for v in self.main.global_block.vars.values() if v.persistable}


def by_torch(monkeypatch: pytest.MonkeyPatch, of: Callable[[], Network], run: Callable[[Network], Any]) -> tuple[Network, Any]:
    """Return a network after some steps on torch's kernels, and what the steps gave."""
    with monkeypatch.context() as patch:
        patch.setenv(instructions.SWITCH, "torch")
        network = of()
        out = run(network)
    assert all(p.small is None for p in network.plans())
    return network, out


@pytest.mark.quick_cases(one_in=4, turn=3)
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
@pytest.mark.parametrize(("widths", "bias", "ignored"), [((16,), True, -100), ((16, 12), False, -100), ((7, 33, 3), True, 2), ((), True, -100)])
def test_a_small_step_computes_what_torch_s_kernels_do(
    monkeypatch: pytest.MonkeyPatch, optimizer: str, widths: tuple[int, ...], bias: bool, ignored: int
) -> None:
    def run(network: Network) -> list[float]:
        return [network.step((1, 20, 21, 200)[k % 4], k) for k in range(20)]

    def make() -> Network:
        return Network(OPTIMIZERS[optimizer], widths, bias, ignored)

    other, wanted = by_torch(monkeypatch, make, run)
    network = make()
    assert run(network) == pytest.approx(wanted, abs=1e-5)
    assert all(p.small is not None for p in network.plans())
    for name, value in network.values().items():
        assert value == pytest.approx(other.values()[name], abs=2e-5), name


@pytest.mark.quick_cases(one_in=4, turn=2)
@pytest.mark.parametrize("batch", [1, 3, 20, 31, 200])
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_its_memory_is_no_more_than_planned(optimizer: str, batch: int) -> None:
    network = Network(OPTIMIZERS[optimizer], (16, 12))
    network.step(batch)
    (plan,) = network.plans()
    whole = network.executor.step(network.main, [network.loss]).plan
    inputs = batch * (8 * 4 + 8)
    assert plan.small is not None
    assert 0 < plan.small.nbytes + 4 <= whole.peak(batch=batch) - whole.held(batch=batch) - inputs


def test_a_class_out_of_range_is_refused_before_anything_changes() -> None:
    network = Network()
    network.step(4)
    before = network.values()
    with pytest.raises(ExecutionError, match=r"a class number must be in \[0, 5\); seen are 0 to 5|0 to 5"):
        network.run({"x": np.ones((2, 8), "float32"), "y": np.array([[0], [5]])})
    assert all(np.array_equal(before[name], value) for name, value in network.values().items())


def test_a_loss_that_is_not_finite_stops_it() -> None:
    network = Network()
    network.executor.finite = (network.loss.name,)
    network.step(4)
    assert all(p.small is not None for p in network.plans())
    before = network.values()
    with pytest.raises(NotFinite):
        network.run({"x": np.full((4, 8), np.inf, "float32"), "y": np.zeros((4, 1), "int64")})
    assert all(np.array_equal(before[name], value) for name, value in network.values().items())


def test_inputs_with_gaps_and_new_parameters_are_taken(monkeypatch: pytest.MonkeyPatch) -> None:
    x = np.random.RandomState(0).standard_normal((8, 6)).astype("float32")

    def run(network: Network) -> list[float]:
        out = [network.step(6), network.run({"x": x.T, "y": np.zeros((6, 1), "int64")})]
        name = next(v.name for v in network.main.global_block.vars.values() if v.is_parameter)
        network.scope.set(name, np.full((8, 16), 0.1, "float32"))
        return [*out, network.step(6), network.step(6)]

    _, wanted = by_torch(monkeypatch, Network, run)
    assert run(Network()) == pytest.approx(wanted, abs=1e-6)


def test_threads_run_it_at_once() -> None:
    network = Network(lambda: fs.optimizer.SGD(0.0))
    wanted = [network.step(9, k) for k in range(8)]
    found: list[list[float]] = [[] for _ in range(4)]

    def run(out: list[float]) -> None:
        for _ in range(50):
            out[:] = [network.step(9, k) for k in range(8)]

    threads = [threading.Thread(target=run, args=(out,)) for out in found]
    for one in threads:
        one.start()
    for one in threads:
        one.join()
    assert all(out == wanted for out in found)


def test_other_steps_stay_with_torch_s_kernels() -> None:
    x = layer.data("x", shape=["batch", 8])
    out = layer.tanh(layer.fc(x, 3))
    executor = fs.Executor()
    executor.run(fs.default_startup_program())
    executor.run(feed={"x": np.ones((2, 8), "float32")}, fetch=[out])
    assert all(p.small is None for p in executor.step(fs.default_main_program(), [out]).plan_cache.values())
