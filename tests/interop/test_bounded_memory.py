"""A predictor with a bound of memory cuts what is too large, refuses in words what cannot be cut, and its process keeps to the bound."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import bytes_of
from foreshape.interop.bounded_model import BoundedModel
from foreshape.interop.model import InferenceModel
from foreshape.machine.kernels import kept_kernels
from foreshape.machine.process import memory_budget
from foreshape.machine.process.memory_budget import MemoryBudget

BOUNDED = Path(__file__).parents[1] / "support" / "bounded.py"
MIB = 1 << 20
linux = pytest.mark.skipif(
    sys.platform != "linux" or platform.libc_ver()[0] != "glibc" or not os.access("/proc/self/clear_refs", os.W_OK),
    reason="a process's peak is measured anew on Linux with glibc, where /proc/self/clear_refs may be written",
)


@pytest.mark.long
@linux
@pytest.mark.parametrize(
    "arguments",
    [
        ["texts", "80MiB", "40"],
        ["images", "80MiB", "40"],
        *(pytest.param([name, memory, "3000"], marks=pytest.mark.long) for name, memory in (("texts", "80MiB"), ("images", "128MiB"))),
    ],
    ids=" ".join,
)
def test_the_process_keeps_to_the_bound(arguments: list[str]) -> None:
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FORESHAPE_KEEP_PAGES": "1"}
    done = subprocess.run([sys.executable, str(BOUNDED), *arguments], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    took = json.loads(done.stdout)
    assert 0.4 * bytes_of(arguments[1]) < took["taken"] <= bytes_of(arguments[1]), took  # the measure sees what is taken
    assert took["difference"] < 1e-5 and took["refused"] == 0, took


@pytest.fixture
def parts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The rows or the sequences of each run of a bounded model."""
    out: list[int] = []
    run = InferenceModel.run

    def counted(self: InferenceModel, feed: Any, *more: Any) -> Any:
        results = run(self, feed, *more)
        out.append(len(next(iter(feed.values())) if isinstance(feed, dict) else feed))
        return results

    monkeypatch.setattr(InferenceModel, "run", counted)
    return out


def save(path: Path, network: Callable[[], tuple[list[Any], list[Any]]]) -> str:
    with fs.program() as program:
        inputs, results = network()
    fs.Executor(seed=1).run(program.startup)
    fs.save_inference_model(str(path / "network"), inputs, results)
    return str(path / "network")


def images() -> tuple[list[Any], list[Any]]:
    x = layer.data("x", ["batch", 3, "height", "width"])
    return [x], [layer.reduce_mean(layer.conv2d(x, 16, 3, activation="relu"), [2, 3])]


def pairs() -> tuple[list[Any], list[Any]]:
    """Words with a weight for each, and a number for each text; a result for each text, and one for each word."""
    words, weights = layer.data("words", ["rows"], "int64", lod_level=1), layer.data("weights", ["rows", 1])
    bias = layer.data("bias", ["batch", 8])
    rows = layer.fc(layer.embedding(words, [50, 64]) * weights, 512, activation="relu")
    scores = layer.fc(rows, 8)
    return [words, weights, bias], [layer.sequence_pool(scores, "sum") + bias, scores]


def shares() -> tuple[list[Any], list[Any]]:
    x = layer.data("x", ["batch", 512])
    return [x], [layer.softmax(layer.fc(x, 512), axis=0)]


def bounded(path: str, room: int) -> fs.Predictor:
    """A predictor with so much room for each run beside what it holds."""
    predictor = fs.Predictor(path, memory="4 GiB", threads=1)
    model = predictor.runs
    assert isinstance(model, BoundedModel)
    budget = predictor._executor.budget
    assert budget is not None
    model.resize(budget.weights + budget.reserve + room)
    return predictor


def test_images_are_run_in_parts(tmp_path: Path, parts: list[int]) -> None:
    path = save(tmp_path, images)
    predictor, plain = bounded(path, 4 * MIB), fs.Predictor(path, threads=1)
    x = np.random.default_rng(0).standard_normal((37, 3, 40, 50), np.float32)
    parts.clear()
    found = predictor.run(x)
    assert sum(parts) == 37 and len(parts) > 1 and max(parts[:-1]) < 2 * min(parts[:-1])
    np.testing.assert_allclose(found[0], plain.run(x)[0], rtol=1e-5, atol=1e-6)
    assert list(found) == predictor.outputs
    assert predictor.plan().peak(batch=max(parts[:-1]), height=40, width=50) <= predictor.runs.limit  # type: ignore[union-attr]


@pytest.mark.usefixtures("on_blas")
def test_texts_are_cut_with_their_rows(tmp_path: Path, parts: list[int]) -> None:
    path = save(tmp_path, pairs)
    predictor, plain = bounded(path, 4 * MIB), fs.Predictor(path, threads=1)
    draw = np.random.default_rng(0)
    lengths = [*draw.integers(0, 200, 60).tolist(), 1400, 3]
    rows = sum(lengths)
    feed = {
        "words": fs.LoDTensor(draw.integers(0, 50, rows), [lengths]),
        "weights": draw.standard_normal((rows, 1), np.float32),
        "bias": draw.standard_normal((len(lengths), 8), np.float32),
    }
    parts.clear()
    found = predictor.run(feed)
    assert len(parts) > 2 and sum(parts) == 62
    usual = plain.run(feed)
    np.testing.assert_allclose(found[0], usual[0], rtol=1e-4, atol=1e-4)
    assert found[1].sequence_lengths == usual[1].sequence_lengths == [lengths]
    np.testing.assert_allclose(found[1].data, usual[1].data, rtol=1e-5, atol=1e-5)


def test_what_cannot_be_run_is_refused_before_anything_runs(tmp_path: Path, parts: list[int]) -> None:
    predictor = bounded(save(tmp_path, images), 4 * MIB)
    parts.clear()
    with pytest.raises(fs.MemoryPlanError) as error:
        predictor.run(np.ones((2, 3, 600, 700), np.float32))
    assert not parts
    words = str(error.value)
    for part in (
        "example 0 of 2 alone: this run needs ",
        " for batch = 1, height = 600, width = 700, and it may take ",
        'memory="',
        "the largest that fits is ",
    ):
        assert part in words
    with pytest.raises(fs.MemoryPlanError, match=r"this run needs .* for batch = 1, height = 600"):
        predictor.run(np.ones((1, 3, 600, 700), np.float32))
    predictor.run(np.ones((1, 3, 60, 70), np.float32))


def test_examples_that_change_one_another_are_not_parted(tmp_path: Path) -> None:
    predictor = bounded(save(tmp_path, shares), MIB)
    predictor.run(np.ones((16, 512), np.float32))
    with pytest.raises(fs.MemoryPlanError, match=r"for batch = 4,096(.|\n)*it is not run in parts: (.|\n)*softmax"):
        predictor.run(np.ones((4096, 512), np.float32))


def test_a_queue_joins_requests_up_to_the_bound(tmp_path: Path, parts: list[int]) -> None:
    path = save(tmp_path, images)
    predictor = fs.Predictor(path, memory="4 GiB", threads=1, batch_queue=64, wait=0.2)
    model = predictor.runs
    assert isinstance(model, BoundedModel)
    budget = predictor._executor.budget
    assert budget is not None
    model.resize(budget.weights + budget.reserve + 4 * MIB)
    assert predictor._queue is not None
    parts.clear()
    x = np.random.default_rng(0).standard_normal((40, 3, 40, 50), np.float32)
    answers = [predictor._queue.submit({"x": x[n : n + 1]}) for n in range(40)]
    found = np.concatenate([a.result(60)[0] for a in answers])
    assert 1 < len(parts) < 40
    np.testing.assert_allclose(found, fs.Predictor(path, threads=1).run(x)[0], rtol=1e-5, atol=1e-6)


def test_weights_that_do_not_fit_are_refused_at_the_opening(tmp_path: Path) -> None:
    path = save(tmp_path, images)
    with pytest.raises(fs.MemoryPlanError, match=r'this run needs .* and it may take .*memory="1.0 KiB"'):
        fs.Predictor(path, memory="1 KiB")
    for settings in ({"engine": "onnxruntime"}, {"device": "cuda"}):
        with pytest.raises(fs.SchemaError, match="memory is the bound of a network in Foreshape's engine on the processor"):
            fs.Predictor(path, memory="1 GiB", **settings)  # type: ignore[arg-type]


def test_a_limit_of_the_plan_counts_besides(tmp_path: Path, parts: list[int]) -> None:
    path = save(tmp_path, images)
    predictor = fs.Predictor(path, memory="4 GiB", memory_limit="5 MiB", threads=1)
    parts.clear()
    predictor.run(np.ones((40, 3, 40, 50), np.float32))
    assert len(parts) > 1
    with pytest.raises(fs.MemoryPlanError, match=r"it may take 5.0 MiB \(memory_limit\)"):
        predictor.run(np.ones((1, 3, 600, 700), np.float32))


def test_idle_memory_goes_back_where_a_run_would_pass_the_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    """The process as numbers: kernels, what the libraries keep, the caller's arrays."""
    process = {"kernels": 0, "libraries": 0, "arrays": 0, "weights": 0}
    monkeypatch.setattr(MemoryBudget, "_all", type(MemoryBudget._all)())
    monkeypatch.setattr(memory_budget, "resident", lambda: 100 * MIB + sum(process.values()))
    monkeypatch.setattr(memory_budget, "in_use", lambda: process["arrays"] + process["weights"])
    monkeypatch.setattr(memory_budget, "give_back", lambda: None)
    monkeypatch.setattr(memory_budget, "kernels_of_a_size", lambda: 0)

    def forget(share: float = 1.0) -> None:
        process["kernels"] = round(process["kernels"] * (1 - share))

    monkeypatch.setattr(memory_budget, "forget_kernels", forget)
    forgotten: list[int] = []
    budget = MemoryBudget(200 * MIB, lambda: forgotten.append(1))
    process["weights"] = 50 * MIB
    budget.settle()
    assert budget.weights == 50 * MIB and budget.room == (200 - 50 - 16) * MIB
    shrunk: list[int] = []
    budget.shrunk = lambda: shrunk.append(budget.room)

    def run(nbytes: int) -> None:
        with budget.run(nbytes):
            pass

    process["kernels"] = 80 * MIB
    run(50 * MIB)
    assert process["kernels"] == 80 * MIB  # it fits beside them
    run(90 * MIB)
    assert process["kernels"] == 40 * MIB  # the oldest half is enough
    run(130 * MIB)
    assert process["kernels"] == 0 and not shrunk
    process["arrays"] = 1000 * MIB  # the caller's: all but a few count beside the bound
    run(100 * MIB)
    room = budget.room
    assert (200 - 50 - 16) * MIB >= room >= (200 - 50 - 16 - 8) * MIB
    process["kernels"] = 20 * MIB
    run(50 * MIB)
    assert process["kernels"] == 20 * MIB
    process["libraries"] = 60 * MIB  # not the caller's: there is less room
    run(110 * MIB)
    assert budget.room <= room - 30 * MIB and shrunk[-1] == budget.room and forgotten


def test_kernels_are_forgotten_oldest_first() -> None:
    table = dict.fromkeys("abcd", 1)
    kept_kernels.drop_oldest(table, 0.5)
    assert list(table) == ["c", "d"]
    kept_kernels.drop_oldest(table, 1.0)
    assert not table


def test_forgotten_kernels_are_made_again(tmp_path: Path) -> None:
    predictor = fs.Predictor(save(tmp_path, pairs), threads=1)
    feed = {"words": fs.LoDTensor(np.arange(20) % 7, [[5, 15]]), "weights": np.ones((20, 1), np.float32), "bias": np.zeros((2, 8), np.float32)}
    before = predictor.run(feed)[0]
    kept_kernels.forget_kernels()
    np.testing.assert_array_equal(predictor.run(feed)[0], before)
