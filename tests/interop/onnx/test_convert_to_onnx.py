"""`foreshape convert` to an ONNX model, and the comparison with onnxruntime, here one that is made of this framework."""

from __future__ import annotations

import importlib.machinery
import sys
import types
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from typer.testing import CliRunner

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.commands import app
from foreshape.interop.onnx_comparison import check_written


class Session:
    """An onnxruntime whose results are ``off`` by some."""

    off = 0.0

    def __init__(self, path: str, providers: list[str]) -> None:
        self.model = fs.load_inference_model(path, scope=fs.Scope())

    def get_outputs(self) -> list[Any]:
        return [types.SimpleNamespace(name=v.name) for v in self.model.fetches]

    def run(self, names: list[str], feed: dict[str, Any]) -> list[Any]:
        return [value + np.asarray(self.off, value.dtype) for value in self.model.run(feed).values()]


@pytest.fixture
def onnxruntime(monkeypatch: pytest.MonkeyPatch) -> type[Session]:
    made = types.ModuleType("onnxruntime")
    made.__spec__ = importlib.machinery.ModuleSpec("onnxruntime", None)
    made.InferenceSession = Session  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "onnxruntime", made)
    monkeypatch.setattr(Session, "off", 0.0)
    return Session


@pytest.fixture
def saved(tmp_path: Path) -> Path:
    x = layer.data("image", [-1, 3, -1, -1])
    layer_out = layer.relu(layer.conv2d(layer.pad(x, [0, 0, 0, 0, 0, 0, 0, 0]), 4, 3, stride=2, padding=1))
    y = layer.pool2d(layer_out, global_pooling=True)
    fs.Executor().run(fs.default_startup_program())
    fs.save_inference_model(tmp_path / "net", x, {"y": y})
    return tmp_path / "net.pdmodel"


def test_the_command_writes_and_compares_at_two_sizes(saved: Path, onnxruntime: type[Session]) -> None:
    done = CliRunner().invoke(app, ["convert", str(saved), str(saved.with_suffix(".onnx")), "--check", "--opset", "17"])
    assert done.exit_code == 0, done.output
    lines = done.output.splitlines()
    assert lines[0].startswith(f"{saved.with_suffix('.onnx')}: ") and lines[0].endswith("operator set 17")
    assert lines[1].startswith("in onnxruntime with image [1, 3, 48, 48]: equal") and lines[2].startswith("in onnxruntime with image [2, 3, 96, 96]: equal")


def test_a_difference_is_told_and_the_command_fails(saved: Path, onnxruntime: type[Session], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(onnxruntime, "off", 0.5)
    done = CliRunner().invoke(app, ["convert", str(saved), str(saved.with_suffix(".onnx")), "--check"])
    assert done.exit_code == 1 and "y differs by" in done.output


@pytest.mark.parametrize(("made", "words"), [(lambda y: y.astype("float64"), "4, 1, 1] here, and float64["), (lambda y: y * np.nan, "infinities")])
def test_other_types_and_numbers_that_are_none_are_told(
    saved: Path, onnxruntime: type[Session], monkeypatch: pytest.MonkeyPatch, made: Any, words: str
) -> None:
    path = saved.with_suffix(".onnx")
    CliRunner().invoke(app, ["convert", str(saved), str(path)])
    run = Session.run
    monkeypatch.setattr(onnxruntime, "run", lambda self, names, feed: [made(y) for y in run(self, names, feed)])
    found = list(check_written(str(path), fs.load_inference_model(saved, scope=fs.Scope())))
    assert all(words in one.words and one.difference == float("inf") for one in found), found


def test_without_onnxruntime_nothing_is_written(saved: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    done = CliRunner().invoke(app, ["convert", str(saved), str(saved.with_suffix(".onnx")), "--check"])
    assert done.exit_code == 1 and "foreshape[onnxruntime]" in done.output and not saved.with_suffix(".onnx").exists()


def test_options_of_onnx_are_refused_for_other_files(saved: Path) -> None:
    done = CliRunner().invoke(app, ["convert", str(saved), str(saved.with_name("other.pdmodel")), "--opset", "17"])
    assert done.exit_code == 1 and "--opset and --check are for a file that ends in .onnx" in done.output
