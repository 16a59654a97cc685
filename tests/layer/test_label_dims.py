"""Predictions, labels and weights as [n], [n, 1] and [n, 1, 1], of all losses and metrics: the numbers of one for each example, or words."""

from __future__ import annotations

import functools
import inspect
import itertools
import re
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import ShapeError

N, CLASSES = 3, 5
RNG = np.random.RandomState(3)
SHAPES = {1: ["batch"], 2: ["batch", 1], 3: ["batch", 1, 1]}
NUMBERS = {"p": RNG.uniform(0.1, 0.9, N).astype("float32"), "y": np.array([1, 0, 1], "float32"), "w": np.array([0.5, 2, 1], "float32")}
SCORES = RNG.uniform(0.05, 0.95, (N, CLASSES)).astype("float32")
CLASS = np.array([4, 0, 2])
Call = Callable[..., Any]


def rest(x: fs.Variable) -> fs.Variable:
    """Another variable of the dims of ``x``."""
    return layer.scale(x, 0.5, bias=0.1)


PAIRS: dict[str, Call] = {
    "square_error_cost": layer.square_error_cost,
    "mse_loss": layer.mse_loss,
    "huber_loss": layer.huber_loss,
    "sigmoid_cross_entropy_with_logits": layer.sigmoid_cross_entropy_with_logits,
    "bce_loss": layer.bce_loss,
    "log_loss": layer.log_loss,
    "kldiv_loss": lambda p, y, **k: layer.kldiv_loss(p, y, "none", **k),
    "smooth_l1": layer.smooth_l1,
    "hinge_loss": layer.hinge_loss,
    "sigmoid_focal_loss": layer.sigmoid_focal_loss,
    "dice_loss": layer.dice_loss,
    "rank_loss": lambda p, y, **k: layer.rank_loss(y, p, rest(p), **k),
    "rank_loss right": lambda p, y, **k: layer.rank_loss(rest(p), p, y, **k),
    "margin_rank_loss": lambda p, y, **k: layer.margin_rank_loss(y, p, rest(p), **k),
    "margin_rank_loss right": lambda p, y, **k: layer.margin_rank_loss(rest(p), p, y, **k),
    "contrastive_loss": lambda p, y, **k: layer.contrastive_loss(p, rest(p), y, **k),
    "contrastive_loss y": lambda p, y, **k: layer.contrastive_loss(p, y, layer.fill_like(layer.reshape(p, [-1, 1]), 1.0), **k),
    "triplet_margin_loss": lambda p, y, **k: layer.triplet_margin_loss(p, rest(p), y, **k),
    "triplet_margin_loss positive": lambda p, y, **k: layer.triplet_margin_loss(p, y, rest(p), **k),
    "info_nce_loss": layer.info_nce_loss,
    "cos_sim": layer.cos_sim,
}
"""A function of a prediction and a label of one number for each example."""
ROWS: dict[str, Call] = {
    "cross_entropy": layer.cross_entropy,
    "cross_entropy smoothed": lambda x, y, **k: layer.cross_entropy(x, y, label_smoothing=0.1, class_weight=[1.0, 2, 3, 4, 5], **k),
    "softmax_with_cross_entropy": layer.softmax_with_cross_entropy,
    "softmax_with_cross_entropy smoothed": lambda x, y, **k: layer.softmax_with_cross_entropy(x, y, label_smoothing=0.1, class_weight={1: 2.0}, **k),
    "softmax_focal_loss": lambda x, y, **k: layer.softmax_focal_loss(x, y, class_weight={0: 2.0}, **k),
    "nll_loss": layer.nll_loss,
    "nll_loss none": lambda x, y, **k: layer.nll_loss(x, y, reduction="none", **k),
    "bpr_loss": layer.bpr_loss,
    "nce": lambda x, y, **k: layer.nce(x, y, CLASSES, class_weight={0: 2.0}, seed=7, weight=layer.Constant(0.1), **k),
    "hierarchical_sigmoid": lambda x, y, **k: layer.hierarchical_sigmoid(x, y, CLASSES, class_weight={0: 2.0}, weight=layer.Constant(0.1), **k),
    "accuracy": layer.accuracy,
    "precision_recall": lambda x, y, **k: layer.precision_recall(x, y, **k)[0],
    "detection.sigmoid_focal_loss": lambda x, y: layer.detection.sigmoid_focal_loss(x, y, layer.fill_constant([1], "int32", 2)),
}
"""A function of scores [n, classes] and class numbers."""
ELSEWHERE = {
    "chunk_eval": "tags of sequences", "crf_decoding": "tags of sequences", "edit_distance": "sequences", "linear_chain_crf": "tags of sequences",
    "warpctc": "sequences", "rnnt_loss": "sequences", "detection.yolo_loss": "boxes", "mixup": "labels of any dims, which come out so",
    "label_smooth": "a prior for each class", "weighted_mean": "a weight alone", "auc": "labels that are integers, of scores that are none",
}  # fmt: skip
NO_HINT = {"smooth_l1", "dice_loss", "contrastive_loss", "contrastive_loss y", "triplet_margin_loss", "triplet_margin_loss positive", "info_nce_loss",
           "cos_sim"}  # fmt: skip
"""Those that take rows of features: a prediction [n] may be one row, or one feature of n rows."""


def shaped(name: str, dims: int, dtype: str = "fp32") -> fs.Variable:
    return layer.data(name, SHAPES[dims], dtype)


def value(out: fs.Variable, feed: Mapping[str, np.ndarray]) -> np.ndarray:
    startup, scope = fs.default_startup_program(), fs.Scope()
    executor = fs.Executor()
    executor.run(startup, scope=scope)
    return executor.run(out.block.program, dict(feed), [out], scope)[0]


def refused(call: Callable[[], Any]) -> str:
    """What an error says; empty where there is none."""
    try:
        call()
    except ShapeError as error:
        assert "test_label_dims.py" in str(error)
        return str(error)
    return ""


def as_advised(words: str, given: dict[str, fs.Variable]) -> dict[str, fs.Variable]:
    """Do to a variable what an error says to write."""
    verb, name, axes = re.search(r"write layer\.(\w+)\((\w+), (\[[\d, ]+\])\)", words).groups()  # pyright: ignore[reportOptionalMemberAccess]
    in_table = re.search(rf"^ *{name} = (\w+)", words, re.MULTILINE)
    which = in_table[1] if in_table else {"sample_weight": "w", "label": "y"}.get(name, name)
    key = next((k for k, v in given.items() if v.name == which), "p")  # of which `rest` made it
    return {**given, key: getattr(layer, verb)(given[key], [int(a) for a in axes.strip("[]").split(",")])}


def numbers(call: Call, given: dict[str, fs.Variable], feed: dict[str, np.ndarray], hints: bool) -> np.ndarray | None:
    """The numbers of a loss, after what its errors say to write; None where they do not say it."""
    for _ in range(3):
        words = refused(functools.partial(call, *given.values()))
        if not words:
            out = call(*given.values())
            return value(out, feed)
        if "write layer." not in words:
            assert not hints, words
            return None
        given = as_advised(words, given)
    raise AssertionError(words)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("name", PAIRS)
def test_a_label_of_other_dims_than_the_prediction(name: str) -> None:
    seen: list[np.ndarray] = []
    for p, y in itertools.product(SHAPES, SHAPES):
        with fs.program():
            feed = {"p": NUMBERS["p"].reshape(N, *[1] * (p - 1)), "y": NUMBERS["y"].reshape(N, *[1] * (y - 1))}
            given = {"p": shaped("p", p), "y": shaped("y", y)}
            assert p == y or refused(functools.partial(PAIRS[name], *given.values())), "broadcast"
            found = numbers(PAIRS[name], given, feed, hints=name not in NO_HINT)
            seen += [] if found is None else [found.ravel()]
    assert len(seen) >= 1
    for one in seen:
        np.testing.assert_allclose(one, seen[0], rtol=1e-5)


@pytest.mark.parametrize("name", ROWS)
def test_class_numbers_of_other_dims(name: str) -> None:
    seen: list[np.ndarray] = []
    dtype = "int32" if name.startswith("detection") else "int64"
    for y in SHAPES:
        with fs.program():
            given = {"x": layer.data("x", ["batch", CLASSES]), "y": shaped("y", y, dtype)}
            found = numbers(ROWS[name], given, {"x": SCORES, "y": CLASS.reshape(N, *[1] * (y - 1)).astype(dtype)}, hints=True)
            assert found is not None
            seen.append(found.ravel())
    for one in seen:
        np.testing.assert_allclose(one, seen[0], rtol=1e-5)


def weighed() -> dict[str, tuple[Call, int]]:
    """Each loss that takes a weight for each example, and of how many dims its label is."""
    takes = {n: c for n, c in {**PAIRS, **ROWS}.items() if "sample_weight" in inspect.signature(getattr(layer, n.split()[0], len)).parameters}
    out: dict[str, tuple[Call, int]] = {}
    for name, call in takes.items():
        for y in SHAPES:
            with fs.program():
                if not refused(functools.partial(call, *operands(name, y).values())):
                    out[f"{name} of {y} dims"] = call, y
    return out


def weighing(call: Call) -> Call:
    """A loss as a function of the weight alone."""
    return lambda weight: call(sample_weight=weight)


def operands(name: str, dims: int) -> dict[str, fs.Variable]:
    if name.partition(" of ")[0] in PAIRS:
        return {"p": shaped("p", dims), "y": shaped("y", dims)}
    return {"x": layer.data("x", ["batch", CLASSES]), "y": shaped("y", dims, "int64")}


@pytest.mark.long
def test_a_weight_for_each_example_as_column_and_row() -> None:
    cases = weighed()
    cases |= {f"weighted_mean of {d} dims": (lambda p, y, sample_weight: layer.weighted_mean(layer.square(p - y), sample_weight), d) for d in SHAPES}
    assert len(cases) > 40
    for name, (call, dims) in cases.items():
        seen: list[np.ndarray] = []
        for w in SHAPES:
            with fs.program():
                given = operands(name if "weighted_mean" not in name else "mse_loss", dims)
                feed = {n: NUMBERS[n].reshape(N, *[1] * (dims - 1)) for n in ("p", "y")}
                feed = feed if "p" in given else {"x": SCORES, "y": CLASS.reshape(N, *[1] * (dims - 1))}
                feed["w"] = NUMBERS["w"].reshape(N, *[1] * (w - 1))
                found = numbers(weighing(functools.partial(call, *given.values())), {"w": shaped("w", w)}, feed, hints=True)
                assert found is not None, name
                seen.append(found.ravel())
        for one in seen:
            np.testing.assert_allclose(one, seen[0], rtol=1e-5, err_msg=name)


def test_no_loss_is_forgotten() -> None:
    told = {n.split()[0] for n in (*PAIRS, *ROWS)} | ELSEWHERE.keys()
    every = {**{n: getattr(layer, n) for n in layer.__all__}, **{f"detection.{n}": getattr(layer.detection, n) for n in layer.detection.__all__}}
    for name, function in every.items():
        if inspect.isfunction(function) and {"label", "target", "gt_label", "sample_weight"} & set(inspect.signature(function).parameters):
            assert name in told, name


def test_open_sizes_are_checked_when_they_are_fed() -> None:
    p, y, w = layer.data("p", ["batch", 1]), layer.data("y", ["n", 1]), layer.data("w", ["m"])
    loss = layer.mse_loss(p, y, sample_weight=w)
    one = np.ones((N, 1), "float32")
    np.testing.assert_allclose(value(loss, {"p": one, "y": one * 3, "w": one[:, 0] * 0.5}), 2.0)
    for wrong in ({"y": one[:1]}, {"w": one[:1, 0]}, {"p": one[:1]}):
        with pytest.raises(fs.ForeshapeError, match=r"(label must have the dims of x|sample_weight must have one number)"):
            value(loss, {"p": one, "y": one, "w": one[:, 0], **wrong})


def test_columns_are_not_broadcast_either() -> None:
    x, column = layer.data("x", ["batch", 4]), layer.data("c", ["batch", 1])
    for call in (layer.mse_loss, layer.dice_loss, layer.info_nce_loss, lambda a, b: layer.contrastive_loss(a, b, column),
                 lambda a, b: layer.triplet_margin_loss(a, a, b), lambda a, b: layer.contrastive_loss(a, a, layer.concat([b, b], 1))):  # fmt: skip
        assert "must have" in refused(functools.partial(call, x, column))
    with pytest.raises(ShapeError, match=r"has none; write layer\.unsqueeze"):
        layer.bce_loss(layer.data("s", ["batch"]), layer.data("t", ["batch"]), class_weight=layer.data("cw", [2]))


def test_a_program_of_operators_still_broadcasts(tmp_path: Any) -> None:
    p, y = layer.data("p", ["batch", 1]), layer.data("y", ["batch"])
    loss = layer.mean(layer.square(p - y))
    fs.save_program(fs.default_main_program(), str(tmp_path / "net.pdmodel"))
    program = fs.load_program(str(tmp_path / "net.pdmodel"))
    found = fs.Executor().run(program, {"p": np.zeros((2, 1), "float32"), "y": np.array([1, 3], "float32")}, [loss.name], fs.Scope())[0]
    assert found == 5.0
