"""Training with gradients of several batches in one update, in 16 bits, and with learning rates that know the run."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.callbacks import Callback, Run
from foreshape.apps.training.checkpoint.checkpoint import Checkpoint
from foreshape.errors import SchemaError
from foreshape.optimizer import SGD, Adam, Group, Momentum, cosine, polynomial

X = np.random.RandomState(0).randn(48, 6).astype("float32")
Y = np.tanh(X).sum(1, keepdims=True).astype("float32")


class Described:
    """A regression in a scope of its own."""

    def __init__(self) -> None:
        self.main, self.startup, self.scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(self.main, self.startup):
            x, y = layer.data("x", 6), layer.data("y", 1)
            hidden = layer.fc(x, 16, "tanh", weight="hidden.weight", bias="hidden.bias")
            self.cost = layer.square_error_cost(layer.fc(hidden, 1, weight="out.weight", bias="out.bias"), y)

    def train(self, optimizer: Any = None, data: Any = None, **more: Any) -> fs.History:
        given = {"x": X, "y": Y} if data is None else data
        options: dict[str, Any] = {"batch_size": 12, "shuffle": False, "progress": False, "scope": self.scope, "startup": self.startup}
        return fs.train(self.cost, given, optimizer=optimizer, **(options | more))

    def values(self) -> dict[str, Any]:
        return {n: self.scope.get(n) for n in self.scope.names()}


def test_several_batches_train_as_one_as_large() -> None:
    whole, parts = Described(), Described()
    before = str(parts.main)
    large = whole.train(Adam(polynomial(0.05), weight_decay=0.01), batch_size=24, epochs=3)
    small = parts.train(Adam(polynomial(0.05), weight_decay=0.01), batch_size=6, epochs=3, accumulate=4)
    assert str(parts.main) == before and small.steps == 4 * large.steps
    np.testing.assert_allclose(np.mean(np.reshape(small.losses, (-1, 4)), 1), large.losses, rtol=1e-4)
    assert [r["learning rate"] for r in small.epochs] == [r["learning rate"] for r in large.epochs]
    for name in ("hidden.weight", "out.bias"):
        np.testing.assert_allclose(parts.scope.get(name), whole.scope.get(name), rtol=1e-3, atol=1e-5)


def test_a_schedule_learns_the_epochs_and_their_steps_from_the_run() -> None:
    rates = [r["learning rate"] for r in Described().train(SGD(cosine(0.1, warmup=1)), epochs=3).epochs]
    np.testing.assert_allclose(rates, [0.1, 0.05 * (1 + np.cos(np.pi * 3 / 8)), 0.05 * (1 + np.cos(np.pi * 7 / 8))], rtol=1e-4)
    # 4 batches an epoch, 3 of which are an update: 4 updates in 3 epochs, the last one before the last batch
    net = Described()
    rates = [r["learning rate"] for r in net.train(SGD(polynomial(0.1)), epochs=3, accumulate=3).epochs]
    np.testing.assert_allclose(rates, [0.075, 0.05, 0.025], rtol=1e-4)
    assert net.scope.get("accumulated_batches_0") == 0


def test_what_is_left_of_a_group_waits_for_the_run_that_goes_on() -> None:
    once, twice = Described(), Described()
    once.train(Momentum(0.01), epochs=2, accumulate=3, executor=fs.Executor(seed=1))
    optimizer, executor = Momentum(0.01), fs.Executor(seed=1)
    twice.train(optimizer, accumulate=3, executor=executor)
    assert twice.scope.get("accumulated_batches_0") == 1
    twice.train(optimizer, accumulate=3, executor=executor)
    for name, value in once.values().items():
        np.testing.assert_array_equal(twice.scope.get(name), value, err_msg=name)


class Killed(Exception):
    """What stands for the end of a process."""


@pytest.mark.quick_cases("bf16")
@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp16"])
def test_a_run_that_is_killed_within_a_group_goes_on_bit_by_bit(tmp_path: Path, precision: str) -> None:
    def run(kill_at: int | None, folder: str) -> Described:
        net, seen = Described(), 0

        def batches(epoch: int) -> Iterator[dict[str, Any]]:
            nonlocal seen
            for at in np.random.RandomState(epoch).permutation(4):
                if seen == kill_at:
                    raise Killed
                seen += 1
                yield {"x": X[at * 12 : at * 12 + 12], "y": Y[at * 12 : at * 12 + 12]}

        checkpoint = Checkpoint(str(tmp_path / folder), every=1)
        schedule = cosine(0.05, warmup=1, steps_per_epoch=4 / 3)
        net.train(Adam(schedule), batches, epochs=3, accumulate=3, precision=precision, checkpoint=checkpoint)
        return net

    straight = run(None, "straight").values()
    with pytest.raises(Killed):
        run(5, "killed")
    resumed = run(None, "killed").values()
    assert straight.keys() == resumed.keys() and "hidden.weight_accumulated_0" in straight
    for name, value in straight.items():
        np.testing.assert_array_equal(resumed[name], value, err_msg=name)


@pytest.mark.quick_cases("6")
@pytest.mark.parametrize("kill_at", [6, 8, 9])
def test_a_run_that_goes_on_knows_the_rate_of_a_schedule(tmp_path: Path, kill_at: int) -> None:
    """Also where all batches of an epoch were done before, and only its row was missing, and where an epoch had just ended."""

    class Kill(Callback):
        def on_batch_end(self, run: Run) -> None:
            if run.history.steps == kill_at:
                raise Killed

    class Rate(Callback):
        seen: float | None = None

        def on_resume(self, run: Run) -> None:
            self.seen = run.learning_rate

        kept = ("seen",)

    def run(folder: str, *callbacks: Callback) -> list[float]:
        checkpoint = Checkpoint(str(tmp_path / folder), every=4 if kill_at == 9 else 2)  # 4 batches an epoch
        history = Described().train(SGD(cosine(0.1)), epochs=3, callbacks=[*callbacks, rate], checkpoint=checkpoint)
        return history.column("learning rate")

    rate = Rate()
    straight = run("straight")
    with pytest.raises(Killed):
        run("killed", Kill())
    assert run("killed") == straight and not np.isnan(straight).any()
    assert rate.seen is not None and straight[2] < rate.seen <= straight[0]
    run("straight")
    assert rate.seen == straight[2]


@pytest.mark.quick_cases("bf16")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_training_in_16_bits_reaches_about_the_same(precision: str) -> None:
    plain = Described().train(Adam(0.02), epochs=15)
    net = Described()
    found = net.train(Adam(0.02), epochs=15, precision=precision, validation={"x": X, "y": Y})
    np.testing.assert_allclose(found.epochs[-1]["loss"], plain.epochs[-1]["loss"], rtol=0.1)
    assert found.epochs[-1]["loss"] < 0.3 * found.epochs[0]["loss"] and np.isfinite(found.epochs[-1]["validation loss"])
    assert all(net.scope.get(n).dtype == np.float32 for n in ("hidden.weight", "out.weight"))
    assert not any("@BF16" in v.name or "@FP16" in v.name for v in net.main.all_variables())


def test_what_is_frozen_stays_and_groups_have_their_own() -> None:
    net = Described()
    net.train(SGD(0.0), epochs=1)
    before = net.values()
    groups = [Group("*.bias", learning_rate_factor=0)]
    history = net.train(Adam(0.05, freeze=["hidden.*"], groups=groups), epochs=1, accumulate=2)
    assert history.epochs[0]["learning rate"] == pytest.approx(0.05)
    for name in ("hidden.weight", "hidden.bias", "out.bias"):
        np.testing.assert_array_equal(net.scope.get(name), before[name])
    assert not np.array_equal(net.scope.get("out.weight"), before["out.weight"])


def test_a_training_program_is_made_once_for_what_it_depends_on() -> None:
    net, plain, scheduled = Described(), SGD(0.1), SGD(cosine(0.1))

    def made(optimizer: Any, **options: Any) -> fs.Program:
        return fs.training_program(net.cost, optimizer, startup=net.startup, **options).program

    assert made(plain, epochs=2, batches_per_epoch=3) is made(plain, epochs=5, batches_per_epoch=4)
    assert made(plain, accumulate=2) is not made(plain) and made(plain, accumulate=2) is made(plain, accumulate=2)
    assert made(plain, precision="bf16") is not made(plain)
    four = made(scheduled, epochs=2, batches_per_epoch=4)
    assert made(scheduled, epochs=2, batches_per_epoch=4) is four is not made(scheduled, epochs=3, batches_per_epoch=4)
    gathered = fs.training_program(net.cost, scheduled, startup=net.startup, epochs=2, batches_per_epoch=4, accumulate=2)
    assert gathered.learning_rate is not None and gathered.learning_rate.block.program is gathered.program
    assert {"accumulated_batches_1", "out.bias_accumulated_1", "@LR_DECAY_COUNTER@"} <= set(gathered.state), "those of the other optimizer have number 0"


def test_updates_that_a_program_has_already_are_gathered_too() -> None:
    net = Described()
    with fs.program_guard(net.main, net.startup):
        loss = layer.mean(net.cost)
        SGD(0.1).minimize(loss)
    net.cost = loss
    before = str(net.main)
    net.train(epochs=1, accumulate=2)
    assert str(net.main) == before and "out.bias_accumulated_0" in net.scope
    with pytest.raises(SchemaError, match="precision='bf16': the program has its updates already"):
        net.train(precision="bf16")


def test_what_cannot_be_is_refused_before_anything_is_made() -> None:
    net = Described()
    refused: list[tuple[str, Any, dict[str, Any]]] = [
        ("cosine is in epochs, .* give it steps_per_epoch=", SGD(cosine(0.1)), {"data": lambda: iter([{"x": X, "y": Y}])}),
        ("accumulate=, the number of batches", None, {"accumulate": 0}),
        ("accumulate=, the number of batches", None, {"accumulate": 2.0}),
        ("precision= must be one of 'fp32', 'bf16', 'fp16'; seen 'half'", None, {"precision": "half"}),
        (r"no parameter is called 'hiden\.\*'; near it are 'hidden\.\*'", SGD(0.1, freeze=["hiden.*"]), {}),
    ]
    for words, optimizer, options in refused:
        with pytest.raises(SchemaError, match=words):
            net.train(optimizer, **options)
        assert net.scope.names() == []


def overflowing(accumulate: int, batches: int, finite: int = 0) -> tuple[Any, fs.History]:
    """A training in fp16 whose gradients are past the type's range, but for the last few batches."""
    net = Described()

    def data() -> Iterator[dict[str, Any]]:
        for at in range(batches):
            yield {"x": X[:12], "y": Y[:12] * (1.0 if at >= batches - finite else 3e4)}

    return net, net.train(SGD(1e-9), data, precision="fp16", accumulate=accumulate)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_a_run_whose_updates_were_all_left_out_says_so_once(accumulate: int) -> None:
    with pytest.warns(fs.ForeshapeWarning) as seen:
        net, history = overflowing(accumulate, 6)
    updates = 6 // accumulate
    (told,) = [str(w.message) for w in seen if "left out" in str(w.message)]
    assert told.startswith(f"{updates} of {updates} updates were left out, since their gradients were not finite in fp16"), told
    assert f"The loss scale is {2.0 ** (15 - updates):.4g}." in told and net.scope.get("loss_scaling_0") == 2.0 ** (15 - updates)
    assert history.column("updates left out") == [updates]


def test_few_updates_left_out_are_counted_and_not_warned_of() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        net, history = overflowing(1, 9, finite=6)
        assert history.column("updates left out") == [3]
        assert list(history.epochs[0])[-2:] == ["updates left out", "seconds"]
        assert "updates left out" not in net.train(SGD(0.01)).epochs[0]
