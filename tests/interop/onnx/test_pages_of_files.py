"""A model's parameters are in memory once: pages of its file go back to the system when their numbers are tensors."""

from __future__ import annotations

import sys
from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

SIZE = 512


@pytest.mark.skipif(sys.platform != "linux", reason="the resident pages of a file are told by Linux")
def test_pages_of_the_file_go_back_when_its_parameters_are_read(tmp_path: Path) -> None:
    x = layer.data("x", ["batch", SIZE])
    y = layer.fc(layer.fc(x, SIZE), SIZE)
    fs.Executor(seed=1).run(fs.default_startup_program())
    fs.save_onnx(tmp_path / "net.onnx", [x], [y])
    model = fs.load_inference_model(tmp_path / "net.onnx", scope=fs.Scope())
    feed = {"x": np.random.default_rng(0).standard_normal((3, SIZE)).astype("float32")}
    expected = fs.Executor().run(feed=feed, fetch=[y])[0]
    np.testing.assert_allclose(model.run(feed)[0], expected, rtol=1e-5, atol=1e-5)
    again = fs.load_inference_model(tmp_path / "net.onnx", scope=fs.Scope())  # from the pages of the file
    np.testing.assert_array_equal(again.run(feed)[0], model.run(feed)[0])
    resident, is_of_file = 0, False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        if "-" in line.split()[0]:
            is_of_file = line.endswith("net.onnx")
        elif is_of_file and line.startswith("Rss:"):
            resident += int(line.split()[1]) << 10
    assert resident < SIZE * SIZE * 4 / 2  # of two files, each of two such matrices
