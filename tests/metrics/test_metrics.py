"""Measures of a whole set: what scikit-learn makes of all examples at once, whatever the batches are."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk

import foreshape as fs
from foreshape import layer, metrics
from foreshape.apps.training.distributed.batch_share import Share
from foreshape.apps.training.figures import figure_of

EXAMPLES, CLASSES = 61, 4
BATCHES = (1, 7, EXAMPLES)


def data() -> dict[str, Any]:
    """Scores with ties, labels of which one class never comes and some do not count, weights, and boxes."""
    r = np.random.RandomState(3)
    scores = np.round(r.rand(EXAMPLES, CLASSES), 1).astype("float32")
    label = np.where(r.rand(EXAMPLES) < 0.5, scores.argmax(1), r.randint(0, CLASSES - 1, EXAMPLES))
    one = np.round(r.rand(EXAMPLES, 1), 2).astype("float32")
    truth = r.randn(EXAMPLES, 3).astype("float32")
    return {
        "scores": scores, "label": label[:, None], "one": one, "yes": (r.rand(EXAMPLES, 1) < one).astype("int64"),
        "weight": np.where(r.rand(EXAMPLES, 1) < 0.3, 0, r.rand(EXAMPLES, 1)).astype("float32"),
        "several": (r.rand(EXAMPLES, CLASSES) < scores).astype("float32"),
        "image": r.randn(EXAMPLES, CLASSES, 2, 3).astype("float32"), "mask": r.randint(0, CLASSES, (EXAMPLES, 2, 3)),
        "truth": truth, "guess": (truth * 0.8 + 0.3 * r.randn(EXAMPLES, 3)).astype("float32"), "loss": r.rand(EXAMPLES, 1).astype("float32"),
    }  # fmt: skip


DATA = data()


def described() -> dict[str, Any]:
    return {n: layer.data(n, ["batch", *a.shape[1:]], "int64" if a.dtype.kind == "i" else "float32") for n, a in DATA.items()}


Make = Callable[[dict[str, Any]], metrics.Metric]
S, L, W = DATA["scores"], DATA["label"][:, 0], DATA["weight"][:, 0]
P = S.argmax(1)
K = L != 1
ALL = list(range(CLASSES))
ZERO: dict[str, Any] = {"zero_division": 0}
CASES: dict[str, tuple[Make, Callable[[], Any]]] = {
    "accuracy": (lambda d: metrics.Accuracy(d["scores"], d["label"]), lambda: sk.accuracy_score(L, P)),
    "accuracy weighted": (lambda d: metrics.Accuracy(d["scores"], d["label"], weight=d["weight"]), lambda: sk.accuracy_score(L, P, sample_weight=W)),
    "accuracy ignoring": (lambda d: metrics.Accuracy(d["scores"], d["label"], ignore_index=1), lambda: sk.accuracy_score(L[K], P[K])),
    "accuracy of several": (lambda d: metrics.Accuracy(d["scores"], d["several"], threshold=0.5), lambda: ((S > 0.5) == DATA["several"]).mean()),
    "top 2": (lambda d: metrics.TopKAccuracy(d["scores"], d["label"], 2), lambda: (np.argsort(-S, 1, kind="stable")[:, :2] == L[:, None]).any(1).mean()),
    "top 2 ignoring": (
        lambda d: metrics.TopKAccuracy(d["scores"], d["label"], 2, ignore_index=1, weight=d["weight"]),
        lambda: np.average((np.argsort(-S[K], 1, kind="stable")[:, :2] == L[K][:, None]).any(1), weights=W[K]),
    ),
    "precision each": (lambda d: metrics.Precision(d["scores"], d["label"], None), lambda: sk.precision_score(L, P, labels=ALL, average=None, **ZERO)),
    "recall macro": (lambda d: metrics.Recall(d["scores"], d["label"]), lambda: sk.recall_score(L, P, average="macro", **ZERO)),
    "recall of numbers": (
        lambda d: metrics.Recall(layer.argmax(d["scores"], 1), d["label"], None, classes=CLASSES),
        lambda: sk.recall_score(L, P, labels=ALL, average=None, **ZERO),
    ),
    **{
        f"f1 {average}": (
            lambda d, average=average: metrics.F1(d["scores"], d["label"], average), lambda average=average: sk.f1_score(L, P, average=average, **ZERO)
        )
        for average in ("macro", "micro", "weighted")
    },
    "f1 of examples with weights": (
        lambda d: metrics.F1(d["scores"], d["label"], weight=d["weight"]), lambda: sk.f1_score(L, P, average="macro", sample_weight=W, **ZERO)
    ),
    "f1 of one column": (
        lambda d: metrics.F1(d["one"], d["yes"], "binary"), lambda: sk.f1_score(DATA["yes"][:, 0], DATA["one"][:, 0] > 0.5)
    ),
    "f1 of several": (
        lambda d: metrics.F1(d["scores"], d["several"], "micro", threshold=0.4), lambda: sk.f1_score(DATA["several"], S > 0.4, average="micro")
    ),
    "f1 of several, macro": (
        lambda d: metrics.F1(d["scores"], d["several"], threshold=0.4), lambda: sk.f1_score(DATA["several"], S > 0.4, average="macro")
    ),
    "f1 of distributions": (
        lambda d: metrics.F1(d["scores"], d["several"]), lambda: sk.f1_score(DATA["several"].argmax(1), P, average="macro", **ZERO)
    ),
    "overlap of pixels": (
        lambda d: metrics.IoU(d["image"], d["mask"], None, axis=1),
        lambda: sk.jaccard_score(DATA["mask"].reshape(-1), DATA["image"].argmax(1).reshape(-1), average=None),
    ),
    "overlap, weighted images": (
        lambda d: metrics.IoU(d["image"], d["mask"], axis=1, weight=d["weight"]),
        lambda: sk.jaccard_score(DATA["mask"].reshape(-1), DATA["image"].argmax(1).reshape(-1), average="macro", sample_weight=np.repeat(W, 6)),
    ),
    "confusion": (lambda d: metrics.ConfusionMatrix(d["scores"], d["label"]), lambda: sk.confusion_matrix(L, P, labels=ALL)),
    "auc": (lambda d: metrics.AUC(d["one"], d["yes"]), lambda: sk.roc_auc_score(DATA["yes"], DATA["one"])),
    "auc weighted": (
        lambda d: metrics.AUC(d["one"], d["yes"], weight=d["weight"]), lambda: sk.roc_auc_score(DATA["yes"][:, 0], DATA["one"][:, 0], sample_weight=W)
    ),
    "auc by steps": (lambda d: metrics.AUC(d["one"], d["yes"], thresholds=1000), lambda: sk.roc_auc_score(DATA["yes"], DATA["one"])),
    "average precision": (lambda d: metrics.AUC(d["one"], d["yes"], "PR"), lambda: sk.average_precision_score(DATA["yes"], DATA["one"])),
    "average precision by few steps": (
        lambda d: metrics.AUC(d["one"], d["yes"], "PR", thresholds=7, weight=d["weight"]),
        lambda: sk.average_precision_score(DATA["yes"][:, 0], np.floor(DATA["one"][:, 0].astype("float64") * 7), sample_weight=W),
    ),
    "absolute error": (lambda d: metrics.MAE(d["guess"], d["truth"]), lambda: sk.mean_absolute_error(DATA["truth"], DATA["guess"])),
    "root of squares": (
        lambda d: metrics.RMSE(d["guess"], d["truth"], weight=d["weight"]),
        lambda: math.sqrt(sk.mean_squared_error(DATA["truth"], DATA["guess"], sample_weight=W)),
    ),
    "explained": (lambda d: metrics.R2(d["guess"], d["truth"]), lambda: sk.r2_score(DATA["truth"], DATA["guess"])),
    "explained, weighted": (
        lambda d: metrics.R2(d["guess"], d["truth"], weight=d["weight"]), lambda: sk.r2_score(DATA["truth"], DATA["guess"], sample_weight=W)
    ),
    "perplexity": (lambda d: metrics.Perplexity(d["loss"]), lambda: math.exp(DATA["loss"].astype("float64").mean())),
    "perplexity of some": (lambda d: metrics.Perplexity(d["loss"], d["weight"]), lambda: math.exp(np.average(DATA["loss"][:, 0], weights=W))),
}  # fmt: skip


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("name", CASES)
def test_a_measure_is_that_of_all_examples_whatever_the_batches(name: str) -> None:
    make, exact = CASES[name]
    metric = make(described())
    for size in BATCHES:
        found = fs.evaluate({"it": metric}, DATA, batch_size=size)["it"]
        assert np.shape(found) == metric.shape
        np.testing.assert_allclose(found, exact(), rtol=1e-6, atol=1e-9, err_msg=str(size))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", CASES)
def test_parts_of_ranks_make_the_whole(name: str) -> None:
    """A rank without an example adds nothing, and what the ranks have is added or joined."""
    make, exact = CASES[name]
    metric = make(described())
    program = metric.inputs[0].block.program
    figure = figure_of("it", metric, program, None, fs.Executor(), fs.Scope())  # pyright: ignore[reportArgumentType]
    parts = [figure.begin() for _ in range(3)]
    for part, (first, end) in zip(parts, ((0, 20), (20, EXAMPLES), (0, 1)), strict=True):
        cut = {n: a[first:end] for n, a in DATA.items()}
        fetched = fs.Executor().run(program, cut, figure.fetches, fs.Scope())
        figure.add(part, dict(zip(figure.fetches, fetched, strict=True)), Share(cut, EXAMPLES, 0 if end == 1 else end - first))
    whole = {key: np.concatenate([p[key] for p in parts]) if value.ndim > 1 else sum(p[key] for p in parts) for key, value in parts[0].items()}
    assert all(value.dtype == np.float64 for value in whole.values())
    np.testing.assert_allclose(figure.value(whole), exact(), rtol=1e-6, atol=1e-9)


# --- boxes

FOUND = [
    [[0, 0.9, 0, 0, 10, 10], [0, 0.8, 0, 0, 10, 9], [1, 0.7, 20, 20, 30, 30], [0, 0.3, 50, 50, 60, 60]],
    [[1, 0.95, 0, 0, 4, 4], [0, 0.6, 5, 5, 15, 15]],
    [[-1, 0, 0, 0, 0, 0]],
    [[1, 0.5, 3, 3, 8, 8], [1, 0.4, 3, 3, 9, 9]],
]
BOXES = [[[0, 0, 10, 10], [21, 21, 30, 30]], [[6, 6, 15, 15], [0, 0, 10, 10]], [[1, 1, 2, 2]], [[3, 3, 8, 8]]]
LABELS = [[0, 1], [0, 1], [0], [1]]


def average_precision(kind: int, least: float, points: int | None = None) -> float:
    """The same another way: box by box, and the area under the curve point by point."""
    rows: list[tuple[float, bool]] = []
    total = sum(labels.count(kind) for labels in LABELS)
    for found, boxes, labels in zip(FOUND, BOXES, LABELS, strict=True):
        taken: set[int] = set()
        for _, score, *box in sorted((f for f in found if f[0] == kind), key=lambda f: -f[1]):
            overlaps = [(overlap(box, b), at) for at, (b, k) in enumerate(zip(boxes, labels, strict=True)) if k == kind]
            best = max(overlaps, default=(0.0, -1))
            right = best[0] >= least and best[1] not in taken
            taken |= {best[1]} if right else set()
            rows.append((score, right))
    rows.sort(key=lambda row: -row[0])
    curve = [(sum(r for _, r in rows[:n]) / total, sum(r for _, r in rows[:n]) / n) for n in range(1, len(rows) + 1)]
    if points:
        return float(np.mean([max((p for r, p in curve if r >= at - 1e-12), default=0.0) for at in np.linspace(0, 1, points)]))
    steps = zip([0.0, *(r for r, _ in curve)], [r for r, _ in curve], range(len(curve)), strict=False)
    return sum((b - a) * max(p for _, p in curve[at:]) for a, b, at in steps)


def overlap(a: list[float], b: list[float]) -> float:
    width, height = (max(min(a[i + 2], b[i + 2]) - max(a[i], b[i]), 0) for i in (0, 1))
    return width * height / ((a[2] - a[0]) * (a[3] - a[1]) + (b[2] - b[0]) * (b[3] - b[1]) - width * height)


@pytest.mark.parametrize(("iou", "points"), [(0.5, None), (0.9, None), ([0.5, 0.75, 0.9], None), (0.5, 11), (0.75, 101)])
def test_mean_average_precision_of_boxes(iou: Any, points: int | None) -> None:
    found, boxes, labels = (layer.data(n, shape=[n, *w], lod_level=1, dtype=of) for n, w, of in (("found", [6], "float32"), ("boxes", [4], "float32"),
                                                                                              ("labels", [1], "int64")))  # fmt: skip
    given = {n: [np.array(one, of).reshape(-1, w) for one in rows] for n, rows, of, w in (("found", FOUND, "float32", 6), ("boxes", BOXES, "float32", 4),
                                                                                         ("labels", LABELS, "int64", 1))}  # fmt: skip
    least = iou if isinstance(iou, list) else [iou]
    exact = [np.mean([average_precision(kind, x, points) for x in least]) for kind in (0, 1)]
    for size in (1, 3, 4):
        make = partial(metrics.MeanAveragePrecision, found, boxes, labels, classes=3, iou=iou, points=points)
        each = fs.evaluate({"it": make(each=True)}, given, batch_size=size)["it"]
        np.testing.assert_allclose(each, [*exact, np.nan])
        mean = fs.evaluate({"it": make()}, given, batch_size=size)["it"]
        assert mean == pytest.approx(np.mean(exact))


# --- what is refused, and what has no value


@pytest.mark.parametrize(
    ("make", "error", "says"),
    [
        (lambda d: metrics.F1(layer.argmax(d["scores"], 1), d["label"]), fs.SchemaError, r"F1: say how many classes=\.\.\. there are"),
        (lambda d: metrics.F1(d["scores"], d["label"], "mean"), fs.SchemaError, "average must be one of 'macro', 'micro', 'weighted', 'binary', None"),
        (lambda d: metrics.F1(d["scores"], d["label"], "binary"), fs.SchemaError, "'binary' is of two classes; seen 4 classes"),
        (lambda d: metrics.F1(d["scores"], d["label"], classes=3), fs.ShapeError, "classes=3, and the prediction is"),
        (lambda d: metrics.F1(d["scores"], d["truth"]), fs.ShapeError, "the label must be of the dims of the prediction without its classes"),
        (lambda d: metrics.IoU(d["image"], d["mask"]), fs.ShapeError, "IoU: the label must be"),
        (lambda d: metrics.F1(d["scores"], d["label"], weight=d["scores"]), fs.ShapeError, "weight must be one for each example"),
        (lambda d: metrics.F1(d["scores"], "label"), fs.SchemaError, "F1 is of variables, .* seen 'label'"),
        (lambda d: metrics.TopKAccuracy(d["scores"], d["label"], 9), fs.SchemaError, "at least k classes"),
        (lambda d: metrics.ConfusionMatrix(d["scores"], d["several"], threshold=0.5), fs.SchemaError, "leave threshold= out"),
        (lambda d: metrics.AUC(d["scores"], d["label"]), fs.ShapeError, r"the score must be \[batch\], \[batch, 1\] or \[batch, 2\]"),
        (lambda d: metrics.AUC(d["one"], d["yes"], thresholds=1.5), fs.SchemaError, "AUC: thresholds must be a whole number"),
        (lambda d: metrics.AUC(d["one"], d["yes"], thresholds=10**15), fs.SchemaError, "AUC: thresholds must be from 1 to"),
        (lambda d: metrics.F1(d["scores"], d["several"], threshold=float("nan")), fs.SchemaError, "F1: threshold must be a finite number; seen nan"),
        (lambda d: metrics.AUC(d["one"], d["yes"], "DET"), fs.SchemaError, "curve must be 'ROC' or 'PR'"),
        (lambda d: metrics.RMSE(d["guess"], d["one"]), fs.ShapeError, "guess and truth must be of one number of elements"),
        (lambda d: metrics.MeanAveragePrecision(d["scores"], d["scores"], d["label"], classes=2), fs.ShapeError, r"found must be ragged, \[boxes, 6\]"),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused(make: Make, error: type[Exception], says: str) -> None:
    with pytest.raises(error, match=says):
        make(described())


def test_class_numbers_out_of_range_and_scores_that_are_none() -> None:
    d = described()
    with pytest.raises(fs.ExecutionError, match=r"F1: a class number must be in \[0, 4\); the label has 0 to 9"):
        fs.evaluate({"f1": metrics.F1(d["scores"], d["label"])}, {**DATA, "label": np.where(DATA["label"] == 2, 9, DATA["label"])})
    with pytest.raises(fs.ExecutionError, match=r"with thresholds, a score must be from 0 to 1; seen .* to 2"):
        fs.evaluate({"auc": metrics.AUC(d["one"], d["yes"], thresholds=9)}, {**DATA, "one": DATA["one"] + 1})
    with pytest.warns(fs.ForeshapeWarning, match="AUC is NaN"):
        nothing = fs.evaluate({"auc": metrics.AUC(d["one"], d["yes"]), "pr": metrics.AUC(d["one"], d["yes"], "PR")}, {**DATA, "yes": 0 * DATA["yes"]})
    assert math.isnan(nothing["auc"]) and math.isnan(nothing["pr"])


def test_a_name_of_elsewhere_is_told() -> None:
    with pytest.raises(AttributeError, match="AUROC"):
        _ = metrics.AUROC  # pyright: ignore[reportAttributeAccessIssue]


class Largest(metrics.Metric):
    """A measure of a user's own."""

    def begin(self) -> dict[str, Any]:
        return {"seen": np.zeros((0, 1))}

    def add(self, state: dict[str, Any], *arrays: Any) -> None:
        state["seen"] = np.append(state["seen"], [[arrays[0].max()]], 0)

    def value(self, state: dict[str, Any]) -> float:
        return float(state["seen"].max())


def test_a_measure_of_ones_own_trains_and_evaluates() -> None:
    d = described()
    largest = Largest(d["truth"])
    cost = layer.mean(layer.square(layer.fc(d["scores"], 3) - d["truth"]))
    history = fs.train(cost, DATA, batch_size=7, epochs=2, metrics={"largest": largest}, validation=DATA, progress=False)
    assert history.column("largest") == history.column("validation largest") == [float(DATA["truth"].max())] * 2
    assert largest.of(DATA["truth"]) == float(DATA["truth"].max())
