"""Measures that count on in the scope, as PaddlePaddle's programs have them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from sklearn.metrics import precision_recall_fscore_support, roc_auc_score

import foreshape as fs
from foreshape import layer

R = np.random.RandomState(0)
ONE = R.rand(40, 1).astype("float32")
DATA: dict[str, Any] = {"p": np.hstack([1 - ONE, ONE]), "yes": (R.rand(40, 1) < ONE).astype("int64"), "scores": R.rand(40, 3).astype("float32"),
                        "label": R.randint(0, 3, (40, 1)), "weight": R.rand(40, 1).astype("float32")}  # fmt: skip


def test_the_area_of_all_batches_and_of_the_last_ones() -> None:
    p, yes = layer.data("p", ["batch", 2]), layer.data("yes", ["batch", 1], "int64")
    whole, last, states = layer.auc(p, yes, slide_steps=2)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    for end in range(10, 41, 10):
        feed = {n: DATA[n][end - 10 : end] for n in ("p", "yes")}
        found, of_last = executor.run(fs.default_main_program(), feed, [whole, last], scope)
        for area, first in ((found, 0), (of_last, max(end - 20, 0))):
            exact = roc_auc_score(DATA["yes"][first:end], DATA["p"][first:end, 1])
            assert area == pytest.approx(exact, abs=1e-3)  # by steps of 1 / 4095
    assert [scope.get(s.name).sum() for s in states[2:]] == [DATA["yes"].sum(), 40 - DATA["yes"].sum()]


def test_precision_and_recall_of_a_batch_and_of_all() -> None:
    scores, label, weight = layer.data("scores", ["batch", 3]), layer.data("label", ["batch", 1], "int64"), layer.data("weight", ["batch", 1])
    batch, whole, counts = layer.precision_recall(scores, label, sample_weight=weight)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    for cut in (slice(0, 20), slice(20, 40)):
        of_batch, found, _ = executor.run(fs.default_main_program(), {n: DATA[n][cut] for n in ("scores", "label", "weight")}, [batch, whole, counts], scope)
        for given, rows in ((of_batch, cut), (found, slice(0, cut.stop))):
            true, guess, weights = DATA["label"][rows, 0], DATA["scores"][rows].argmax(1), DATA["weight"][rows, 0]
            precision, recall, _, _ = precision_recall_fscore_support(true, guess, average="macro", sample_weight=weights)
            micro = np.average(true == guess, weights=weights)
            exact = [precision, recall, 2 * precision * recall / (precision + recall), micro, micro, micro]
            np.testing.assert_allclose(given, exact, rtol=1e-5)


def test_scores_that_are_none_and_other_labels() -> None:
    p, yes, scores = layer.data("p", ["batch", 2]), layer.data("yes", ["batch", 1], "int64"), layer.data("scores", ["batch", 3])
    area, counts = layer.auc(p, yes)[0], layer.precision_recall(scores, yes)[0]
    best, two = layer.accuracy(scores, yes), layer.accuracy(scores, yes, 2)
    executor, scope, program = fs.Executor(), fs.Scope(), fs.default_main_program()
    executor.run(fs.default_startup_program(), scope=scope)
    for labels in ([[-100], [1]], [[2], [1]]):
        with pytest.raises(fs.ExecutionError, match=f"auc: Label must be 0 or 1; seen {min(labels)[0]} to {max(labels)[0]}"):
            executor.run(fs.passes.prune(program, None, [area.name]), {"p": DATA["p"][:2], "yes": np.array(labels)}, [area.name], scope)
    none = np.array([[np.nan] * 3, [1, np.nan, 0], [0, 1, 2]], "float32")
    with pytest.raises(fs.ExecutionError, match="MaxProbs must be numbers other than NaN; seen nan in 2 rows"):
        executor.run(fs.passes.prune(program, None, [counts.name]), {"scores": none, "yes": np.array([[0], [1], [2]])}, [counts.name], scope)
    found = fs.evaluate({"best": best, "two": two}, {"scores": none, "yes": np.array([[0], [1], [2]])})
    np.testing.assert_allclose([found["best"], found["two"]], 1 / 3)


def test_what_does_not_fit() -> None:
    p, yes = layer.data("p", ["batch", 2]), layer.data("yes", ["batch", 1], "int64")
    with pytest.raises(fs.SchemaError, match="auc: num_thresholds must be at least 1; seen 0"):
        layer.auc(p, yes, num_thresholds=0)
    with pytest.raises(fs.ShapeError, match=r"auc: label must have 2 dims, not 1; write layer.unsqueeze\(label, \[1\]\)"):
        layer.auc(p, layer.data("row", ["batch"], "int64"))
    with pytest.raises(fs.SchemaError, match="curve must be one of 'ROC'; seen 'PR'"):
        layer.auc(p, yes, curve="PR")
    with pytest.raises(fs.SchemaError, match="say how many classes there are"):
        layer.precision_recall(layer.data("open", ["batch", "classes"]), yes)
