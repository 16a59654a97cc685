"""Servers of small networks in this process."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import foreshape as fs
from foreshape import layer

if TYPE_CHECKING:
    from foreshape.apps.serving.server import BackgroundServer


@pytest.fixture(scope="session")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of networks: images of sizes with conditions, ragged texts, one whose examples depend on one another, and every type."""
    folder = tmp_path_factory.mktemp("models")
    scope = fs.Scope()
    with fs.program_guard(fs.Program(), fs.Program()):
        image = layer.data("image", ["batch", 3, "height", "width"])
        h = layer.conv2d(image, 4, 3, stride=4, padding=1)
        up = h + layer.interpolate(layer.conv2d(h, 4, 3, stride=2, padding=1), scale=2)
        out = layer.softmax(layer.fc(layer.reduce_mean(up, [2, 3]), 5))
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
        fs.save_inference_model(folder / "images", [image], {"scores": out, "map": up}, scope=scope)
    with fs.program_guard(fs.Program(), fs.Program()):
        words = layer.data("words", ["words"], dtype="int64", lod_level=1)
        h = layer.fc(layer.embedding(words, [50, 8]), 8, activation="tanh")
        h = layer.sequence_attention(h, h, h, heads=2)
        fs.Executor(seed=2).run(fs.default_startup_program(), scope=scope)
        fs.save_inference_model(folder / "texts", [words], {"text": layer.sequence_pool(h, "mean"), "rows": h}, scope=scope)
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", ["batch", 4])
        fs.save_inference_model(folder / "together", [x], {"y": x + layer.relu(layer.reduce_max(x, 0, keepdim=True) - 100.0)})
    with fs.program_guard(fs.Program(), fs.Program()):
        kinds = ["bool", "uint8", "int8", "int16", "int32", "int64", "fp16", "bf16", "fp32", "fp64"]
        ins = [layer.data(f"x_{k}", ["batch", 3], dtype=k) for k in kinds]
        fs.save_inference_model(folder / "types", ins, {f"y_{k}": layer.assign(x) for k, x in zip(kinds, ins, strict=True)})
    return folder


@pytest.fixture(scope="session")
def served(models: Path) -> Iterator[BackgroundServer]:
    from foreshape.apps.serving.server import BackgroundServer

    with BackgroundServer([str(models)]) as server:
        yield server
