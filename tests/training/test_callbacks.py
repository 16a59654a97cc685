"""Callbacks: what each does, and that a killed run goes on with them as if it had not been killed."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest

import foreshape as fs
from foreshape import callbacks, layer
from foreshape.apps.training import Checkpoint
from foreshape.optimizer import SGD, CosineDecay, Momentum

RANDOM = np.random.RandomState(1)
X = RANDOM.randn(40, 5).astype("float32")
Y = X.sum(1, keepdims=True) + RANDOM.randn(40, 1).astype("float32")
DATA, OTHER = {"x": X[:30], "y": Y[:30]}, {"x": X[30:], "y": Y[30:]}


class Stopped(Exception):
    """A run that is killed."""


def run(hooks: Any, scope: fs.Scope | None = None, optimizer: Any = None, **more: Any) -> tuple[fs.History, fs.Scope, fs.Variable]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", 5), layer.data("y", 1)
        cost = layer.square_error_cost(layer.fc(layer.dropout(layer.fc(x, 6, "relu"), 0.2), 1), y)
    scope = scope if scope is not None else fs.Scope()
    options: dict[str, Any] = {"epochs": 6, "batch_size": 6, "progress": False, "validation": OTHER}
    history = fs.train(cost, DATA, optimizer=optimizer or Momentum(0.05, 0.9), callbacks=hooks, scope=scope, startup=startup, **(options | more))
    return history, scope, cost


def values(scope: fs.Scope) -> dict[str, bytes]:
    return {n: scope.get(n).tobytes() for n in scope.names()}


class Recorder(callbacks.Callback):
    """Notes what it is told."""

    kept: ClassVar[tuple[str, ...]] = ()

    def __init__(self) -> None:
        self.told: list[str] = []

    def on_train_begin(self, run: callbacks.Run) -> None:
        assert run.history.steps == 0 and run.epochs == 2 and run.first and not run.divided and "fc_0.w_0" in run.scope
        assert run.figures == ["loss", "validation loss", "learning rate", "seconds"]
        self.told.append("begin")

    def on_batch_end(self, run: callbacks.Run) -> None:
        assert run.history.steps == 5 * (run.position.epoch - 1) + run.position.batch and run.learning_rate == 0.05
        self.told.append("batch")

    def on_evaluation_begin(self, run: callbacks.Run) -> None:
        self.told.append("evaluation")

    def on_evaluation_end(self, run: callbacks.Run) -> None:
        self.told.append("measured")

    def on_epoch_end(self, run: callbacks.Run) -> None:
        assert list(run.history.epochs[-1]) == run.figures
        self.told.append("epoch")

    def on_train_end(self, run: callbacks.Run) -> None:
        waited, computed = run.seconds
        assert waited > 0 and computed > 0
        self.told.append("end")


def test_a_callback_is_told_everything_in_order() -> None:
    recorder = Recorder()
    rows: list[tuple[int, dict[str, float]]] = []
    run([recorder, lambda number, row: rows.append((number, row))], epochs=2)
    assert recorder.told == ["begin", *(["batch"] * 5 + ["evaluation", "measured", "epoch"]) * 2, "end"]
    assert [number for number, _ in rows] == [1, 2]


def test_a_run_is_stopped_after_a_batch_and_goes_on_from_there(tmp_path: Path) -> None:
    class After(callbacks.Callback):
        def on_batch_end(self, run: callbacks.Run) -> None:
            if run.history.steps == 7:
                run.stop()

    history, _, _ = run([After()], checkpoint=tmp_path)
    assert history.steps == 7 and len(history.epochs) == 1
    whole = run([])
    again = run([], checkpoint=tmp_path)
    assert again[0].losses == whole[0].losses and values(again[1]) == values(whole[1])
    assert run([lambda number, row: number == 2])[0].steps == 10


def test_early_stopping_stops_and_restores_the_best() -> None:
    best = callbacks.EarlyStopping(patience=1, restore_best=True)
    history, scope, cost = run([best], optimizer=SGD(0.15), epochs=40, validation=OTHER)
    column = history.column("validation loss")
    at = int(np.argmin(column[: best.epoch]))
    assert len(column) < 40 and best.epoch == at + 1 and len(column) == best.epoch + 1 and best.best == min(column)
    assert fs.evaluate({"loss": cost}, OTHER, scope=scope)["loss"] == pytest.approx(best.best, rel=1e-5)


def test_the_learning_rate_falls_on_a_plateau() -> None:
    history, scope, _ = run([callbacks.ReduceOnPlateau("loss", factor=0.5, patience=0, min_rate=0.02, min_change=1e9)], epochs=4)
    assert history.column("learning rate") == [0.05, 0.05, 0.025, 0.02]  # the first is the best; each is of its epoch's steps
    assert scope.get("learning_rate_0") == np.float32(0.02)
    with pytest.raises(fs.ExecutionError, match="follows a schedule"):
        run([callbacks.ReduceOnPlateau("loss")], optimizer=SGD(CosineDecay(0.1, 5, 2)))


def test_the_best_is_saved_and_figures_are_written(tmp_path: Path) -> None:
    saved, table = tmp_path / "best.safetensors", tmp_path / "log.csv"
    best = callbacks.SaveBest(saved)
    history, _, cost = run([best, callbacks.CSVLog(table)], optimizer=SGD(0.15), epochs=8)
    held = fs.Scope()
    fs.load_safetensors(saved, held)
    assert held.names() == ["fc_0.b_0", "fc_0.w_0", "fc_1.b_0", "fc_1.w_0"]
    assert fs.evaluate({"loss": cost}, OTHER, scope=held)["loss"] == pytest.approx(min(history.column("validation loss")), rel=1e-5)
    lines = table.read_text().splitlines()
    assert lines[0] == "epoch,loss,validation loss,learning rate,seconds" and len(lines) == 9
    assert [float(line.split(",")[1]) for line in lines[1:]] == history.column("loss")
    with pytest.raises(fs.FormatError, match="cannot be written"):
        run([callbacks.CSVLog(table / "log.csv")])


def test_averages_are_used_in_evaluation_and_kept_at_the_end() -> None:
    average = callbacks.MovingAverage(0.8)
    history, scope, cost = run([average])
    expected = run([])
    assert history.losses == expected[0].losses and history.column("validation loss") != expected[0].column("validation loss")
    assert fs.evaluate({"loss": cost}, OTHER, scope=scope)["loss"] == pytest.approx(history.column("validation loss")[-1], rel=1e-5)
    left = run([callbacks.MovingAverage(0.8, keep=False)])[1]
    assert values(left) == values(expected[1]) != values(scope)

    class Sees(callbacks.Callback):
        """Averages by hand."""

        def on_train_begin(self, run: callbacks.Run) -> None:
            self.mean, self.steps = run.scope.get("fc_0.w_0").astype("float64"), 0

        def on_batch_end(self, run: callbacks.Run) -> None:
            self.steps += 1
            decay = min(0.8, (1 + self.steps) / (10 + self.steps))
            self.mean = decay * self.mean + (1 - decay) * run.scope.get("fc_0.w_0")

    sees = Sees()
    _, scope, _ = run([sees, callbacks.MovingAverage(0.8)])
    assert np.allclose(scope.get("fc_0.w_0"), sees.mean, atol=1e-5)


def test_a_timer_says_where_time_goes(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timer = callbacks.Timer(tmp_path / "trace.json", steps=(3, 4))
    run([timer], epochs=1, progress=None)
    assert timer.steps == 5 and timer.computing > 0 and f"{timer}" in capsys.readouterr().out
    assert json.loads((tmp_path / "trace.json").read_text())["traceEvents"]


def test_tensorboard_is_written_to_where_there_is_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", None)
    with pytest.raises(fs.ExecutionError, match="pip install tensorboard"):
        run([callbacks.TensorBoard(tmp_path)])
    written: list[tuple[str, float, int]] = []

    class SummaryWriter:
        def __init__(self, folder: str, purge_step: int) -> None:
            assert folder == str(tmp_path) and purge_step == 1

        def add_scalar(self, name: str, value: float, step: int) -> None:
            written.append((name, value, step))

        def flush(self) -> None:
            written.append(("flush", 0.0, 0))

        def close(self) -> None:
            written.append(("close", 0.0, 0))

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", type(sys)("tensorboard"))
    monkeypatch.setattr(sys.modules["torch.utils.tensorboard"], "SummaryWriter", SummaryWriter, raising=False)
    history, _, _ = run([callbacks.TensorBoard(tmp_path, every=2)], epochs=1)
    assert written[:2] == [("step/loss", history.losses[1], 2), ("step/loss", history.losses[3], 4)]
    assert ("epoch/validation loss", history.column("validation loss")[0], 5) in written and written[-1][0] == "close"


@pytest.mark.quick_cases("2-4", "5-11")
@pytest.mark.parametrize(("every", "killed_at"), [(2, 4), (5, 6), (None, 7), (3, 6), (5, 11)])
def test_tensorboard_shows_each_step_once_after_a_kill(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, every: int | None, killed_at: int) -> None:
    shown: list[tuple[str, int]] = []

    class SummaryWriter:
        """Writes what it is given when it is told to; what an earlier one has written from a step on is no longer shown."""

        def __init__(self, folder: str, purge_step: int) -> None:
            shown[:] = [one for one in shown if one[1] < purge_step]
            self.waiting: list[tuple[str, int]] = []

        def add_scalar(self, name: str, value: float, step: int) -> None:
            self.waiting.append((name, step))

        def flush(self) -> None:
            shown.extend(self.waiting)
            self.waiting.clear()

        close = flush

    class Killed(callbacks.Callback):
        def on_batch_end(self, run: callbacks.Run) -> None:
            if run.history.steps == killed_at:
                raise Stopped

    monkeypatch.setitem(sys.modules, "torch.utils.tensorboard", type(sys)("tensorboard"))
    monkeypatch.setattr(sys.modules["torch.utils.tensorboard"], "SummaryWriter", SummaryWriter, raising=False)
    kept = Checkpoint(tmp_path / "kept", every=every)
    with pytest.raises(Stopped):
        run([callbacks.TensorBoard(tmp_path / "board"), Killed()], epochs=3, checkpoint=kept)
    run([callbacks.TensorBoard(tmp_path / "board")], epochs=3, checkpoint=kept)
    assert sorted(step for name, step in shown if name == "step/loss") == list(range(1, 16))
    assert sorted(step for name, step in shown if name == "epoch/loss") == [5, 10, 15]


def hooks() -> list[Any]:
    return [
        callbacks.EarlyStopping(patience=1, restore_best=True), callbacks.ReduceOnPlateau("loss", factor=0.5, patience=0, min_change=0.3),
        callbacks.MovingAverage(0.7),
    ]  # fmt: skip


@pytest.mark.quick_cases("5")
@pytest.mark.parametrize("killed_at", [1, 5, 8, 15])
def test_a_killed_run_goes_on_with_its_callbacks_bit_for_bit(tmp_path: Path, killed_at: int) -> None:
    class Killed(callbacks.Callback):
        def on_batch_end(self, run: callbacks.Run) -> None:
            if run.history.steps == killed_at + 1:
                raise Stopped

    whole = run(hooks(), optimizer=SGD(0.15), epochs=12)
    with pytest.raises(Stopped):
        run([*hooks(), Killed()], optimizer=SGD(0.15), epochs=12, checkpoint=Checkpoint(tmp_path, every=1))
    again = run(hooks(), optimizer=SGD(0.15), epochs=12, checkpoint=Checkpoint(tmp_path, every=1))
    assert again[0].losses == whole[0].losses and values(again[1]) == values(whole[1])
    finished = run(hooks(), optimizer=SGD(0.15), epochs=12, checkpoint=Checkpoint(tmp_path, every=1))  # which was stopped, and stays so
    assert finished[0].losses == whole[0].losses and values(finished[1]) == values(whole[1])


@pytest.mark.quick_cases("10")
@pytest.mark.parametrize("killed_at", [5, 10])
def test_a_run_that_is_killed_where_an_epoch_ends_keeps_the_averages_of_the_best(tmp_path: Path, killed_at: int) -> None:
    class Killed(callbacks.Callback):
        def on_batch_end(self, run: callbacks.Run) -> None:
            if run.history.steps == killed_at + 1:
                raise Stopped

    def hooks() -> list[Any]:
        return [callbacks.SaveBest(tmp_path / "best", "loss", mode="min"), callbacks.EarlyStopping("loss", restore_best=True), callbacks.MovingAverage(0.7)]

    whole = run(hooks(), epochs=2)
    with pytest.raises(Stopped):
        run([*hooks(), Killed()], epochs=3, checkpoint=Checkpoint(tmp_path / "kept", every=1))
    again = run(hooks(), epochs=2, checkpoint=Checkpoint(tmp_path / "kept", every=1), on_change="take")
    assert values(again[1]) == values(whole[1])


def test_other_callbacks_than_the_checkpoints_are_named(tmp_path: Path) -> None:
    run([callbacks.MovingAverage()], epochs=1, checkpoint=tmp_path)
    with pytest.raises(fs.ExecutionError, match="callbacks that keep something were MovingAverage, and are none"):
        run([], epochs=2, checkpoint=tmp_path)
    assert run([callbacks.EarlyStopping("loss")], epochs=2, checkpoint=tmp_path, on_change="take")[0].steps == 10


def test_what_is_no_callback_or_watches_nothing_is_refused() -> None:
    for wrong, words in (
        (callbacks.EarlyStopping("accuracy"), "watches 'accuracy'; the history of this run has 'loss'"), (callbacks.EarlyStopping, "a callback is an object"),
        (3, "a callback is an object"),
    ):  # fmt: skip
        with pytest.raises(fs.ExecutionError, match=words):
            run([wrong])
    for make, words in (
        (lambda: callbacks.EarlyStopping("bleu"), "mode must be 'min' or 'max'"), (lambda: callbacks.EarlyStopping(patience=-1), "at least 0"),
        (lambda: callbacks.ReduceOnPlateau(factor=1.5), "between 0 and 1"), (lambda: callbacks.MovingAverage(1.0), "between 0 and 1"),
        (lambda: callbacks.Timer(steps=(1, 2)), "from 2"), (lambda: callbacks.TensorBoard("x", every=0), "at least 1"),
    ):  # fmt: skip
        with pytest.raises(fs.ExecutionError, match=words):
            make()
