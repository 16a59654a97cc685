"""`Predictor` with onnxruntime as its engine: there where it is installed, otherwise with a stand-in that opens what was written with our importer."""

from __future__ import annotations

import importlib.util
import sys
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.interop import onnx_session
from foreshape.language.wire.onnx_model import read_model

TYPES = {1: "tensor(float)", 7: "tensor(int64)"}


class StandIn:
    """As `onnxruntime.InferenceSession`."""

    opened: list[Any] = []

    def __init__(self, source: Any, options: Any, providers: Any) -> None:
        assert providers == ["CPUExecutionProvider"]
        self.opened.append((source, options))
        program, held = fs.interop.program_files.open_program(source)
        program.refresh()
        self.scope = fs.Scope()
        held.put_into(self.scope, "cpu")
        self.graph, self.program = read_model(source).graph, program

    def get_inputs(self) -> list[Any]:
        return [SimpleNamespace(name=v.name, type=TYPES[v.type.code], shape=list(v.type.dims)) for v in self.graph.inputs]

    def get_outputs(self) -> list[Any]:
        return [SimpleNamespace(name=v.name, type=TYPES[v.type.code], shape=list(v.type.dims)) for v in self.graph.outputs]

    def run(self, names: list[str], feed: Any) -> list[Any]:
        return fs.Executor().run(self.program, feed=feed, fetch=names, scope=self.scope)


@pytest.fixture(autouse=True)
def _runtime(monkeypatch: pytest.MonkeyPatch) -> None:  # pyright: ignore[reportUnusedFunction]
    StandIn.opened = []
    if importlib.util.find_spec("onnxruntime") is None:
        module: Any = ModuleType("onnxruntime")
        module.__spec__ = ModuleSpec("onnxruntime", None)
        module.InferenceSession, module.SessionOptions = StandIn, SimpleNamespace
        monkeypatch.setitem(sys.modules, "onnxruntime", module)


def saved(folder: Path) -> tuple[str, Any]:
    x, k = layer.data("x", [-1, 3]), layer.data("k", [-1, 1], "int64")
    y = layer.fc(x, 4, activation="tanh") + layer.fc(layer.reshape(layer.embedding(k, [5, 4]), [-1, 4]), 4)
    fs.Executor().run(fs.default_startup_program())
    fs.save_inference_model(folder / "net", [x, k], {"scores": y})
    return str(folder / "net"), y


def feed_of(count: int) -> dict[str, Any]:
    return {"x": np.random.RandomState(count).standard_normal((count, 3)).astype("float32"), "k": np.arange(count).reshape(-1, 1) % 5}


def test_it_gives_what_this_engine_gives(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    here, there = fs.Predictor(path), fs.Predictor(path, engine="onnxruntime", threads=1, warm=[{"x": [2, 3], "k": [2, 1]}])
    assert there.inputs == here.inputs and there.outputs == here.outputs and "onnxruntime" in repr(there)
    for count in (1, 4):
        feed = feed_of(count)
        want, got = here.run(feed), there.run(feed)
        assert type(got) is type(want) and list(got) == list(want)
        np.testing.assert_allclose(got["scores"], want["scores"], rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(there(feed["x"].astype("float64"), feed["k"].astype("int32"))[0], want[0], rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(there.model.run(feed_of(2))[0], here.run(feed_of(2))[0], rtol=1e-5, atol=1e-6)


def test_a_model_of_onnx_goes_there_as_it_is(tmp_path: Path) -> None:
    path, y = saved(tmp_path)
    fs.save_onnx(tmp_path / "m.onnx", ["x", "k"], {"scores": y})
    there = fs.Predictor(tmp_path / "m.onnx", engine="onnxruntime")
    assert not StandIn.opened or StandIn.opened[0][0] == str(tmp_path / "m.onnx")
    np.testing.assert_allclose(there.run(feed_of(3))["scores"], fs.Predictor(path).run(feed_of(3))["scores"], rtol=1e-5, atol=1e-6)


def test_a_large_model_goes_there_by_a_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = saved(tmp_path)
    monkeypatch.setattr(onnx_session, "LARGEST", 1 << 24)
    there = fs.Predictor(path, engine="onnxruntime")
    assert not StandIn.opened or StandIn.opened[0][0].endswith("model.onnx")
    np.testing.assert_allclose(there.run(feed_of(3))[0], fs.Predictor(path).run(feed_of(3))[0], rtol=1e-5, atol=1e-6)


def test_requests_of_several_threads_are_joined(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    there = fs.Predictor(path, engine="onnxruntime", batch_queue=8, wait=0.0)
    np.testing.assert_allclose(there.run(feed_of(3))[0], fs.Predictor(path).run(feed_of(3))[0], rtol=1e-5, atol=1e-6)


def test_mistakes_are_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path, _ = saved(tmp_path)
    there = fs.Predictor(path, engine="onnxruntime")
    feed = feed_of(2)
    for wrong, words in (
        ({"x": feed["x"]}, "k is not fed; fed are: x"),
        (feed | {"z": feed["x"]}, "'z' is fed, and the program has no such input"),
        (feed | {"x": feed["x"][:, :2]}, r"x must be float32 \[.*, 3\].*\[2, 2\]"),
        (feed | {"x": feed["x"][0]}, r"x must be float32"),
        (feed | {"x": feed["k"]}, "x must be float32.*int64"),
        (feed | {"k": feed["k"][:1]}, r"k must be int64.*dim 0 of x is 2"),
    ):
        with pytest.raises(fs.FeedError, match=words):
            there.run(wrong)
    for ask in (there.plan, lambda: there.profile(feed)):
        with pytest.raises(fs.SchemaError, match="this network runs in onnxruntime"):
            ask()
    with pytest.raises(fs.SchemaError, match="engine must be 'foreshape' or 'onnxruntime'"):
        fs.Predictor(path, engine="tensorflow")  # pyright: ignore[reportArgumentType]
    for settings in ({"device": "cuda"}, {"memory_limit": "1GiB"}, {"threads": "adaptive"}):
        with pytest.raises(fs.SchemaError, match="onnxruntime runs on the processor"):
            fs.Predictor(path, engine="onnxruntime", **settings)
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(fs.FormatError, match="onnxruntime, which is not installed"):
        fs.Predictor(path, engine="onnxruntime")


def test_what_stops_there_is_told(tmp_path: Path) -> None:
    path, _ = saved(tmp_path)
    there = fs.Predictor(path, engine="onnxruntime")
    with pytest.raises(fs.ExecutionError, match="onnxruntime stops"):
        there.run({"x": np.zeros((13, 3), "float32"), "k": np.full((13, 1), 99)})  # a row that there is not
