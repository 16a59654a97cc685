"""Updates on a pretended device: as often as it is waited for, and rows that come several times."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.pretended_device import pretended

import foreshape as fs
from foreshape import layer, optimizer


@pytest.mark.parametrize(("precision", "accumulate"), [("fp32", 1), ("fp16", 1), ("fp16", 3)])
@pytest.mark.parametrize("update", [lambda: optimizer.Adam(1e-3), lambda: optimizer.Momentum(0.1, 0.9)], ids=["Adam", "Momentum"])
def test_a_training_step_waits_once_and_leaves_out_what_the_processor_leaves_out(precision: str, accumulate: int, update: Callable[[], Any]) -> None:
    rng = np.random.default_rng(0)
    x, label = layer.data("x", ["batch", 20]), layer.data("label", ["batch", 1], dtype="int64")
    cost = layer.mean(layer.softmax_with_cross_entropy(layer.fc(layer.fc(x, 32, activation="relu"), 3), label))
    data = {"x": rng.normal(size=(64, 20)).astype("float32"), "label": rng.integers(0, 3, (64, 1))}
    data["x"][20] = 3000.0  # its gradients overflow in fp16, until the scale has fallen
    settings: Any = {"batch_size": 16, "precision": precision, "optimizer": update, "shuffle": False, "progress": False, "accumulate": accumulate}

    def losses(executor: fs.Executor) -> tuple[list[float], list[float]]:
        run = fs.train(cost, data, epochs=4, executor=executor, **(settings | {"optimizer": update()}), scope=fs.Scope())
        return run.losses, run.column("updates left out") if precision == "fp16" else []

    expected = losses(fs.Executor(seed=1))
    with pretended() as device:
        executor = fs.Executor(device.name, seed=1)
        seen = losses(executor)
        assert device.counts().syncs <= (1 if accumulate == 1 else 4) * 4 * 4 + 4 + 2  # of each step, of each epoch's learning rate, and of the first scale
    np.testing.assert_allclose(seen[0], expected[0], rtol=1e-3)
    assert seen[1] == expected[1] and (precision == "fp32" or any(expected[1]))


def test_a_row_that_comes_often_is_updated_once() -> None:
    rng = np.random.default_rng(2)
    ids = rng.integers(0, 50, (1000, 9))  # more than 4,096 rows, each many times

    def steps(executor: fs.Executor) -> list[Any]:
        main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
        with fs.program_guard(main, startup):
            words = layer.data("words", ["batch", 9], dtype="int64")
            cost = layer.mean(layer.tanh(layer.embedding(words, [50, 4], is_sparse=True, weight="table")))
            optimizer.Adam(0.1, lazy_mode=True).minimize(cost)
        fs.Executor(seed=1).run(startup, scope=scope)
        return [executor.run(main, {"words": ids[: 1000 - 300 * k]}, ["table"], scope)[0] for k in range(3)]

    expected = steps(fs.Executor())
    with pretended() as device:
        executor = fs.Executor(device.name)
        seen = steps(executor)
        assert not any("unique" in place for place in device.syncs_by_place)
    np.testing.assert_allclose(seen, expected, rtol=1e-5, atol=1e-6)
