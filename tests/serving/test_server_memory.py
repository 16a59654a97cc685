"""A server with --memory: a request is cut to its share, and one that cannot be is answered by 413 with the words of the plan."""

from __future__ import annotations

from pathlib import Path

import numpy
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.apps.serving.served_model import Opening
from foreshape.apps.serving.served_network import Networks
from foreshape.apps.serving.server_limits import ServerLimits
from foreshape.interop.bounded_model import BoundedModel
from foreshape.interop.model import InferenceModel

MIB = 1 << 20


def test_requests_keep_to_the_share_of_a_model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with fs.program() as program:
        x = layer.data("x", ["batch", 3, "height", "width"])
        y = layer.reduce_mean(layer.conv2d(x, 16, 3, activation="relu"), [2, 3])
    fs.Executor(seed=1).run(program.startup)
    path = str(tmp_path / "network")
    fs.save_inference_model(path, [x], [y])
    served = Networks(threads=1, bounded=True).opened(path, Opening(4096 * MIB, ServerLimits(), lambda batch: None))
    model = served._predictor.runs
    budget = served._predictor._executor.budget
    assert isinstance(model, BoundedModel) and budget is not None
    served.give_memory(budget.weights + budget.reserve + 4 * MIB)
    runs: list[int] = []
    run = InferenceModel.run
    monkeypatch.setattr(InferenceModel, "run", lambda self, feed, *more: (runs.append(len(feed["x"])), run(self, feed, *more))[1])
    images = numpy.random.default_rng(0).standard_normal((40, 3, 40, 50), numpy.float32)
    answer = served.submit({"x": images}, float("inf"), lambda function: function()).result(60)
    assert len(runs) > 2 and max(runs[1:]) < 40  # the whole is refused by the plan, before anything is computed
    numpy.testing.assert_allclose(answer[0], fs.Predictor(path, threads=1).run({"x": images})[0], rtol=1e-5, atol=1e-6)
    future = served.submit({"x": numpy.ones((1, 3, 600, 700), numpy.float32)}, float("inf"), lambda function: function())
    error = future.exception(60)
    assert isinstance(error, fs.MemoryPlanError)
    refusal = served.refusal(None, error)  # type: ignore[arg-type]
    assert refusal is not None and refusal.status == 413
    assert "this run needs" in str(refusal) and "height = 600" in str(refusal) and "the largest that fits is" in str(refusal)
    served.close()
