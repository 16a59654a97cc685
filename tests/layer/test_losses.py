"""The losses as a user meets them: shapes while describing, numbers at run time, and what is refused."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import UNK
from foreshape.errors import ExecutionError, GuardError, ShapeError, TypeMismatchError

RNG = np.random.RandomState(5)


def value(out: fs.Variable, feed: dict[str, Any]) -> np.ndarray:
    return fs.Executor().run(out.block.program, feed, [out], fs.Scope())[0]


def probabilities(*dims: int) -> np.ndarray:
    x = np.exp(RNG.standard_normal(dims))
    return (x / x.sum(-1, keepdims=True)).astype("float32")


def test_cross_entropy_takes_class_numbers() -> None:
    p = layer.data("p", ["batch", 10])
    loss = layer.cross_entropy(p, layer.data("l", ["batch", 1], "int64"))
    assert loss.shape == [UNK, 1] and loss.dims == [-1, 1] and not list(fs.default_main_program().guards)
    x, y = probabilities(4, 10), RNG.randint(0, 10, (4, 1))
    np.testing.assert_allclose(value(loss, {"p": x, "l": y}), -np.log(np.take_along_axis(x, y, 1)), rtol=1e-5)


def test_cross_entropy_takes_a_distribution() -> None:
    p, label = layer.data("p", ["batch", 10]), layer.data("l", dims=10)
    loss = layer.cross_entropy(p, label)
    assert loss.shape == [UNK, 1]
    x, y = probabilities(4, 10), probabilities(4, 10)
    np.testing.assert_allclose(value(loss, {"p": x, "l": y}), -(y * np.log(x)).sum(1, keepdims=True), rtol=1e-5)


def test_a_label_of_other_classes_is_refused_with_both_lines() -> None:
    x = layer.data("images", input_size=64)
    y = layer.fc(x, output_size=100, activation=layer.softmax)
    label = layer.data("label", dims=10)
    with pytest.raises(ShapeError) as caught:
        layer.cross_entropy(y, label)
    words = str(caught.value)
    assert "must have as many classes as X" in words
    assert "100 from" in words and "10 from" in words and "label" in words
    assert words.count("test_losses.py") >= 3, words  # the fc or its weight, the label, and the loss


def test_a_label_of_another_minibatch_is_refused_with_both_lines() -> None:
    y = layer.data("p", [8, 10])
    label = layer.data("l", [6, 1], "int64")
    with pytest.raises(ShapeError, match="one minibatch") as caught:
        layer.cross_entropy(y, label)
    words = str(caught.value)
    assert "8 from" in words and "6 from" in words and words.count("test_losses.py") == 3


def test_an_open_class_axis_is_a_guard() -> None:
    loss = layer.cross_entropy(layer.data("p", ["batch", 10]), layer.data("l", ["batch", "columns"], "int64"))
    assert [g.condition.requirement for g in fs.default_main_program().guards] == [
        "a Label of class numbers must have 1 at the class axis; one-hot rows are a distribution, of floats, with soft_label=True"
    ]
    with pytest.raises(GuardError, match="1 at the class axis"):
        value(loss, {"p": probabilities(4, 10), "l": np.zeros((4, 2), "int64")})


def test_a_probability_of_zero_counts_as_paddlepaddle_counts_it() -> None:
    loss = layer.cross_entropy(layer.data("p", ["batch", 2]), layer.data("l", ["batch", 1], "int64"))
    assert value(loss, {"p": np.array([[0, 1]], "float32"), "l": np.array([[0]])}).item() == np.float32(1e20)
    with fs.program_guard(fs.Program()):
        loss = layer.cross_entropy(layer.data("p", ["batch", 2]), layer.data("l", ["batch", 2]))
        assert value(loss, {"p": np.array([[0, 1]], "float32"), "l": np.array([[0, 1]], "float32")}).item() == 0


@pytest.mark.parametrize("kind", ["cross_entropy", "cross_entropy2", "softmax_with_cross_entropy"])
def test_a_class_number_that_is_none_is_refused_at_run_time(kind: str) -> None:
    slot = "Logits" if kind.startswith("softmax") else "X"
    p, label = layer.data("p", ["batch", 4]), layer.data("l", ["batch", 1], "int64")
    out = fs.default_main_program().global_block.apply(kind, {slot: p, "Label": label}, {"ignore_index": 255})
    loss = out if isinstance(out, fs.Variable) else next(v for v in out if v.op is not None and v.name == v.op.output("Loss" if slot == "Logits" else "Y"))
    x = probabilities(3, 4)
    seen = value(loss, {"p": x, "l": np.array([[0], [255], [3]])})
    assert seen[1] == 0 and (seen[[0, 2]] > 0).all()
    for bad in (4, -1, -100, 2**40):
        with pytest.raises(ExecutionError, match=r"a class number must be in \[0, 4\)"):
            value(loss, {"p": x, "l": np.array([[0], [bad], [3]])})


def test_squared_errors() -> None:
    x, y = layer.data("x", ["batch", 3]), layer.data("y", ["batch", 3])
    cost, loss = layer.square_error_cost(x, y), layer.mse_loss(x, y)
    assert cost.shape == [UNK, 3] and loss.shape == []
    assert cost.name == "square_error_cost_0.tmp_1"
    a, b = RNG.standard_normal((2, 5, 3)).astype("float32")
    np.testing.assert_allclose(value(cost, {"x": a, "y": b}), (a - b) ** 2, rtol=1e-5)
    np.testing.assert_allclose(value(loss, {"x": a, "y": b}), ((a - b) ** 2).mean(), rtol=1e-5)


def test_elementwise_losses_agree_with_torch() -> None:
    functional: Any = torch.nn.functional
    of = torch.from_numpy
    x, y = layer.data("x", ["batch", 3]), layer.data("y", ["batch", 3])
    a, b = RNG.standard_normal((5, 3)).astype("float32"), RNG.uniform(0.1, 0.9, (5, 3)).astype("float32")
    p = 1 / (1 + np.exp(-a))
    pairs = [
        (layer.huber_loss(x, y, 0.4), a, functional.huber_loss(of(a), of(b), reduction="none", delta=0.4)),
        (layer.sigmoid_cross_entropy_with_logits(x, y), a, functional.binary_cross_entropy_with_logits(of(a), of(b), reduction="none")),
        (layer.bce_loss(x, y), p, functional.binary_cross_entropy(of(p), of(b), reduction="none")),
        (layer.log_loss(x, y, 1e-4), p, -of(b * np.log(p + 1e-4) + (1 - b) * np.log(1 - p + 1e-4))),
        (layer.kldiv_loss(x, y, "batchmean"), a, functional.kl_div(of(a), of(b), reduction="batchmean")),
        (layer.kldiv_loss(x, y), a, functional.kl_div(of(a), of(b), reduction="none").mean()),
    ]  # fmt: skip
    for out, given, want in pairs:
        np.testing.assert_allclose(value(out, {"x": given, "y": b}), want.numpy(), rtol=1e-4, atol=1e-6, err_msg=out.name)


def test_normalised_sigmoid_cross_entropy_ignores() -> None:
    x, y = layer.data("x", [4]), layer.data("y", [4])
    out = layer.sigmoid_cross_entropy_with_logits(x, y, ignore_index=-1, normalize=True)
    a = np.array([0.5, -1.0, 2.0, 3.0], "float32")
    seen = value(out, {"x": a, "y": np.array([1, -1, 0, -1], "float32")})
    np.testing.assert_allclose(seen, [np.log1p(np.exp(-0.5)) / 2, 0, np.log1p(np.exp(2.0)) / 2, 0], rtol=1e-5)


def test_losses_refuse_labels_that_do_not_fit() -> None:
    x, y, ids = layer.data("x", ["batch", 3]), layer.data("y", ["batch", 4]), layer.data("ids", ["batch", 3], "int64")
    for loss in (layer.huber_loss, layer.sigmoid_cross_entropy_with_logits, layer.bce_loss, layer.log_loss, layer.kldiv_loss, layer.mse_loss):
        with pytest.raises(ShapeError, match=r"test_losses\.py"):
            loss(x, y)
        with pytest.raises(TypeMismatchError):
            loss(x, ids)


@pytest.mark.parametrize("k", [1, 2])
def test_accuracy(k: int) -> None:
    scores, label = layer.data("s", ["batch", 4]), layer.data("l", ["batch", 1], "int64")
    out = layer.accuracy(scores, label, k)
    assert out.shape == [] and out.dtype is fs.FP32
    s = np.array([[4, 3, 2, 1], [1, 2, 4, 3], [1, 2, 3, 4], [4, 1, 2, 3]], "float32")
    assert value(out, {"s": s, "l": np.array([[0], [3], [0], [1]])}).item() == {1: 0.25, 2: 0.5}[k]
    with pytest.raises(ShapeError, match="minibatch"):
        layer.accuracy(layer.data("t", [5, 4]), layer.data("m", [6, 1], "int64"))
