"""Digits, and a small convolutional network trained on them."""

from __future__ import annotations

from functools import cache
from typing import Any, NamedTuple

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer


class Digits(NamedTuple):
    model: fs.InferenceModel
    images: Any
    labels: Any
    test: slice
    train: slice

    def accuracy(self, model: fs.InferenceModel) -> float:
        return float((model.run(self.images[self.test])[0].argmax(1) == self.labels[self.test, 0]).mean())


@cache
def trained_digits() -> Digits:
    """Return them, made once."""
    load_digits = pytest.importorskip("sklearn.datasets").load_digits
    found = load_digits()
    order = np.random.RandomState(0).permutation(len(found.images))
    images, labels = (found.images[order, None] / 16).astype("float32"), found.target[order, None]
    train, test = slice(0, 1437), slice(1437, None)
    with fs.program() as program:
        x = layer.data("image", shape=["batch", 1, 8, 8])
        y = layer.data("label", shape=["batch", 1], dtype="int64")
        h = layer.conv2d(x, 16, 3, padding=1, activation="relu")
        h = layer.pool2d(h, 2, "max", stride=2)
        side = layer.batch_norm(layer.conv2d(h, 16, 1), activation="relu")
        h = layer.relu(layer.conv2d(h, 16, 3, padding=1) + side)
        scores = layer.fc(layer.fc(h, 32, "relu"), 10)
        loss = layer.mean(layer.softmax_with_cross_entropy(scores, y))
        scope = fs.Scope()
        given = {"image": images[train], "label": labels[train]}
        fs.train(loss, given, optimizer=fs.optimizer.Adam(0.005), epochs=4, progress=False, scope=scope, seed=0)
    tested = fs.passes.prune(fs.passes.for_test(program), ["image"], [scores.name])
    model = fs.InferenceModel.of(tested, ["image"], [tested.global_block.var(scores.name)], scope)
    return Digits(model, images, labels, test, train)
