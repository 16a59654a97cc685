"""Pools with pads as wide as their windows, written for onnxruntime, which takes no such pool: by a pad node, with the right number of pixels in means."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.wire.onnx_model import read_model

CASES = list(product(["max", "avg"], [[1, 1, 1, 1], [2, 0, 1, 3], [3, 3, 3, 3]], [[1, 1], [2, 3]], [True, False], [True, False]))


@pytest.mark.quick_cases("known")
@pytest.mark.parametrize("dims", [[1, 2, 5, 6], ["batch", 2, "height", "width"]], ids=["known", "open"])
def test_a_pool_with_wide_pads_is_written_without_them(dims: list[Any], tmp_path: Path) -> None:
    x = layer.data("x", shape=dims)
    results: dict[str, Any] = {}
    for k, (how, pads, window, exclusive, ceil) in enumerate(CASES):
        attrs = {"pooling_type": how, "ksize": window, "strides": [2, 1], "paddings": pads, "exclusive": exclusive, "ceil_mode": ceil}
        results[f"out{k}"] = fs.default_main_program().global_block.apply("pool2d", {"X": x}, attrs)
    feed = {"x": np.random.RandomState(0).standard_normal((1, 2, 5, 6)).astype("float32")}
    want = fs.Executor().run(feed=feed, fetch=list(results.values()))
    fs.save_onnx(tmp_path / "m.onnx", [x], results, opset=18)
    nodes = read_model(tmp_path / "m.onnx").graph.nodes
    pools = [node.attributes for node in nodes if node.operator in ("MaxPool", "AveragePool")]
    assert len(pools) >= len(CASES)
    for attributes in pools:
        sizes: Any = attributes["kernel_shape"]
        assert all(pad < size for pad, size in zip(attributes.get("pads", [0] * 4), [*sizes, *sizes], strict=True)), attributes
    got = fs.load_inference_model(tmp_path / "m.onnx", scope=fs.Scope()).run(feed)
    for case, name, one in zip(CASES, results, want, strict=True):
        np.testing.assert_allclose(got[name], one, rtol=1e-5, atol=1e-6, err_msg=str(case))
