"""Figures of epochs: measures of a whole set in the history, in checkpoints and with callbacks, and figures that callbacks add."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import callbacks, layer, metrics

R = np.random.RandomState(4)
DATA = {"x": R.randn(40, 5).astype("float32"), "label": R.randint(0, 3, (40, 1))}


class Described:
    """A classifier and measures of it."""

    def __init__(self) -> None:
        x, label = layer.data("x", ["batch", 5]), layer.data("label", ["batch", 1], "int64")
        scores = layer.fc(x, 3)
        self.cost = layer.softmax_with_cross_entropy(scores, label)
        probabilities = layer.softmax(scores)
        self.measures: dict[str, Any] = {
            "f1": metrics.F1(probabilities, label),
            "recall": metrics.Recall(probabilities, label, None),
            "confusion": metrics.ConfusionMatrix(probabilities, label),
            "auc": metrics.AUC(layer.slice(probabilities, [1], [0], [1]), layer.cast(layer.equal(label, 0), "int64")),
            "perplexity": layer.exp(layer.mean(self.cost)),
        }

    def train(self, data: Any = DATA, **options: Any) -> fs.History:
        settings: dict[str, Any] = {"batch_size": 7, "epochs": 3, "progress": False, "scope": fs.Scope(), "metrics": self.measures, "validation": DATA}
        return fs.train(self.cost, data, optimizer=fs.optimizer.Adam(0.05), **(settings | options))


def test_measures_of_the_validation_data_are_those_of_an_evaluation() -> None:
    net, scope = Described(), fs.Scope()
    row = net.train(scope=scope).epochs[-1]
    found = fs.evaluate(net.measures, DATA, batch_size=3, scope=scope)
    assert found["confusion"].sum() == 40 and found["recall"].shape == (3,)
    for name in ("f1", "auc", "perplexity"):
        assert row[f"validation {name}"] == pytest.approx(found[name], rel=1e-6)
        assert name in row
    assert [row[f"validation recall {k}"] for k in range(3)] == pytest.approx(found["recall"].tolist())
    assert [[row[f"validation confusion {k} {n}"] for n in range(3)] for k in range(3)] == found["confusion"].tolist()


def test_a_run_that_is_killed_within_an_epoch_goes_on_with_what_was_counted(tmp_path: Path) -> None:
    net = Described()
    whole = net.train(batches(), seed=1)
    with pytest.raises(RuntimeError, match="killed"):
        net.train(batches(killed=2), seed=1, checkpoint=fs.Checkpoint(tmp_path, every=2))
    resumed = net.train(batches(), seed=1, checkpoint=fs.Checkpoint(tmp_path, every=2))
    for before, now in zip(whole.epochs, resumed.epochs, strict=True):
        assert before.keys() == now.keys()
        assert {n: v for n, v in before.items() if n != "seconds"} == {n: v for n, v in now.items() if n != "seconds"}


def batches(killed: int = 0) -> Any:
    """The data of an epoch, which stop with an error before the fourth batch of one epoch."""

    def epoch(number: int) -> Any:
        for at in range(0, 40, 7):
            if number == killed and at == 28:
                raise RuntimeError("killed")
            yield {n: a[at : at + 7] for n, a in DATA.items()}

    return epoch


class Adds(callbacks.Callback):
    """A figure that a callback names and gives."""

    adds = ("validation worst",)

    def __init__(self, figures: Any = None) -> None:
        self.figures = figures

    def added(self, run: callbacks.Run) -> Any:
        return {"validation worst": np.float32(1.0 / (1 + len(run.history.epochs)))} if self.figures is None else self.figures


class Writes(callbacks.Callback):
    """A figure that a callback writes into the row."""

    def __init__(self, value: Any = None) -> None:
        self.value = value

    def on_epoch_end(self, run: callbacks.Run) -> None:
        run.history.epochs[-1]["validation worst"] = np.float32(1.0 / len(run.history.epochs)) if self.value is None else self.value


@pytest.mark.parametrize("adder", [Adds, Writes])
def test_a_figure_that_a_callback_adds_is_watched_logged_and_saved(adder: Any, tmp_path: Path) -> None:
    watched = [callbacks.EarlyStopping("validation worst", patience=2, mode="max"), callbacks.SaveBest(tmp_path / "best", "validation worst", mode="max")]
    log = callbacks.CSVLog(tmp_path / "log.csv")
    net = Described()
    history = net.train(epochs=9, callbacks=[adder(), *watched, log], checkpoint=tmp_path / "checkpoints")
    assert history.column("validation worst") == pytest.approx([1.0, 0.5, 1 / 3])  # and no more: it gets worse
    assert all(type(v) is float for row in history.epochs for v in row.values())
    rows = list(csv.DictReader((tmp_path / "log.csv").open()))
    assert [float(row["validation worst"]) for row in rows] == history.column("validation worst")
    assert [row["epoch"] for row in rows] == ["1", "2", "3"] and (tmp_path / "best").exists()
    again = net.train(epochs=9, callbacks=[adder(), *watched, log], checkpoint=tmp_path / "checkpoints")
    assert again.column("validation worst") == history.column("validation worst")
    assert list(csv.DictReader((tmp_path / "log.csv").open())) == rows


def test_figures_that_nobody_adds() -> None:
    net, stopping = Described(), callbacks.EarlyStopping("validation worst", mode="max")
    with pytest.raises(fs.ExecutionError, match=r"EarlyStopping watches 'validation worst'; the history of this run has 'loss', .* names it in `adds`"):
        net.train(callbacks=[stopping])
    with pytest.raises(fs.ExecutionError, match="EarlyStopping watches 'validation worst'"):  # the one that could add it stands behind
        net.train(callbacks=[stopping, Writes()])
    with pytest.raises(fs.ExecutionError, match=r"Adds.added must give a number for each of validation worst; seen \{'best': 1\}"):
        net.train(callbacks=[Adds({"best": 1})])
    with pytest.raises(fs.ExecutionError, match="the figure 'validation worst' of an epoch must be a number; a callback has written 'bad'"):
        net.train(callbacks=[Writes("bad")])
