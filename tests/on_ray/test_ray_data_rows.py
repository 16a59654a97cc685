"""Training on sets of Ray Data, and what is wrong with them; the places of a run whose controller is lost."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from ray_cases import no_ranks_within, rank_processes
from support.waiting import until

import foreshape as fs
from foreshape import layer

pytestmark = pytest.mark.ray
ROWS = [{"x": np.full(4, i / 40, np.float32), "y": np.array([i % 4])} for i in range(40)]


def cost_of() -> fs.Variable:
    fs.reset()
    x, y = layer.data("x", input_size=4), layer.data("y", dims=1, data_type=fs.INT64)
    return layer.softmax_with_cross_entropy(layer.fc(x, 4), y)


def fails_on(label: int) -> Callable[[Any], Any]:
    def function(row: Any) -> Any:
        if row["y"][0] == label:
            raise ValueError("no such row")
        return row

    return function


def test_a_rank_less_leaves_a_processor_to_the_reading(address: str) -> None:
    import ray

    rows = ray.data.from_items(ROWS).map(lambda row: row)
    assert fs.train(cost_of(), rows, epochs=2, batch_size=8, on=fs.ray_cluster(), progress=False).steps == 10
    with pytest.raises(fs.ExecutionError, match=r"2 ranks leave no processor to the reading .* room for 1 beside it"):
        fs.train(cost_of(), rows, batch_size=8, on=fs.ray_cluster(2), progress=False)


def test_wrong_rows_are_told_in_a_line(address: str) -> None:
    import ray

    rows, place = ray.data.from_items(ROWS), fs.ray_cluster(1)
    with pytest.raises(fs.FeedError, match="a set of Ray Data has no rows"):
        fs.train(cost_of(), rows.limit(0), batch_size=8, on=place, progress=False)
    with pytest.raises(fs.ExecutionError, match="ValueError: no such row"):
        fs.train(cost_of(), rows.map(fails_on(3)), batch_size=8, on=place, progress=False)
    with pytest.raises(fs.FeedError, match="fewer rows than the 2 ranks"):
        fs.train(cost_of(), ray.data.from_items(ROWS[:1]).materialize(), batch_size=8, on=fs.ray_cluster(2), progress=False)


def test_a_killed_controller_keeps_no_place(address: str) -> None:
    import ray

    arrays = {name: np.stack([row[name] for row in ROWS]) for name in ("x", "y")}

    def kill() -> None:
        until(lambda: len(rank_processes(b"ray::Rank.train")) == 2)
        os.kill(rank_processes(b"ray::Controller.run")[0], signal.SIGKILL)

    threading.Thread(target=kill, daemon=True).start()
    with pytest.raises(fs.ExecutionError, match="the controller of the run is lost"):
        fs.train(cost_of(), arrays, epochs=1_000_000, batch_size=8, on=fs.ray_cluster(2), progress=False)
    assert no_ranks_within(20)
    until(lambda: ray.available_resources().get("CPU") == 2)
