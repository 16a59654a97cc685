"""The training loop: data, order, metrics, evaluation, history, and where it stops."""

from __future__ import annotations

import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

import foreshape as fs
from foreshape import layer
from foreshape.apps.training import History
from foreshape.apps.training.data.batches import as_data, rows_of

RNG = np.random.RandomState(0)
X = RNG.randn(50, 6).astype("float32")
Y = (X @ RNG.randn(6, 1)).astype("float32")


class Net:
    """A linear regression: programs, cost ``[batch, 1]``, a scope of its own."""

    def __init__(self) -> None:
        self.main, self.startup, self.scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(self.main, self.startup):
            self.x, self.y = layer.data("x", 6), layer.data("y", 1)
            self.out = layer.fc(self.x, 1)
            difference = self.out - self.y
            self.cost = difference * difference

    def train(self, data: Any = None, **more: Any) -> History:
        options: dict[str, Any] = {"optimizer": fs.optimizer.SGD(0.05), "progress": False, "batch_size": 16, "scope": self.scope, "startup": self.startup}
        return fs.train(self.cost, {"x": X, "y": Y} if data is None else data, **(options | more))

    def values(self) -> dict[str, bytes]:
        return {n: self.scope.get(n).tobytes() for n in self.scope.names()}


def test_it_learns() -> None:
    history = Net().train(epochs=40)
    assert history.column("loss")[-1] < 1e-3 < history.column("loss")[0]
    assert history.steps == 40 * 4 and len(history.epochs) == 40


def test_a_cost_that_is_not_one_number_is_averaged_once() -> None:
    net = Net()
    made = fs.training_program(net.cost, startup=net.startup)
    ops = [op.type for op in made.program.global_block.ops]
    assert ops.count("mean") == 1 and ops.count("sgd") == 2
    with fs.program_guard(net.main, net.startup):
        whole = layer.mean(net.cost)
    for cost in (whole, net.cost):  # the mean that is there is taken
        assert [op.type for op in fs.training_program(cost, startup=net.startup).program.global_block.ops].count("mean") == 1


def test_the_loss_of_a_step_is_what_numpy_says() -> None:
    net = Net()
    history = net.train(batch_size=50, shuffle=False, optimizer=fs.optimizer.SGD(0.1))
    first = Net()
    fs.Executor(seed=0).run(first.startup, scope=first.scope)
    w, b = first.scope.get("fc_0.w_0"), first.scope.get("fc_0.b_0")
    error = X @ w + b - Y
    assert history.losses == [pytest.approx(float((error**2).mean()), rel=1e-5)]
    assert np.allclose(net.scope.get("fc_0.w_0"), w - 0.1 * 2 * X.T @ error / 50, atol=1e-5)


def test_equal_arguments_give_equal_bytes_and_the_seed_matters() -> None:
    def run(**more: Any) -> tuple[list[float], dict[str, bytes]]:
        net = Net()
        return net.train(epochs=3, **more).losses, net.values()

    assert run() == run()
    assert run()[0] != run(seed=1)[0]
    assert run()[0] != run(shuffle=False)[0]


def test_each_epoch_shows_every_example_once_in_another_order() -> None:
    data = as_data({"x": np.arange(23), "i": np.arange(23) * 2}, 5, True, 3)
    epochs = [np.concatenate([b["x"] for b in data.epoch(e)]).tolist() for e in (1, 2, 1)]
    assert [len(b["x"]) for b in data.epoch(1)] == [5, 5, 5, 5, 3] and data.batches == 5
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(23))
    assert epochs[0] == epochs[2] != epochs[1] and epochs[0] != sorted(epochs[0])
    assert np.concatenate([b["x"] for b in data.epoch(2, skip=3)]).tolist() == epochs[1][15:]
    assert all((b["i"] == 2 * b["x"]).all() for b in data.epoch(1))


def test_ragged_data_are_cut_by_sequences() -> None:
    one = fs.LoDTensor(np.arange(6), [[3, 1, 2]])
    got = rows_of(one, [2, 0])
    assert got.data.tolist() == [4, 5, 0, 1, 2] and got.sequence_lengths == [[2, 3]]
    two = fs.LoDTensor(np.arange(6), [[2, 1], [1, 2, 3]])
    got = rows_of(two, [1])
    assert got.data.tolist() == [3, 4, 5] and got.sequence_lengths == [[1], [3]]
    got = rows_of(two, [1, 0])
    assert got.data.tolist() == [3, 4, 5, 0, 1, 2] and got.sequence_lengths == [[1, 2], [3, 1, 2]]
    data = as_data({"words": one, "y": np.arange(3)}, 2, False, 0)
    assert [(b["words"].data.tolist(), b["y"].tolist()) for b in data.epoch(1)] == [([0, 1, 2, 3], [0, 1]), ([4, 5], [2])]


def _batches() -> Iterator[dict[str, Any]]:
    for at in range(0, 50, 16):
        yield {"x": X[at : at + 16], "y": Y[at : at + 16]}


@pytest.mark.parametrize("data", [_batches, list(_batches()), lambda epoch: _batches()], ids=["function", "list", "function of the epoch"])
def test_batches_from_a_list_or_a_function(data: Any) -> None:
    plain, given = Net(), Net()
    assert plain.train(shuffle=False, epochs=3).losses == given.train(data, epochs=3).losses
    assert plain.values() == given.values()


def test_a_function_of_the_epoch_is_told_which() -> None:
    asked: list[int] = []

    def data(epoch: int) -> Iterator[dict[str, Any]]:
        asked.append(epoch)
        return _batches()

    Net().train(data, epochs=3)
    assert asked == [1, 2, 3]


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (_batches(), "an iterator, which gives its batches once, and 2 epochs are asked for"),
        ([], "no batch in epoch 1"),
        ([1, 2], "a batch is a dict"),
        ({}, "there are no examples"),
        ({"x": X[:0], "y": Y[:0]}, "there are no examples"),
        ({"x": X, "y": Y[:7]}, "x: 50, y: 7"),
        ({"x": X, "y": 3.0}, "y is a single number"),
        (7, "seen int"),
        ({"x": X}, "y .* is not fed"),
        ({"x": X[:, :5], "y": Y}, "dim 1 must be 6"),
    ],
)
def test_data_that_are_none(data: Any, says: str) -> None:
    with pytest.raises(fs.FeedError, match=says):
        Net().train(data, epochs=2)


def test_figures_are_means_over_examples() -> None:
    net = Net()
    history = net.train(metrics={"error": net.cost, "one": net.main.global_block.apply("scale", {"X": net.cost}, {"scale": 0.0, "bias": 1.0})},
                        optimizer=fs.optimizer.SGD(0.0))  # fmt: skip
    row = history.epochs[0]
    w, b = net.scope.get("fc_0.w_0"), net.scope.get("fc_0.b_0")
    want = pytest.approx(float(((X @ w + b - Y) ** 2).mean()), rel=1e-5)  # although the last batch has 2 of 50 examples
    assert row["loss"] == want and row["error"] == want
    assert row["one"] == 1.0


def test_validation_is_measured_and_changes_nothing() -> None:
    plain, watched = Net(), Net()
    plain.train(epochs=3)
    history = watched.train(epochs=3, validation={"x": X[:20], "y": Y[:20]}, metrics={"error": watched.cost})
    assert plain.values() == watched.values()
    w, b = watched.scope.get("fc_0.w_0"), watched.scope.get("fc_0.b_0")
    want = pytest.approx(float(((X[:20] @ w + b - Y[:20]) ** 2).mean()), rel=1e-4)
    assert history.epochs[-1]["validation loss"] == want and history.epochs[-1]["validation error"] == want


def test_a_program_with_updates_keeps_them() -> None:
    net = Net()
    with fs.program_guard(net.main, net.startup):
        optimizer = fs.optimizer.SGD(0.05)
        optimizer.minimize(layer.mean(net.cost))
    ops = len(net.main.global_block.ops)
    net.train(optimizer=None)
    net.train(optimizer=optimizer)
    assert len(net.main.global_block.ops) == ops
    with pytest.raises(fs.SchemaError, match="has its updates already"):
        net.train(optimizer=fs.optimizer.SGD(0.05))


def test_what_the_scope_holds_is_trained_further() -> None:
    net = Net()
    w = np.full((6, 1), 0.5, "float32")
    net.scope.set("fc_0.w_0", w)
    net.train(epochs=0)
    assert net.scope.names() != [] and (net.scope.get("fc_0.w_0") == w).all() and "fc_0.b_0" in net.scope
    two = Net()
    once = two.train(epochs=1, shuffle=False).losses + two.train(epochs=1, shuffle=False, optimizer=None).losses
    assert once == Net().train(epochs=2, shuffle=False).losses


@pytest.mark.parametrize("array", [np.zeros((5, 1), "float32"), np.zeros((6,), "float32"), np.zeros((6, 1), "float64")])
def test_a_scope_of_another_network_is_refused(array: Any) -> None:
    net = Net()
    net.scope.set("fc_0.w_0", array)
    with pytest.raises(fs.ExecutionError, match=r"fc_0\.w_0 must be f32\[6, 1\]; the scope holds"):
        net.train()


def test_a_loss_that_is_not_finite_stops_the_run() -> None:
    x = X.copy()
    x[37] = np.nan
    net = Net()
    with pytest.raises(fs.ExecutionError, match=r"is nan at step 3 \(epoch 1, batch 3\); check=True"):
        net.train({"x": x, "y": Y}, shuffle=False)
    with pytest.raises(fs.ExecutionError, match=r"x \(fed\) has a NaN"):
        Net().train({"x": x, "y": Y}, shuffle=False, check=True)
    net = Net()
    with pytest.raises(fs.ExecutionError, match=r"elementwise_mul.*an infinity"):
        net.train({"x": X * np.float32(1e30), "y": Y}, check=True)


@pytest.mark.parametrize("name", ["loss", "seconds"])
def test_names_that_a_metric_cannot_have(name: str) -> None:
    net = Net()
    with pytest.raises(fs.SchemaError, match=name):
        net.train(metrics={name: net.out})


def test_arguments_that_cannot_be() -> None:
    net = Net()
    with pytest.raises(fs.SchemaError, match="another program"):
        net.train(metrics={"error": Net().cost})
    for wrong in (-1, 1.5, "2", True):
        with pytest.raises(fs.ExecutionError, match=f"epochs must be a whole number of at least 0; seen {wrong!r}"):
            net.train(epochs=wrong)
    for wrong in (0, 10.0, "10", np.array([10, 20])):
        with pytest.raises(fs.FeedError, match="batch_size must be a whole number of at least 1; seen"):
            net.train(batch_size=wrong)
    net.train(epochs=np.int64(1), batch_size=np.int32(8), seed=np.int64(3), accumulate=np.uint8(2))
    with pytest.raises(fs.ExecutionError, match="every"):
        fs.training.Checkpoint("x", every=0)
    with pytest.raises(fs.ExecutionError, match="keep"):
        fs.training.Checkpoint("x", keep=0)


def test_a_callback_sees_each_epoch_and_can_end_the_run() -> None:
    seen: list[tuple[int, float]] = []

    def watch(epoch: int, row: dict[str, float]) -> bool:
        seen.append((epoch, row["loss"]))
        return epoch == 3

    history = Net().train(epochs=9, callbacks=[watch])
    assert seen == list(enumerate(history.column("loss"), 1)) and len(seen) == 3


def test_a_bar_on_a_terminal_and_lines_elsewhere() -> None:
    def shown(terminal: bool, **more: Any) -> str:
        out = io.StringIO()
        Net().train(epochs=2, console=Console(file=out, force_terminal=terminal, width=120), **({"progress": None} | more))
        return out.getvalue()

    lines = shown(False)
    assert [line.split("  ")[0] for line in lines.splitlines()] == ["epoch 1/2", "epoch 2/2"] and "loss" in lines and "\x1b" not in lines
    bar = shown(True)
    assert "\x1b" in bar and "examples/s" in bar and "epoch 2/2" in bar
    assert "examples/s" in shown(False, progress=True) or "epoch 2/2" in shown(False, progress=True)
    assert shown(True, progress=False) == ""


def test_the_history_prints_and_plots(tmp_path: Path) -> None:
    net = Net()
    history = net.train(epochs=2, validation={"x": X, "y": Y}, metrics={"error": net.cost})
    lines = str(history).splitlines()
    assert lines[0].split() == ["epoch", "loss", "error", "validation", "loss", "validation", "error", "learning", "rate", "seconds"] and len(lines) == 3
    assert len({len(line) for line in lines}) == 1
    history.plot(tmp_path / "a.png")
    assert (tmp_path / "a.png").read_bytes().startswith(b"\x89PNG")
    assert str(History()) == "epoch"


def test_infer_shape_brings_back_what_a_variable_depends_on() -> None:
    net = Net()
    with fs.program_guard(net.main, net.startup):
        other = net.x + 1.0
    specs = {v.name: v.spec for v in net.main.global_block.vars.values()}
    for variable in (net.cost, net.out, other):
        variable.forget()
    assert fs.infer_shape(net.cost) is net.cost
    assert net.cost.spec is specs[net.cost.name] and net.out.spec is specs[net.out.name] and net.cost.shape == net.y.shape
    assert not other.known  # cost does not depend on it
    net.main.forget()
    assert fs.infer_shape(net.cost).spec is specs[net.cost.name]


def test_a_run_is_seeded_by_the_program_and_by_the_executor() -> None:
    def drawn(seed: int, program_seed: int = 0) -> list[Any]:
        main = fs.Program()
        main.random_seed = program_seed
        out = main.global_block.apply("uniform_random", {}, {"shape": [4]})
        executor = fs.Executor(seed=seed)
        return [executor.run(main, fetch=out)[0].tolist() for _ in range(2)]

    assert drawn(1) == drawn(1) != drawn(2)
    assert drawn(1, 9) == drawn(2, 9)
    assert drawn(1)[0] != drawn(1)[1]
    state = (executor := fs.Executor()).random_state()
    executor.set_random_state(state)
    with pytest.raises(fs.ExecutionError, match="not the state of a generator"):
        executor.set_random_state(np.zeros(3, "uint8"))


@pytest.mark.parametrize("program_seed", [0, 7])
def test_the_loop_is_what_one_would_write_by_hand(program_seed: int) -> None:
    def described() -> tuple[fs.Program, fs.Program, fs.Variable]:
        main, startup = fs.Program(), fs.Program()
        main.random_seed = program_seed
        with fs.program_guard(main, startup):
            h = layer.dropout(layer.fc(layer.data("x", 6), 32, "relu"), 0.5)
            cost = layer.mean(layer.square_error_cost(layer.fc(h, 1), layer.data("y", 1)))
        return main, startup, cost

    main, startup, cost = described()
    trained = fs.Scope()
    history = fs.train(cost, {"x": X, "y": Y}, optimizer=fs.optimizer.Adam(0.01), epochs=2, batch_size=16, scope=trained, startup=startup, progress=False)

    main, startup, cost = described()
    fs.optimizer.Adam(0.01).minimize(cost, startup)
    executor, scope = fs.Executor(seed=0), fs.Scope()
    executor.run(startup, scope=scope)
    data = as_data({"x": X, "y": Y}, 16, True, 0)
    losses = [float(executor.run(main, batch, cost, scope)[0]) for epoch in (1, 2) for batch in data.epoch(epoch)]
    assert history.losses == losses
    assert scope.names() == trained.names() and all(scope.get(n).tobytes() == trained.get(n).tobytes() for n in scope.names())


def test_ragged_data_in_memory_may_be_lists_of_sequences():
    with fs.program_guard(fs.Program(), fs.Program()):
        words = layer.data("words", shape=[-1, 2], lod_level=2)
        program = words.block.program
    texts = [[np.full((n, 2), 10 * t + s, "float32") for s, n in enumerate(lines)] for t, lines in enumerate(([2, 0, 1], [], [3], [1, 1]))]
    data = as_data({"words": texts, "y": np.arange(4)}, 3, True, 1, program)
    seen: list[int] = []
    for batch in data.epoch(0):
        assert isinstance(batch["words"], fs.LoDTensor)
        assert len(batch["words"]) == len(batch["y"])
        for given, t in zip(batch["words"].to_list(), batch["y"].tolist(), strict=True):
            seen.append(t)
            assert len(given) == len(texts[t])
            for a, b in zip(given, texts[t], strict=True):
                np.testing.assert_array_equal(a, b)
    assert sorted(seen) == [0, 1, 2, 3]


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_share_of_the_examples_is_held_out(shuffle: bool) -> None:
    x = layer.data("x", ["batch", 1])
    cost = layer.mean(x * layer.create_parameter([1], "fp32", initializer=layer.Constant(1.0)))
    given = np.arange(10, dtype="float32")[:, None]
    history = fs.train(cost, {"x": given}, optimizer=fs.optimizer.SGD(0.0), validation=0.3, batch_size=4, epochs=2, shuffle=shuffle, progress=False)
    trained, held_out = history.epochs[0]["loss"] * 7, history.epochs[0]["validation loss"] * 3
    assert trained + held_out == pytest.approx(45) and history.steps == 4
    assert (held_out == pytest.approx(24)) is not shuffle  # the last ones are 7, 8 and 9


@pytest.mark.parametrize(
    ("share", "data", "says"),
    [
        (1.0, np.ones((4, 1), "float32"), "must be between 0 and 1; seen 1.0"),
        (0, np.ones((4, 1), "float32"), "must be between 0 and 1; seen 0"),
        (0.2, np.ones((1, 1), "float32"), "leaves none of the 1 examples"),
        (0.2, None, "these come in batches"),
    ],
)
def test_a_share_that_cannot_be_held_out(share: float, data: Any, says: str) -> None:
    cost = layer.mean(layer.fc(layer.data("x", ["batch", 1]), 1))
    with pytest.raises(fs.FeedError, match=says):
        fs.train(cost, {"x": data} if data is not None else [{"x": np.ones((2, 1), "float32")}], validation=share, progress=False)
