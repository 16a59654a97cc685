"""Training leaves what was described alone, goes on where the scope is, and changes nothing when data are refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.optimizer import SGD, Adam, CosineDecay, Momentum

X = np.random.RandomState(0).randn(48, 6).astype("float32")
Y = X.sum(1, keepdims=True)


class Described:
    """A regression with dropout, normalisation and a label, in a scope of its own."""

    even: Any

    def __init__(self) -> None:
        self.main, self.startup, self.scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(self.main, self.startup):
            x, y = layer.data("x", 6), layer.data("y", 1)
            hidden = layer.dropout(layer.batch_norm(layer.fc(x, 8, "relu")), 0.5)
            self.out = layer.fc(hidden, 1)
            self.cost = layer.square_error_cost(self.out, y)

    def train(self, optimizer: Any = None, data: Any = None, **more: Any) -> fs.History:
        given = {"x": X, "y": Y} if data is None else data
        options: dict[str, Any] = {"batch_size": 12, "shuffle": False, "progress": False, "scope": self.scope, "startup": self.startup}
        return fs.train(self.cost, given, optimizer=optimizer, **(options | more))


def test_the_described_program_stays_as_it_is() -> None:
    net = Described()
    before = str(net.main), str(net.startup)
    for optimizer in (SGD(0.01), Momentum(0.1, 0.9), Adam(CosineDecay(0.1, 4, 2))):
        net.train(optimizer, validation={"x": X, "y": Y}, epochs=2)
    assert (str(net.main), str(net.startup)) == before


def test_a_second_call_goes_on_and_another_optimizer_begins_anew() -> None:
    once, twice = Described(), Described()
    optimizer = Momentum(0.05, 0.9)
    whole = once.train(Momentum(0.05, 0.9), epochs=2, executor=fs.Executor(seed=3)).losses
    executor = fs.Executor(seed=3)
    assert twice.train(optimizer, executor=executor).losses + twice.train(optimizer, executor=executor).losses == whole
    assert twice.train(executor=executor).steps and "fc_0.w_0_velocity_0" in twice.scope  # left out, it is the same one
    twice.scope.set("fc_0.w_0_velocity_0", np.full((6, 8), 1e3, "float32"))
    weights = twice.scope.get("fc_0.w_0")
    twice.train(Momentum(0.0, 0.9), epochs=0)
    assert (twice.scope.get("fc_0.w_0") == weights).all() and (twice.scope.get("fc_0.w_0_velocity_0") == 0).all()
    twice.train(Momentum(0.25, 0.9))
    assert twice.scope.get("learning_rate_0") == np.float32(0.25), "what the scope has of another optimizer must not be taken"


def test_fresh_begins_with_new_values() -> None:
    net = Described()
    first = net.train(SGD(0.01), seed=5).losses
    assert net.train(SGD(0.01), seed=5).losses != first
    assert net.train(SGD(0.01), seed=5, fresh=True).losses == first


def test_refused_data_change_nothing() -> None:
    for data, words in (
        ({"x": X[:, :5], "y": Y}, "dim 1 must be 6, not 5"), ({"x": X}, r"y \(f32\[batch, 1\].* is not fed"),
        ([{"x": X, "y": Y[:3]}], "y must be"), (lambda: iter([{"x": X.astype("complex64"), "y": Y}]), "complex"),
    ):  # fmt: skip
        net = Described()
        before = str(net.main)
        with pytest.raises(fs.FeedError, match=words):
            net.train(Adam(0.1), data)
        assert net.scope.names() == [] and str(net.main) == before
        assert len(net.train(Adam(0.1)).losses) == 4
    net = Described()
    with pytest.raises(fs.FeedError, match="dim 1 must be 6"):
        net.train(Adam(0.1), validation={"x": X[:, :5], "y": Y})
    assert net.scope.names() == []


def test_the_first_batch_is_trained_on_too_and_drawn_once() -> None:
    drawn: list[int] = []

    def batches(epoch: int) -> Any:
        for at in range(3):
            drawn.append(epoch * 10 + at)
            yield {"x": X[at * 12 : at * 12 + 12], "y": Y[at * 12 : at * 12 + 12]}

    net, arrays = Described(), Described()
    assert net.train(SGD(0.1), batches, epochs=2).losses == arrays.train(SGD(0.1), {"x": X[:36], "y": Y[:36]}, epochs=2).losses
    assert drawn == [10, 11, 12, 20, 21, 22]


def test_the_training_program_is_a_program_in_hand() -> None:
    net = Described()
    optimizer = Adam(CosineDecay(0.1, 4, 2))
    made = fs.training_program(net.cost, optimizer, startup=net.startup)
    assert fs.training_program(net.cost, optimizer, startup=net.startup) is made
    assert made.program is not net.main and made.loss.dims == [] and made.learning_rate is not None and not made.constants
    executor, scope = fs.Executor(seed=0), fs.Scope()
    executor.run(made.startup, scope=scope)
    by_hand = [float(executor.run(made.program, {"x": X[at : at + 12], "y": Y[at : at + 12]}, made.loss, scope)[0]) for at in range(0, 48, 12)]
    assert net.train(optimizer).losses == by_hand
    optimizer.clip = fs.optimizer.ClipByValue(0.1)
    assert fs.training_program(net.cost, optimizer, startup=net.startup) is not made, "the optimizer is another now"
    with fs.program_guard(net.main, net.startup):
        layer.mean(net.cost)
    assert fs.training_program(net.cost, optimizer, startup=net.startup).program is not made.program, "the description is"


def test_a_program_with_updates_is_taken_as_it_is() -> None:
    net = Described()
    optimizer = SGD(0.1)
    with fs.program_guard(net.main, net.startup):
        cost = layer.mean(net.cost)
    optimizer.minimize(cost, net.startup)
    assert fs.training_program(cost, startup=net.startup).program is net.main
    with pytest.raises(fs.SchemaError, match="updates already, from another optimizer"):
        fs.training_program(cost, Adam(0.1), startup=net.startup)


def test_the_learning_rate_is_in_the_history() -> None:
    assert Described().train(SGD(0.05)).column("learning rate") == [0.05]
    rates = Described().train(SGD(CosineDecay(0.1, 4, 2)), epochs=3).column("learning rate")
    assert rates == [pytest.approx(0.1), pytest.approx(0.05), pytest.approx(0.0, abs=1e-7)]


def test_predictions_are_those_of_a_test_and_change_nothing() -> None:
    net = Described()
    net.train(SGD(0.01), epochs=2)
    held = {n: net.scope.get(n).tobytes() for n in net.scope.names()}
    program = fs.passes.prune(fs.passes.for_test(net.main), None, [net.out.name])
    direct = fs.Executor().run(program, {"x": X}, net.out.name, net.scope)[0]
    for batch_size in (7, 48, 100):
        for data in ({"x": X}, {"x": X, "y": Y}, {"x": X, "elsewhere": Y}):
            assert np.allclose(fs.predict(net.out, data, batch_size=batch_size, scope=net.scope), direct, atol=1e-6)
    batches = [{"x": X[at : at + 20]} for at in range(0, 48, 20)]
    both = fs.predict({"out": net.out, "again": net.out}, batches, scope=net.scope, progress=True)
    assert set(both) == {"out", "again"} and np.allclose(both["again"], direct, atol=1e-6)
    (one,) = fs.predict([net.out], (b for b in batches), scope=net.scope)
    assert np.allclose(one, direct, atol=1e-6)
    assert {n: net.scope.get(n).tobytes() for n in net.scope.names()} == held
    expected = float(((direct - Y) ** 2).mean())
    for batch_size in (7, 48):
        figures = fs.evaluate({"mse": net.cost}, {"x": X, "y": Y}, batch_size=batch_size, scope=net.scope)
        assert figures == {"mse": pytest.approx(expected, rel=1e-5)}
    assert list(fs.evaluate(net.cost, {"x": X, "y": Y}, scope=net.scope)) == [net.cost.name]


def test_ragged_predictions_are_joined() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        words = layer.data("words", shape=[-1, 2], lod_level=1)
        out = words * 2.0
    lengths = [3, 0, 5, 1, 2]
    given = fs.LoDTensor(np.arange(22, dtype="float32").reshape(11, 2), [lengths])
    found = fs.predict(out, {"words": given}, batch_size=2, scope=fs.Scope())
    assert found.sequence_lengths == [lengths] and np.array_equal(found.data, given.data * 2)


def test_what_cannot_be_predicted_is_said() -> None:
    net = Described()
    with pytest.raises(fs.ExecutionError, match="not initialised: fc_0"):
        fs.predict(net.out, {"x": X}, scope=net.scope)
    net.train(SGD(0.01))
    with fs.program_guard(net.main, net.startup):
        whole = layer.mean(net.out)
    with pytest.raises(fs.ExecutionError, match=r"has no row for each example: a batch of 12 gave \[.*fs.evaluate"):
        fs.predict(whole, {"x": X}, batch_size=12, scope=net.scope)
    with pytest.raises(fs.FeedError, match=r"y .* is not fed"):
        fs.evaluate(net.cost, {"x": X}, scope=net.scope)
    with pytest.raises(fs.SchemaError, match="variable of another program"):
        fs.predict([net.out, Described().out], {"x": X})
    with pytest.raises(fs.SchemaError, match="nothing to compute"):
        fs.evaluate([], {"x": X})


def test_what_nobody_asked_for_asks_nothing_of_the_data() -> None:
    plain, net, wanted = Described(), Described(), Described()
    for one in (plain, net, wanted):
        with fs.program_guard(one.main, one.startup):
            x = one.main.var("x")
            if one is not plain:
                one.even = layer.mean(layer.reshape(x, [-1, 4]))  # 6 numbers for each example
            layer.fc(layer.concat([x, layer.data("other", 5)], axis=1), 2)
            layer.batch_norm(x, moving_mean="kept_mean")  # what it keeps outlives a step, whoever reads the rest
    data = {"x": X[:46], "y": Y[:46]}

    def train(of: Described, batch_size: int, **more: Any) -> fs.History:
        return of.train(SGD(0.01), data | more.pop("also", {}), batch_size=batch_size, validation=data, epochs=2, executor=fs.Executor(seed=3), **more)

    expected = train(plain, 23)
    assert train(net, 23).losses == expected.losses == train(net, 23, fresh=True, also={"other": np.ones((46, 5), "float32")}).losses
    assert "fc_2.w_0" in net.scope and not np.array_equal(net.scope.get("kept_mean"), np.zeros(6))
    with pytest.raises(fs.GuardError, match=r"test_training_program.py"):
        train(wanted, 23, metrics={"even": wanted.even})
    assert train(wanted, 46, metrics={"even": wanted.even}).column("validation even") == pytest.approx([X[:46].mean()] * 2, abs=1e-6)
