"""What a user gives as it comes to hand: tuples for some of the inputs, one callback, truths of numpy, rates and metrics that are none."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer

X = np.random.RandomState(0).standard_normal((12, 4)).astype("float32")
Y = X.sum(1, keepdims=True)


def described(more: bool = False) -> tuple[fs.Variable, fs.Variable]:
    """A guess and its cost; with ``more`` in a program that has another input."""
    x, y = layer.data("x", ["batch", 4]), layer.data("y", ["batch", 1])
    if more:
        layer.fc(layer.data("z", ["batch", 3]), 2)
    guess = layer.fc(x, 1)
    return guess, layer.mean(layer.square(guess - y))


def test_a_tuple_may_be_for_what_the_cost_needs() -> None:
    _, cost = described(more=True)
    history = fs.train(cost, (X, Y), validation=(X, Y), progress=False)
    assert fs.evaluate(cost, (X, Y))[cost.name] == pytest.approx(history.epochs[-1]["validation loss"], rel=1e-5)
    fs.train(cost, [(X, Y)], progress=False)
    with pytest.raises(fs.FeedError, match=r"1 values? in order"):
        fs.train(cost, (X,), progress=False)


@pytest.mark.parametrize("which", ["data", "validation"])
def test_an_iterator_for_several_epochs_is_refused_before_anything_is_made(which: str) -> None:
    _, cost = described()
    given: dict[str, Any] = {"data": (X, Y), which: ((X, Y) for _ in range(3))}
    with pytest.raises(fs.FeedError, match=f"the {which}.* an iterator, which gives its batches once, and 2 epochs are asked for"):
        fs.train(cost, given.pop("data"), epochs=2, progress=False, **given)
    assert fs.default_scope().names() == []
    fs.train(cost, ((X, Y) for _ in range(3)), progress=False)


@pytest.mark.parametrize("truth", [True, np.bool_(True), np.array(True), torch.tensor(True)], ids=repr)
def test_a_function_ends_a_run_by_any_truth(truth: Any) -> None:
    _, cost = described()
    assert len(fs.train(cost, (X, Y), epochs=3, callbacks=[lambda epoch, row: truth], progress=False).epochs) == 1


@pytest.mark.parametrize("said", [None, False, np.bool_(False), 1, "yes", np.array([True, True])], ids=repr)
def test_and_goes_on_with_whatever_else_it_returns(said: Any) -> None:
    _, cost = described()
    assert len(fs.train(cost, (X, Y), epochs=2, callbacks=lambda epoch, row: said, progress=False).epochs) == 2


def test_callbacks_have_a_room_of_their_name() -> None:
    import foreshape.callbacks
    from foreshape.callbacks import EarlyStopping

    assert foreshape.callbacks is fs.callbacks and EarlyStopping is fs.callbacks.EarlyStopping


@pytest.mark.parametrize("rate", [None, -1.0, float("nan"), float("inf"), "fast", [0.1]], ids=repr)
def test_what_can_be_no_learning_rate(rate: Any) -> None:
    with pytest.raises(fs.SchemaError, match="a learning rate is a number of at least 0, a variable or a schedule"):
        fs.optimizer.SGD(rate)


def test_what_can_be_no_clip() -> None:
    with pytest.raises(fs.SchemaError, match=r"clip= is an object, such as fs.optimizer.ClipByGlobalNorm\(1.0\); seen 1.0"):
        fs.optimizer.Adam(clip=1.0)


def test_what_can_be_no_variable() -> None:
    guess, cost = described()
    with pytest.raises(fs.SchemaError, match=r"the metric 'm' is a variable, .*; seen 5"):
        fs.train(cost, (X, Y), metrics={"m": 5})  # type: ignore[dict-item]
    for wrong in (3, [guess, 3], {"a": None}):
        with pytest.raises(fs.SchemaError, match="what is computed is given as variables; seen"):
            fs.predict(wrong, X)  # type: ignore[call-overload]


def test_a_figure_of_ragged_rows_is_their_mean_at_every_batch_size() -> None:
    words = layer.data("words", ["rows", 2], lod_level=1)
    loss = layer.square(layer.fc(words, 1))
    lengths = [3, 1, 4, 1, 5, 9, 2]
    data = {"words": fs.LoDTensor(np.random.RandomState(1).standard_normal((sum(lengths), 2)).astype("float32"), [lengths])}
    fs.Executor().run(fs.default_startup_program())
    want = fs.predict(loss, data).data.mean()
    for batch_size in (1, 2, 3, 100):
        assert fs.evaluate(loss, data, batch_size=batch_size)[loss.name] == pytest.approx(want, rel=1e-5)


class Transformed:
    """As a data set of Hugging Face with a function that makes the rows when they are asked for."""

    format = {"type": "custom"}
    column_names = ["raw", "label"]

    def __len__(self) -> int:
        return len(X)

    def with_format(self, kind: str) -> Any:
        raise AssertionError("its own format is kept")

    def select_columns(self, names: list[str]) -> Any:
        raise AssertionError("the function needs all columns")

    def __getitem__(self, rows: Any) -> dict[str, Any]:
        return {"x": X[rows], "y": Y[rows]}


def test_a_data_set_whose_rows_a_function_makes() -> None:
    guess, cost = described()
    fs.train(cost, Transformed(), batch_size=4, progress=False)
    assert fs.predict(guess, Transformed(), batch_size=5).shape == (12, 1)
    assert fs.Executor().run(feed=Transformed(), fetch=[guess])[0].shape == (12, 1)


@pytest.mark.parametrize("describe", [
    lambda: layer.conv1d(layer.data("x", ["batch", 3, 9]), 2, 3, dilation=2, padding="SAME"),
    lambda: layer.conv2d(layer.data("x", ["batch", 3, 9, 9]), 2, 3, dilation=2, padding="same"),
    lambda: layer.conv3d(layer.data("x", ["batch", 3, 9, 9, 9]), 2, 3, dilation=[1, 2, 1], padding="SAME"),
])  # fmt: skip
def test_same_with_a_dilation_is_refused(describe: Any) -> None:
    with pytest.raises(fs.SchemaError, match="padding='SAME' has no dilation, as PaddlePaddle computes it"):
        describe()


def test_an_input_can_be_asked_for_itself() -> None:
    x = layer.data("x", ["batch", 3])
    given = np.arange(12, dtype="float32").reshape(4, 3)
    assert fs.predict(x, {"x": given}, batch_size=3, progress=False).tolist() == given.tolist()
    cost = layer.mean(layer.fc(x, 1))
    history = fs.train(cost, {"x": given}, batch_size=2, metrics={"x": x}, progress=False)
    assert history.column("x") == [pytest.approx(given.mean())]
