"""The weights of a frozen network of a file: packed for the kernels, and in memory no second time."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.live_tensors import live_bytes

import foreshape as fs
from foreshape import layer
from foreshape.interop import waiting
from foreshape.interop.onnx import held_parameters
from foreshape.machine.kernels.onednn_library import library

SIZE, LAYERS = 384, 4
WEIGHTS = 4 * SIZE * SIZE * LAYERS
X = np.random.default_rng(0).standard_normal((5, SIZE)).astype("float32")


@pytest.fixture(params=["net.onnx", "net"])
def saved(request: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A network whose file counts as a large one."""
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    with fs.program_guard(main, startup):
        h = x = layer.data("x", shape=["batch", SIZE])
        for _ in range(LAYERS):
            h = layer.fc(h, SIZE, "relu")
    fs.Executor(seed=2).run(startup, scope=scope)
    if request.param == "net":
        fs.save_inference_model(tmp_path / "net", [x], [h], program=main, scope=scope)
    else:
        fs.save_onnx(tmp_path / request.param, [x], [h], program=main, scope=scope)
    monkeypatch.setattr(waiting, "LARGE", 1)
    monkeypatch.setattr(held_parameters, "LARGE", 1)
    return tmp_path / request.param


def result(model: Any, feed: Any = X) -> Any:
    return next(iter(model.run(feed).values()))


def weight_of(scope: fs.Scope) -> str:
    """Return the name of a matrix, now read."""
    return next(name for name in reversed(scope.names()) if scope.get(name).shape == (SIZE, SIZE))


@pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed for this machine")
def test_a_predictor_holds_its_weights_once(saved: Path) -> None:
    before = live_bytes()
    model = fs.Predictor(saved)
    for rows in (5, 2, 3):
        _ = result(model, X[:rows])
    held = live_bytes() - before
    assert WEIGHTS <= held < 1.15 * WEIGHTS
    planned = model.plan().breakdown(batch=5)["parameters"]
    assert held / 1.05 < planned < 1.05 * held
    name = weight_of(model.model.scope)  # read: it is there twice
    assert model.plan().breakdown(batch=5)["parameters"] - planned == 4 * SIZE * SIZE, name


def test_values_of_a_frozen_network_stay_readable_and_settable(saved: Path, tmp_path: Path) -> None:
    usual = fs.load_inference_model(saved, scope=fs.Scope())
    model = fs.Predictor(saved)
    np.testing.assert_allclose(result(model), result(usual), rtol=1e-4, atol=1e-5)
    scope = model.model.scope
    for name in usual.scope.names():
        np.testing.assert_array_equal(scope.get(name), usual.scope.get(name))
    other = fs.Executor().run(model.model.program, {"x": X}, model.outputs, scope)
    np.testing.assert_allclose(other[0], result(usual), rtol=1e-4, atol=1e-5)
    fs.save_inference_model(tmp_path / "again", model.inputs, model.model.fetches, program=model.model.program, scope=scope)
    np.testing.assert_array_equal(result(fs.load_inference_model(tmp_path / "again", scope=fs.Scope())), result(usual))
    fresh = fs.Predictor(saved)
    _ = result(fresh)
    name = weight_of(usual.scope)
    for each in (usual.scope, fresh.model.scope):
        each.set(name, np.eye(SIZE, dtype="float32"))
    np.testing.assert_allclose(result(fresh), result(usual), rtol=1e-4, atol=1e-5)


def test_a_file_changed_after_the_first_run_stops_no_later_one(saved: Path) -> None:
    file = saved if saved.suffix else saved.with_suffix(".pdiparams")
    os.utime(file, ns=(0, 0))
    model = fs.Predictor(saved)
    seen = result(model)
    if model.model.scope._waiting:  # pyright: ignore[reportPrivateUsage]
        os.truncate(file, 100)
        np.testing.assert_array_equal(result(model), seen)
        assert result(model, X[:2]).shape == (2, SIZE)
        name = sorted(model.model.scope._waiting)[0]  # pyright: ignore[reportPrivateUsage]
        with pytest.raises(fs.FormatError, match=r"was changed after it was opened, and the parameter '.*' is not in memory: open it again"):
            model.model.scope.get(name)


def test_a_file_put_in_the_place_of_another_changes_nothing(saved: Path, tmp_path: Path) -> None:
    file = saved if saved.suffix else saved.with_suffix(".pdiparams")
    model = fs.Predictor(saved)
    seen = result(model)
    (tmp_path / "new").write_bytes(b"another")
    os.replace(tmp_path / "new", file)
    scope = model.model.scope
    name = weight_of(scope)
    scope.set(name, scope.get(name))
    np.testing.assert_array_equal(result(model), seen)
