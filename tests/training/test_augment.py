"""`fs.train(augment=...)`: each batch through a function, with random numbers that a resumed run draws again."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

RNG = np.random.RandomState(0)
X, Y = RNG.rand(40, 3).astype("float32"), RNG.rand(40, 1).astype("float32")


def trained(**more: Any) -> list[float]:
    with fs.program():
        x, y = layer.data("x", 3), layer.data("y", 1)
        cost = layer.mean(layer.square(layer.fc(x, 1) - y))
        options = {"optimizer": fs.optimizer.SGD(0.1), "epochs": 3, "batch_size": 8, "progress": False, "scope": fs.Scope()}
        return fs.train(cost, **(options | {"data": {"x": X, "y": Y}} | more)).losses


def noisy(batch: dict[str, Any], random: np.random.Generator) -> dict[str, Any]:
    batch["x"] += random.normal(0, 0.1, batch["x"].shape).astype("float32")
    return batch


def test_batches_go_through_the_function_and_the_data_stay_as_they_are() -> None:
    before = X.copy()
    assert trained(augment=noisy) == trained(augment=noisy) != trained()
    assert trained(augment=noisy, shuffle=False, validation={"x": X, "y": Y}) != trained(augment=noisy)
    assert np.array_equal(X, before)
    assert trained(augment=lambda batch, random: batch) == trained()
    drawn: list[float] = []
    trained(augment=lambda batch, random: drawn.append(random.random()) or batch)
    assert len(set(drawn)) == 15  # others in each batch and epoch
    seen: list[str] = []
    trained(data=[(X, Y)], augment=lambda batch, random: seen.append(",".join(batch)) or batch, epochs=1)
    assert seen == ["x,y"]


def test_a_killed_run_draws_the_same(tmp_path: Path) -> None:
    class Killed(Exception):
        pass

    class Kill(fs.callbacks.Callback):
        def on_batch_end(self, run: Any) -> None:
            if run.history.steps == 7:
                raise Killed

    folder = fs.Checkpoint(tmp_path / "run", every=3)
    with pytest.raises(Killed):
        trained(augment=noisy, checkpoint=folder, callbacks=[Kill()])
    with pytest.raises(fs.ExecutionError, match="augment"):
        trained(checkpoint=folder)
    assert trained(augment=noisy, checkpoint=folder) == trained(augment=noisy)


@pytest.mark.parametrize(
    ("function", "words"),
    [
        (lambda batch: batch, "a function of a batch .* and a numpy Generator; seen"),
        (lambda batch, random: None, "a dict of the inputs that it takes, x, y; it gave NoneType"),
        (lambda batch, random: {"x": batch["x"]}, "it gave a dict of x"),
    ],
)  # fmt: skip
def test_what_it_gives_is_looked_at(function: Any, words: str) -> None:
    with pytest.raises(fs.FeedError, match=words):
        trained(augment=function)
