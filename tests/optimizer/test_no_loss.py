"""Who minimises what is no loss is warned at that line; who minimises a loss, or what may be one, is not."""

from __future__ import annotations

import warnings
from collections.abc import Callable

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

Described = Callable[[fs.Variable], fs.Variable]
LINEAR = "is minimised and is no loss: it is a linear function of the parameter"


@pytest.mark.parametrize(
    ("describe", "words"),
    [
        (lambda x: layer.mean(layer.fc(x, 3)), f"{LINEAR} fc_0.b_0, and falls without end; compare fc_0.tmp_1 with labels"),
        (lambda x: layer.mean(layer.fc(x, 3, bias=False)), f"{LINEAR} fc_0.w_0"),
        (lambda x: layer.reduce_sum(layer.reshape(layer.fc(layer.fc(x, 3, "relu"), 2), [-1])) * 0.5, f"{LINEAR} fc_1.b_0"),
        (lambda x: -layer.mean(layer.fc(x, 3)), f"{LINEAR} fc_0.b_0"),
        (lambda x: layer.mean(layer.conv2d(layer.reshape(x, [-1, 1, 2, 2]), 3, 1, bias=False)), f"{LINEAR} conv2d_0.w_0"),
        (lambda x: layer.mean(layer.softmax(layer.fc(x, 3))), "softmax_0.tmp_0 has shares that sum to 1"),
    ],
)
def test_what_is_no_loss(describe: Described, words: str) -> None:
    cost = describe(layer.data("x", 4))
    with pytest.warns(fs.ForeshapeWarning) as seen:
        fs.optimizer.SGD(0.1).minimize(cost)
    assert [words in str(w.message) for w in seen] == [True]
    assert seen[0].filename == __file__


@pytest.mark.parametrize(
    "describe",
    [
        lambda x: layer.mean(layer.square(layer.fc(x, 3))),
        lambda x: layer.mean(layer.softmax_with_cross_entropy(layer.fc(x, 3), layer.data("y", 1, dtype="int64"))),
        lambda x: layer.mean(layer.cross_entropy(layer.softmax(layer.fc(x, 3)), layer.data("y", 1, dtype="int64"))),
        lambda x: layer.mse_loss(layer.fc(x, 1), layer.data("y", 1)),
        lambda x: layer.mean(layer.fc(x, 1)) - layer.mean(layer.fc(layer.data("y", 4), 1)),  # a critic
        lambda x: layer.mean(layer.abs(layer.fc(x, 3) - x[:, :3])),
        lambda x: layer.mean(layer.fc(x, 3, "relu")),
        lambda x: layer.mean(layer.softmax(layer.fc(x, 3)) * x[:, :3]),
        lambda x: layer.mean(layer.layer_norm(layer.fc(x, 3))),
        lambda x: layer.mean(layer.matmul(layer.fc(x, 3), layer.fc(x, 3), transpose_y=True)),
        lambda x: layer.create_parameter([1], "fp32") ** 2.0,
    ],
)
def test_what_may_be_a_loss(describe: Described) -> None:
    cost = describe(layer.data("x", 4))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.optimizer.SGD(0.1).minimize(cost)


def test_what_is_trained_through_fixed_scores_may_be_one() -> None:
    made = layer.fc(layer.data("x", 4), 4, "tanh", weight="made")
    score = layer.mean(layer.fc(made, 1, weight="critic", bias=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        fs.optimizer.SGD(0.1).minimize(-score, parameters=["made"])
        fs.append_backward(score)  # a gradient is no training


def test_a_training_of_scores_is_warned_of_at_its_line() -> None:
    scores = layer.fc(layer.data("x", 4), 3)
    with pytest.warns(fs.ForeshapeWarning, match=LINEAR) as seen:
        fs.train(scores, {"x": np.ones((8, 4), "float32")}, progress=False)
    assert [w.filename for w in seen if LINEAR in str(w.message)] == [__file__]
