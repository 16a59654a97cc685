"""A network for batches of one size, and data that leave another: said before the first step, with `drop_last` and what else helps."""

from __future__ import annotations

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

X, Y = np.ones((10, 3), "float32"), np.zeros((10, 1), "float32")


def network(size: int = 4) -> tuple[fs.Variable, fs.Variable]:
    x, y = layer.data("x", shape=[size, 3]), layer.data("y", shape=[size, 1])
    guess = layer.fc(x, 1)
    return guess, layer.mse_loss(guess, y)


def steps(**how: object) -> int:
    _, cost = network()
    return fs.train(cost, {"x": X, "y": Y}, optimizer=fs.optimizer.SGD(0.01), progress=False, **how).steps  # type: ignore[arg-type]


def test_a_last_batch_of_another_size_is_told_before_the_first_step() -> None:
    begun: list[int] = []

    class Began(fs.callbacks.Callback):
        def on_train_begin(self, run: fs.callbacks.Run) -> None:
            begun.append(1)

    words = (
        r"^x is f32\[4, 3\], described at test_batch_sizes.py:\d+, for batches of exactly 4, and 10 examples in batches of 4 leave a last batch of 2: "
        r"drop_last=True leaves that out, a batch_size that divides 10 has none, or layer.data\('x', \['batch', 3\]\) takes any$"
    )
    with pytest.raises(fs.FeedError, match=words) as raised:
        steps(batch_size=4, callbacks=[Began()])
    assert begun == [] and (raised.value.slot, raised.value.required, raised.value.seen) == ("x", "4", "2")


def test_a_batch_size_that_is_none_of_the_networks_is_told_with_its_own() -> None:
    with pytest.raises(fs.FeedError, match=r"batch_size is 5: batch_size=4 fits, or layer.data"):
        steps(batch_size=5)


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_last_batch_is_dropped(shuffle: bool) -> None:
    assert steps(batch_size=4, drop_last=True, epochs=3, shuffle=shuffle) == 6


def test_nothing_is_dropped_from_batches_of_one_size_and_of_networks_that_take_any() -> None:
    x = layer.data("any", shape=["batch", 3])
    cost = layer.mean(layer.square(layer.fc(x, 1) - 1.0))
    for how, count in (({}, 3), ({"drop_last": True}, 2), ({"drop_last": True, "batch_size": 5}, 2)):
        history = fs.train(cost, {"any": X}, optimizer=fs.optimizer.SGD(0.01), progress=False, **{"batch_size": 4, **how})  # type: ignore[arg-type]
        assert history.steps == count


def test_data_in_batches_and_too_few_examples_cannot_drop_one() -> None:
    _, cost = network()
    with pytest.raises(fs.FeedError, match="drop_last leaves none of the 10 examples: a batch_size of 32 is larger"):
        fs.train(cost, {"x": X, "y": Y}, drop_last=True, progress=False)
    with pytest.raises(fs.FeedError, match="these data come in batches, and whoever makes them leaves the last one out"):
        fs.train(cost, [{"x": X[:4], "y": Y[:4]}], drop_last=True, progress=False)


def test_predict_and_evaluate_lose_no_rows_but_say_how_to_keep_them() -> None:
    guess, cost = network()
    fs.Executor().run(fs.default_startup_program())
    for act in (lambda: fs.predict(guess, {"x": X}, batch_size=4), lambda: fs.evaluate(cost, {"x": X, "y": Y}, batch_size=4)):
        with pytest.raises(fs.FeedError, match=r"leave a last batch of 2: examples appended to fill it, whose results are dropped again, keep all rows"):
            act()
    assert fs.predict(guess, {"x": X[:8]}, batch_size=4).shape == (8, 1)


def test_validation_data_are_asked_too() -> None:
    with pytest.raises(fs.FeedError, match="10 examples in batches of 4 leave a last batch of 2: the validation data must fill it"):
        steps(batch_size=4, drop_last=True, validation={"x": X, "y": Y})


def test_dropping_is_a_fact_of_the_data_of_a_resumed_run(tmp_path: object) -> None:
    steps(batch_size=4, drop_last=True, epochs=1, checkpoint=str(tmp_path))
    fs.reset()
    x = layer.data("x", shape=["batch", 3])
    y = layer.data("y", shape=["batch", 1])
    cost = layer.mse_loss(layer.fc(x, 1), y)
    with pytest.raises(fs.ExecutionError):
        fs.train(cost, {"x": X, "y": Y}, optimizer=fs.optimizer.SGD(0.01), batch_size=4, epochs=2, checkpoint=str(tmp_path), progress=False)
