"""Measures of random data beside scikit-learn's and pycocotools', over batches and ranks; and numbers that are no scores, labels or weights."""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
from hypothesis import given, settings
from hypothesis import strategies as st
from metrics.pycocotools_values import CLASSES, IOU, drawn

import foreshape as fs
from foreshape import layer, metrics
from foreshape.metrics import Metric

EXAMPLES = 12
KINDS = {"f1": metrics.F1, "precision": metrics.Precision, "recall": metrics.Recall, "jaccard": metrics.IoU}
SEEDS = st.integers(0, 2**32 - 1)


def over_parts(metric: Metric, arrays: list[Any], r: np.random.RandomState) -> Any:
    """The measure over ranks with random numbers of batches of random sizes, added or joined as a run does it."""
    states = [metric.begin() for _ in range(r.randint(1, 4))]
    count = len(arrays[0])
    cuts = [0, *sorted(r.randint(0, count + 1, r.randint(0, 6))), count]
    for first, end in pairwise(cuts):
        metric.add(states[r.randint(len(states))], *(a[first:end] for a in arrays))
    joined = {k: np.concatenate([s[k] for s in states]) if v.ndim > 1 else sum(s[k] for s in states) for k, v in states[0].items()}
    return metric.value(joined)


@pytest.fixture(scope="module")
def columns() -> dict[str, Any]:
    """Variables of the shapes that the measures below take."""
    dims = {"score": ["batch", 1], "both": ["batch", 2], "scores": ["batch", 4], "x": ["batch", 3], "y": ["batch", 3], "w": ["batch", 1], "each": ["batch", 3]}
    found = {n: layer.data(n, d, "float64") for n, d in dims.items()}
    return found | {n: layer.data(n, d, "int64") for n, d in {"label": ["batch", 1], "several": ["batch", 4], "number": ["batch", 1]}.items()}


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS, mean=st.sampled_from([0.0, 300.0, 101325.0, 1e8, 1.7e9, -1e12]), spread=st.sampled_from([1e-3, 1.0, 50.0]), weighted=st.booleans())
def test_errors_far_from_zero(columns: dict[str, Any], seed: int, mean: float, spread: float, weighted: bool) -> None:
    r = np.random.RandomState(seed)
    y = mean + spread * r.randn(r.randint(2, 40), 3) * [1, 0 if seed % 5 == 0 else 1, 100]
    x, w = y + 0.3 * spread * r.randn(*y.shape), np.where(r.rand(len(y), 1) < 0.2, 0, r.rand(len(y), 1)) + 1e-3 * (np.arange(len(y)) < 2)[:, None]
    options = {"weight": columns["w"]} if weighted else {}
    arrays, sample_weight = [x, y, *([w] if weighted else [])], w[:, 0] if weighted else None
    away = y - y[0]  # the exact sums are around a number near the mean
    around = away - np.average(away, 0, sample_weight)
    wide = np.average(around**2, 0, sample_weight)
    errors = np.average((x - y) ** 2, 0, sample_weight)
    explained = np.where(wide > 0, 1 - errors / np.where(wide > 0, wide, 1), 0.0).mean()
    assert over_parts(metrics.R2(columns["x"], columns["y"], **options), arrays, r) == pytest.approx(explained, rel=1e-9, abs=1e-9)
    for measure, exact in ((metrics.RMSE, math.sqrt(errors.mean())), (metrics.MAE, np.average(abs(x - y), 0, sample_weight).mean())):
        assert over_parts(measure(columns["x"], columns["y"], **options), arrays, r) == pytest.approx(exact)


def test_a_constant_column_has_no_variance_however_far(columns: dict[str, Any]) -> None:
    r2 = metrics.R2(columns["x"], columns["y"])
    y = np.full((50, 3), 0.1) * [1, 1e9, -7]
    assert over_parts(r2, [y, y], np.random.RandomState(0)) == 1 and over_parts(r2, [y + 1, y], np.random.RandomState(1)) == 0


def test_the_variance_of_a_set_in_training_and_in_evaluation() -> None:
    r = np.random.default_rng(0)
    y = 1.7e9 + 100 * r.standard_normal((60, 1))
    data = {"x": y + 30 * r.standard_normal((60, 1)), "y": y, "z": r.standard_normal((60, 2)).astype("float32")}
    x, truth, z = (layer.data(n, ["batch", a.shape[1]], str(a.dtype)) for n, a in data.items())
    measures = {"r2": metrics.R2(x, truth)}
    cost = layer.mean(layer.square(layer.fc(z, 1)))
    history = fs.train(cost, data, batch_size=7, epochs=1, metrics=measures, validation=data, progress=False)
    exact = sk.r2_score(y, data["x"])
    assert exact < 0.95
    for value in (history.column("r2")[0], history.column("validation r2")[0], fs.evaluate(measures, data, batch_size=7)["r2"]):
        assert value == pytest.approx(exact, abs=1e-6)


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS, weighted=st.booleans(), ignored=st.sampled_from([None, -100, 2]), curve=st.sampled_from(["ROC", "PR"]))
def test_areas_under_curves(columns: dict[str, Any], seed: int, weighted: bool, ignored: int | None, curve: Any) -> None:
    r = np.random.RandomState(seed)
    count = r.randint(4, 60)
    score, label, w = np.round(r.randn(count, 1), r.randint(0, 4)), r.randint(0, 2, (count, 1)), r.rand(count, 1) + 0.1
    label[:2] = [[0], [1]]
    kept = np.ones(count, bool)
    if ignored is not None:
        kept[2:] = r.rand(count - 2) < 0.7
        label[~kept], score[~kept] = ignored, np.nan
    metric = metrics.AUC(columns["score"], columns["label"], curve, ignore_index=ignored, weight=columns["w"] if weighted else None)
    exact = (sk.roc_auc_score if curve == "ROC" else sk.average_precision_score)(label[kept], score[kept], sample_weight=w[kept, 0] if weighted else None)
    assert over_parts(metric, [score, label, *([w] if weighted else [])], r) == pytest.approx(exact)


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS, weighted=st.booleans(), average=st.sampled_from(["macro", "micro", "weighted", None]), kind=st.sampled_from(list(KINDS)))
def test_classes(columns: dict[str, Any], seed: int, weighted: bool, average: Any, kind: str) -> None:
    r = np.random.RandomState(seed)
    count = r.randint(4, 50)
    scores, label, w = np.round(r.rand(count, 4), 1), r.randint(0, r.randint(2, 5), (count, 1)), r.rand(count, 1)
    kept = np.arange(count) != 1
    label[~kept], scores[~kept] = -1, np.nan
    metric = KINDS[kind](columns["scores"], columns["label"], average, ignore_index=-1, weight=columns["w"] if weighted else None)
    true, guess = label[kept, 0], scores[kept].argmax(1)
    exact = getattr(sk, f"{kind}_score")(
        true, guess, average=average, labels=list(range(4)) if average is None else None, sample_weight=w[kept, 0] if weighted else None, zero_division=0
    )
    arrays = [scores, label, *([w] if weighted else [])]
    np.testing.assert_allclose(over_parts(metric, arrays, r), exact)
    accuracy = metrics.Accuracy(columns["scores"], columns["label"], ignore_index=-1, weight=columns["w"] if weighted else None)
    assert over_parts(accuracy, arrays, r) == pytest.approx(sk.accuracy_score(true, guess, sample_weight=w[kept, 0] if weighted else None))


@settings(max_examples=EXAMPLES, deadline=None)
@given(seed=SEEDS, ignored=st.sampled_from([-100, -1, 2]), weighted=st.booleans())
def test_labels_left_out_where_each_column_is_a_class(columns: dict[str, Any], seed: int, ignored: int, weighted: bool) -> None:
    """Each column by itself is what scikit-learn makes of its labels that count."""
    r = np.random.RandomState(seed)
    count = r.randint(3, 30)
    scores, true, w = r.rand(count, 4), r.randint(0, 2, (count, 4)), r.rand(count, 1)
    kept = r.rand(count, 4) < 0.6
    kept[0] = True
    label, seen = np.where(kept, true, ignored), np.where(kept, scores, np.nan)
    options: dict[str, Any] = {"threshold": 0.4, "ignore_index": ignored, "weight": columns["w"] if weighted else None}
    arrays = [seen, label, *([w] if weighted else [])]
    weights = np.broadcast_to(w if weighted else np.ones_like(w), kept.shape)
    each = [sk.f1_score(true[k, c], scores[k, c] > 0.4, sample_weight=weights[k, c], zero_division=0) for c, k in enumerate(kept.T)]
    np.testing.assert_allclose(over_parts(metrics.F1(columns["scores"], columns["several"], None, **options), arrays, r), each)
    right = np.average((scores > 0.4) == true, weights=weights * kept)
    assert over_parts(metrics.Accuracy(columns["scores"], columns["several"], **options), arrays, r) == pytest.approx(right)


def test_boxes_are_matched_as_by_pycocotools_or_as_in_voc() -> None:
    """The numbers are pycocotools' own; the true boxes overlap, so that the rules differ."""
    found, boxes, labels = (
        layer.data(n, ["rows_" + n, width], of, lod_level=1) for n, width, of in (("found", 6, "float32"), ("boxes", 4, "float32"), ("labels", 1, "int64"))
    )
    known: list[list[float]] = json.loads((Path(__file__).parent / "coco.json").read_text())
    differ = 0
    for seed, values in enumerate(known):
        for iou, exact in zip((IOU, 0.5, 0.75), values, strict=True):
            if exact < 0:
                continue
            options: dict[str, Any] = {"classes": CLASSES, "iou": iou, "points": 101}
            assert metrics.MeanAveragePrecision(found, boxes, labels, **options).of(*drawn(seed)) == pytest.approx(exact, abs=1e-12), (seed, iou)
            differ += metrics.MeanAveragePrecision(found, boxes, labels, **options, matching="voc").of(*drawn(seed)) != pytest.approx(exact, abs=1e-6)
    assert differ
    with pytest.raises(fs.SchemaError, match="matching must be 'coco' or 'voc'; seen 'best'"):
        metrics.MeanAveragePrecision(found, boxes, labels, classes=1, matching="best")  # pyright: ignore[reportArgumentType]


def test_a_box_whose_best_true_box_is_taken() -> None:
    found, boxes, labels = (
        layer.data(n, ["rows_" + n, width], of, lod_level=1) for n, width, of in (("found", 6, "float32"), ("boxes", 4, "float32"), ("labels", 1, "int64"))
    )
    arrays = [[np.array([[0, 0.9, 0, 0, 10, 10], [0, 0.8, 0, 1, 10, 11]])], [np.array([[0, 0, 10, 10], [0, 3, 10, 13]])], [np.zeros((2, 1), "int64")]]
    by_rule = [metrics.MeanAveragePrecision(found, boxes, labels, classes=1, matching=rule).of(*arrays) for rule in ("coco", "voc")]
    assert by_rule == [1.0, 0.5]
    for place, wrong, says in (
        (0, [np.array([[0, np.nan, 0, 0, 1, 1]])], "the found boxes must be finite; seen nan in 1 of 6 places"),
        (0, [np.array([[7, 0.5, 0, 0, 1, 1]])], r"a class number must be in \[0, 1\); the found boxes has 7 to 7"),
        (2, [np.full((2, 1), 0.5)], "a class number must be whole; seen 0.5 in the label"),
        (2, [np.zeros((3, 1))], "of an image: boxes and labels must be as many; seen 2 and 3"),
        (1, [np.ones((2, 4))] * 2, ": found and boxes and labels must be as many; seen 1 and 2 and 1"),
    ):
        with pytest.raises(fs.ExecutionError, match=says):
            metrics.MeanAveragePrecision(found, boxes, labels, classes=1).of(*arrays[:place], wrong, *arrays[place + 1 :])


# --- numbers that are none of a classifier or a regression

NAN, FLAT = np.nan, np.array([[0.2], [0.7]])
Make = Callable[[dict[str, Any]], Metric]
WRONG: dict[str, tuple[Make, list[Any], str]] = {
    "auc of -1 and 1": (
        lambda c: metrics.AUC(c["score"], c["label"]), [FLAT, [[-1], [1]]],
        r"AUC: a class number must be in \[0, 2\); the label has -1 to 1; ignore"),
    "auc of 1 and 2": (lambda c: metrics.AUC(c["score"], c["label"], "PR"), [FLAT, [[1], [2]]], r"in \[0, 2\); the label has 1 to 2"),
    "auc of soft labels": (lambda c: metrics.AUC(c["score"], c["label"]), [FLAT, [[0.1], [1]]], "a class number must be whole; seen 0.1 in the label"),
    "auc of another left out": (lambda c: metrics.AUC(c["score"], c["label"], ignore_index=-1), [FLAT, [[-100], [1]]], r"the label has -100 to 1$"),
    "auc of nan": (
        lambda c: metrics.AUC(c["both"], c["label"]), [[[0, 1], [1, NAN]], [[0], [1]]],
        "AUC: the score must be numbers other than NaN; seen nan in 1 of 2"),
    "auc of a label too few": (lambda c: metrics.AUC(c["score"], c["label"]), [FLAT, [[1]]], "score and label must be as many; seen 2 and 1"),
    "top of nan": (lambda c: metrics.TopKAccuracy(c["scores"], c["label"], 2), [[[1, 2, NAN, 0]], [[0]]], "the prediction must be numbers other than NaN"),
    "accuracy of nan": (lambda c: metrics.Accuracy(c["scores"], c["label"]), [[[1, 2, NAN, 0]], [[0]]], "the prediction must be numbers other than NaN"),
    "f1 of a column of nan": (lambda c: metrics.F1(c["score"], c["label"]), [[[NAN]], [[0]]], "F1: the prediction must be numbers other than NaN"),
    "several, label": (
        lambda c: metrics.F1(c["scores"], c["several"], threshold=0.5), [np.ones((1, 4)), [[0, 1, -1, 0]]],
        r"in \[0, 2\); the label has -1 to 1"),
    "several, nan": (
        lambda c: metrics.F1(c["scores"], c["several"], threshold=0.5), [[[0, 1, NAN, 0]], [[0, 1, 1, 0]]],
        "the prediction must be numbers other"),
    "numbers of classes": (lambda c: metrics.F1(c["number"], c["label"], classes=3), [[[3]], [[2]]], r"in \[0, 3\); the prediction has 3 to 3"),
    "confusion": (
        lambda c: metrics.ConfusionMatrix(c["scores"], c["label"]), [np.ones((1, 4)), [[-100]]],
        "the label has -100 to -100; ignore_index= leaves out one"),
    "weight below 0": (
        lambda c: metrics.F1(c["scores"], c["label"], weight=c["w"]), [np.ones((1, 4)), [[0]], [[-1.0]]],
        "F1: a weight must be at least 0; seen -1"),
    "weight nan": (
        lambda c: metrics.MAE(c["x"], c["y"], weight=c["w"]), [np.ones((1, 3)), np.ones((1, 3)), [[NAN]]],
        "MAE: the weight must be finite; seen nan"),
    "weights too few": (
        lambda c: metrics.MAE(c["x"], c["y"], weight=c["w"]), [np.ones((3, 3)), np.ones((3, 3)), [[1], [1]]],
        "one for each of 9 elements, .*seen 2"),
    "guess nan": (lambda c: metrics.R2(c["x"], c["y"]), [[[1, 2, NAN]], [[1, 2, 3]]], "R2: the guess must be finite; seen nan in 1 of 3 places"),
    "truth infinite": (lambda c: metrics.RMSE(c["x"], c["y"]), [[[1, 2, 3]], [[1, 2, np.inf]]], "RMSE: the truth must be finite; seen inf in 1 of 3 places"),
    "loss nan": (lambda c: metrics.Perplexity(c["score"]), [[[NAN]]], "Perplexity: the loss must be numbers other than NaN"),
}  # fmt: skip


@pytest.mark.parametrize("name", WRONG)
def test_numbers_that_are_none_are_refused(columns: dict[str, Any], name: str) -> None:
    make, arrays, says = WRONG[name]
    with pytest.raises(fs.ExecutionError, match=says):
        make(columns).of(*map(np.asarray, arrays))


def test_the_figure_is_named_and_options_are_checked(columns: dict[str, Any]) -> None:
    with pytest.raises(fs.ExecutionError) as caught:
        fs.evaluate({"area": metrics.AUC(columns["score"], columns["label"])}, {"score": FLAT, "label": np.array([[-1], [1]])})
    assert caught.value.__notes__ == ["in the figure 'area' of score, label"]
    for make in (metrics.AUC, metrics.F1):
        with pytest.raises(fs.SchemaError, match=r"ignore_index must be a whole number, or None; seen '-100'"):
            make(columns["score"], columns["label"], ignore_index="-100")  # pyright: ignore[reportArgumentType]


def test_elements_without_a_weight_may_be_nan(columns: dict[str, Any]) -> None:
    some, w = np.array([[NAN], [0.4], [0.6]]), np.array([[0.0], [1], [1]])
    assert metrics.AUC(columns["score"], columns["label"], weight=columns["w"]).of(some, np.array([[7], [0], [1]]), w) == 1
    assert metrics.Perplexity(columns["score"], columns["w"]).of(some, w) == pytest.approx(math.exp(0.5))
    three = np.repeat(some, 3, 1)
    assert metrics.R2(columns["x"], columns["y"], weight=columns["w"]).of(three, three, w) == 1


def test_a_measure_of_nothing_says_so(columns: dict[str, Any]) -> None:
    c, zero, no = columns, np.zeros((2, 1)), np.zeros((2, 1), "int64")
    for metric, arrays, says in (
        (metrics.AUC(c["score"], c["label"]), [zero, no], "AUC is NaN: ROC needs examples of both classes, and all that count are of class 0"),
        (metrics.AUC(c["score"], c["label"]), [zero, no + 1], "and all that count are of class 1"),
        (metrics.AUC(c["score"], c["label"], "PR", thresholds=3), [zero, no], "AUC is NaN: PR needs examples of class 1, and all that count are of class 0"),
        (metrics.AUC(c["score"], c["label"], ignore_index=0), [zero, no], "there is no example that counts"),
        (metrics.Accuracy(c["scores"], c["label"], ignore_index=0), [np.ones((2, 4)), no], "Accuracy is NaN: there is no example that counts"),
        (metrics.F1(c["scores"], c["label"], ignore_index=0), [np.ones((2, 4)), no], "F1 is NaN: there is no example"),
        (metrics.RMSE(c["x"], c["y"], weight=c["w"]), [np.ones((2, 3)), np.ones((2, 3)), zero], "RMSE is NaN: there is no example"),
        (metrics.R2(c["x"], c["y"]), [np.ones((0, 3)), np.ones((0, 3))], "R2 is NaN: there is no example"),
        (metrics.R2(c["x"], c["y"]), [np.ones((1, 3)), np.ones((1, 3))], "R2 is NaN: it takes two examples, and one alone counts"),
        (metrics.R2(c["x"], c["y"], weight=c["w"]), [np.ones((2, 3)), np.ones((2, 3)), np.array([[1.0], [0]])], "R2 is NaN: it takes two examples"),
        (metrics.Perplexity(c["score"], c["w"]), [zero, zero], "Perplexity is NaN: there is no example"),
    ):
        with pytest.warns(fs.ForeshapeWarning, match=says):
            assert math.isnan(metric.of(*arrays))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert metrics.AUC(c["score"], c["label"], "PR").of(zero, no + 1) == 1
