"""The mistakes that a new user makes with data are told with the code to write."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

X, CLASSES = np.ones((6, 4), "float32"), np.array([[0], [1], [2], [0], [1], [2]])


def cost() -> fs.Variable:
    return layer.mean(layer.softmax_with_cross_entropy(layer.fc(layer.data("x", 4), 3), layer.data("label", 1, dtype="int64")))


def train(**data: Any) -> Any:
    return fs.train(cost(), {"x": X, "label": CLASSES} | data, optimizer=fs.optimizer.SGD(0.1), progress=False)


def image(given: Any) -> Any:
    return fs.predict(layer.data("image", shape=["batch", 3, 8, 8]), {"image": given})


def words(given: Any) -> Any:
    return fs.Executor().run(feed={"words": given}, fetch=[layer.sequence_pool(layer.data("words", shape=["n", 1], lod_level=1), "sum")])


CASES: dict[str, tuple[Callable[[], Any], str]] = {
    "float labels": (lambda: train(label=CLASSES.astype("float32")), r"label must be int64; fed is fp32: convert it with .astype\('int64'\)"),
    "fractions": (lambda: train(label=CLASSES + 0.5), "fed is fp64: 0.5 is no whole number"),
    "bool labels": (lambda: train(label=CLASSES > 0), r"fed is bool: convert it with .astype\('int64'\)"),
    "one-hot labels": (lambda: train(label=np.eye(3, dtype="int64")[CLASSES[:, 0]]), r"if these are one-hot rows, the class numbers are .argmax\(axis=-1\)"),
    "one-hot floats": (lambda: train(label=np.eye(3, dtype="float32")[CLASSES[:, 0]]), "fed is fp32: if these are one-hot rows"),
    "a name of no input": (lambda: fs.train(cost(), {"x": X, "lable": CLASSES}, progress=False), "fed are: x, lable: did you mean 'label' by 'lable'?"),
    "a name of a run": (lambda: fs.Executor().run(feed={"x": X, "lable": CLASSES}, fetch=[cost()]), "did you mean 'label' by 'lable'?"),
    "variables as names": (lambda: fs.train(cost(), {fs.default_main_program().var("x"): X}, progress=False), "the keys of a feed are names, as 'x'"),  # type: ignore[dict-item]
    "channels last": (lambda: image(np.zeros((2, 8, 8, 3), "float32")), r"its channels are last: .transpose\(0, 3, 1, 2\) of the array"),
    "no channels": (
        lambda: fs.predict(layer.data("grey", shape=["batch", 1, 8, 8]), {"grey": np.zeros((2, 8, 8), "float32")}), r"array\[:, None\] has the dim",
    ),
    "one example": (lambda: image(np.zeros((3, 8, 8), "float32")), r"a batch of this one example is \[1, 3, 8, 8\], in numpy array\[None\]"),
    "flat": (lambda: image(np.zeros((2, 192), "float32")), r"\.reshape\(-1, 3, 8, 8\) gives its rows these dims"),
    "texts": (lambda: words(["hello world", "a b"]), r"seen 'hello world': these are texts, which have no numbers yet: give each word its number"),
    "words": (lambda: words([["hello", "world"], ["a"]]), "these are texts, which have no numbers yet"),
    "one text": (lambda: words("hello"), "fed are texts, which have no numbers yet"),
    "texts of numpy": (lambda: words(np.array(["hello world", "a b"])), "fed are texts, which have no numbers yet"),
    "rows and lengths": (lambda: words((np.ones((5, 1), "float32"), np.array([2, 3]))), r"their lengths: feed fs.LoDTensor\(data, \[\[2, 3\]\]\)"),
    "offsets": (lambda: fs.LoDTensor(X, [[0, 2, 6]]), r"sum to 8, and there are 6 rows: these are offsets, of LoDTensor.from_offsets\(data, \[\[0, 2, 6\]\]\)"),
    "ends": (lambda: fs.LoDTensor(X, [[2, 6]]), r"these are offsets, of LoDTensor.from_offsets\(data, \[\[0, 2, 6\]\]\)"),
    "lengths as offsets": (lambda: fs.LoDTensor.from_offsets(X, [[2, 4]]), r"begin with 2: lengths, as these may be, are for LoDTensor\(data, lengths\)"),
    "one level": (lambda: fs.LoDTensor(X, [2, 4]), r"as \[\[3, 1, 2\]\]: a single level is \[\[2, 4\]\]"),
    "an optimizer's name": (lambda: fs.train(cost(), {}, optimizer="adma"), r"did you mean fs.optimizer.Adam\(0.001\)\?"),  # type: ignore[arg-type]
    "an optimizer's class": (lambda: fs.train(cost(), {}, optimizer=fs.optimizer.SGD), r"did you mean fs.optimizer.SGD\(0.001\)\?"),  # type: ignore[arg-type]
    "a metric's name": (lambda: fs.train(cost(), {}, metrics={"a": "accuracy"}), r"did you mean fs.metrics.Accuracy\(scores, label\)\?"),  # type: ignore[dict-item]
    "described as floats": (
        lambda: layer.softmax_with_cross_entropy(layer.data("s", 3), layer.data("l", 1)), r"layer.cast\(label, 'int64'\) makes them of it.*soft_label=True",
    ),
    "described as one-hot": (
        lambda: layer.softmax_with_cross_entropy(layer.data("s", 3), layer.data("l", 3, dtype="int64")), "one-hot rows are a distribution, of floats",
    ),
    "another element type": (lambda: layer.mse_loss(layer.data("s", 1), layer.data("l", 1, dtype="int64")), r"layer.cast\(x, 'fp32'\) converts it"),
    "rows as images": (lambda: layer.conv2d(layer.data("f", 784), 3, 3), r"layer.reshape\(x, \[0, channels, height, width\]\)"),
    "a layer of an array": (lambda: layer.relu(X), r"seen ndarray float32 \[6, 4\]; a layer describes a network: x = layer.data\('x', \['batch', 4\]\)"),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_a_mistake_is_told_with_what_to_write(name: str) -> None:
    act, says = CASES[name]
    with pytest.raises(fs.ForeshapeError, match=says):
        act()


def test_arrays_in_order_are_told_as_one_dict() -> None:
    y = cost()
    for act in (lambda: fs.train(y, X, CLASSES), lambda: fs.evaluate(y, X, CLASSES), lambda: fs.predict(y, X, CLASSES)):
        with pytest.raises(TypeError, match=r"data are one dict, input -> array, and all else is named: \w+\(\w+, \{'x': ..., 'label': ...\}, \w+=...\)"):
            act()  # type: ignore[misc]


def test_images_with_their_channels_last_are_told_where_they_are_described() -> None:
    with pytest.warns(fs.ForeshapeWarning, match=r"conv2d\(last\): .* looks like images with their channels last.* data_format='NHWC'"):
        layer.conv2d(layer.data("last", shape=["batch", 32, 32, 3]), 8, 3)
    layer.conv2d(layer.data("first", shape=["batch", 3, 32, 32]), 8, 3)
    layer.conv2d(layer.data("said", shape=["batch", 32, 32, 3]), 8, 3, data_format="NHWC")
