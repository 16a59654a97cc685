"""Reductions of integers: numbers of onnxruntime 1.32, in the operand's element type, and written again as they were read."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs

X = [[-7, 2, 3], [7, 8, 1], [-1, -1, -1]]
POSITIVE = [[7, 2, 3], [7, 8, 1], [1, 1, 200]]
WANT: dict[str, tuple[list[list[int]], list[int]]] = {
    "ReduceMean": (X, [0, 5, -1]),
    "ReduceSum": (X, [-2, 16, -3]),
    "ReduceL1": (X, [12, 16, 3]),
    "ReduceL2": (X, [7, 10, 1]),
    "ReduceSumSquare": (X, [62, 114, 3]),
    "ReduceLogSum": (POSITIVE, [2, 2, 5]),
    "ReduceLogSumExp": (X, [3, 8, 0]),
    "ReduceProd": (X, [-42, 56, -1]),
    "ReduceMax": (X, [3, 8, -1]),
    "ReduceMin": (X, [-7, 1, -1]),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("of", ["int32", "int64"])
@pytest.mark.parametrize("operator", WANT)
def test_a_reduction_of_integers_is_one(operator: str, of: str, tmp_path: Path) -> None:
    given, want = WANT[operator]
    x = np.array(given, of)
    axes: dict[str, Any] = {} if operator == "ReduceSum" else {"axes": [1]}
    nodes = [node(operator, "x a" if not axes else "x", "y", keepdims=0, **axes)]
    graph = Graph(nodes, [value("x", of, ["b", "c"])], [value("y", of, None)], [tensor("a", np.array([1]))])
    network = opened(model(graph, 13), tmp_path)
    got = network.run({"x": x})["y"]
    assert got.dtype == of and got.tolist() == want
    fs.save_onnx(tmp_path / "again.onnx", network.feeds, network.fetches, program=network.program, scope=network.scope)
    again = fs.load_inference_model(tmp_path / "again.onnx", scope=fs.Scope()).run({"x": x})["y"]
    assert again.dtype == of and again.tolist() == want


def test_a_mean_of_integers_in_a_description_warns_of_the_cut() -> None:
    counts = fs.layer.data("counts", shape=["batch", 4], dtype="int64")
    with pytest.warns(fs.ForeshapeWarning, match="cuts the means to integers"):
        means = fs.layer.reduce_mean(counts, 1)
    assert fs.Executor().run(feed={"counts": np.array([[1, 2, 2, 2], [-1, -2, -2, -2]])}, fetch=[means])[0].tolist() == [1, -1]
