"""Steps as CUDA graphs on a pretended device: replays compute what the kernels compute, and a refused capture names the op."""

from __future__ import annotations

import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pretended_device import pretended

import foreshape as fs
from foreshape import layer

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
import with_foreshape
import workloads


def graphs_of(executor: fs.Executor) -> Any:
    assert executor.captured is not None
    return executor.captured


@pytest.mark.parametrize("name", ["W1", "W8", *(pytest.param(n, marks=pytest.mark.long) for n in ("W2", "W3", "W5", "W6"))])
def test_a_workload_trains_by_replays(name: str) -> None:
    workload = workloads.load(name, 4096)
    count = 5 if name != "W8" else 2 * len(workload.data) + 3  # a graph for each size
    on_processor = with_foreshape.Training(workload)
    expected = [on_processor(i) for i in range(count)]
    with pretended() as device:
        training = with_foreshape.Training(workload, device.name)
        training.executor = fs.Executor(device.name, graphs=True)
        seen = [training(i) for i in range(count - 1)]
        device.reset()
        seen.append(training(count - 1))
        assert device.launches_by_name["graph"] == 1 and device.counts().launches < 8, device.launches_by_name
        assert not graphs_of(training.executor).refused
    np.testing.assert_allclose(seen, expected, rtol=2e-3)


def test_a_learning_rate_that_changes_is_not_replayed() -> None:
    x = layer.data("x", ["batch", 3])
    loss = layer.mean(layer.square(layer.fc(x, 1, weight="w", bias=False)))
    fs.optimizer.SGD(0.1).minimize(loss)
    main, startup = fs.default_main_program(), fs.default_startup_program()
    rate = next(n for n, v in main.global_block.vars.items() if "learning_rate" in n and v.persistable)
    feed = {"x": np.ones((2, 3), "float32")}

    def weights(executor: fs.Executor, scope: fs.Scope) -> list[Any]:
        executor.run(startup, scope=scope)
        scope.set("w", np.ones((3, 1), "float32"))
        out: list[Any] = []
        for step in range(12):
            if step % 4 == 3:
                scope.set(rate, np.float32(0.01 * step))
            executor.run(main, feed, [loss], scope)
            out.append(np.array(scope.get("w")))
        return out

    expected = weights(fs.Executor(), fs.Scope())
    with pretended() as device:
        seen = weights(fs.Executor(device.name, graphs=True), fs.Scope())
    np.testing.assert_allclose(seen, expected, rtol=1e-5)


def test_dropout_draws_anew_at_each_replay_and_a_wrong_number_is_told_at_its_own() -> None:
    ids = layer.data("ids", ["batch", 1], dtype="int64")
    y = layer.dropout(layer.embedding(ids, [8, 64]), 0.5)
    feed = {"ids": np.array([[1], [2]])}
    with pretended() as device:
        executor, scope = fs.Executor(device.name, seed=3, graphs=True), fs.Scope()
        executor.run(fs.default_startup_program(), scope=scope)
        main = fs.default_main_program()
        drawn = [np.asarray(executor.run(main, feed, [y], scope)[0]) == 0 for _ in range(5)]
        assert device.launches_by_name["graph"] == 4
        assert all((a != b).any() for a, b in pairwise(drawn))
        with pytest.raises(fs.errors.ExecutionError, match=r"must be in \[0, 8\)"):
            executor.run(main, {"ids": np.array([[1], [9]])}, [y], scope)
        executor.run(main, feed, [y], scope)


@pytest.mark.filterwarnings("ignore::foreshape.errors.ForeshapeWarning")
def test_a_refused_capture_names_the_op_and_the_step_runs_by_its_kernels() -> None:
    x = layer.data("x", ["batch", 3])
    picked = layer.reduce_sum(layer.masked_select(x, layer.greater_than(x, layer.fill_constant([1], "fp32", 0.0))))  # its size is on the device
    rows = layer.data("rows", ["rows", 3], lod_level=1)
    pooled = layer.sequence_pool(rows, "sum")
    main = fs.default_main_program()
    feed: dict[str, Any] = {"x": np.array([[1, -2, 3]], "float32"), "rows": fs.LoDTensor(np.ones((3, 3), "float32"), [[1, 2]])}
    with pretended() as device:
        executor = fs.Executor(device.name, graphs=True)
        for _ in range(3):
            (out,) = executor.run(main, {"x": feed["x"]}, [picked])
            assert float(out) == 4.0
            executor.run(main, {"rows": feed["rows"]}, [pooled])
        reasons = graphs_of(executor).refused
    assert len(reasons) == 2 and any(r.startswith("masked_select") and "not permitted" in r for r in reasons) and any("ragged" in r for r in reasons)


def test_graphs_are_of_a_gpu() -> None:
    with pytest.raises(fs.errors.ExecutionError, match="on a CUDA device"):
        fs.Executor(graphs=True)
