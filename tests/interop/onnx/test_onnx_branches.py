"""Branches of ONNX whose results have different numbers of dims, as `squeeze` in a scripted network of PyTorch."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs

FLAT, SQUARE = np.arange(12, dtype="float32").reshape(3, 4, 1), np.arange(24, dtype="float32").reshape(3, 4, 2)


def squeezed(tail: list[bytes], folder: Path) -> fs.InferenceModel:
    """Return the network of ``tail`` behind a squeeze of the last dim where it is 1."""
    then, otherwise = (
        Graph([node("Squeeze", "x two", "z")], [], [value("z", "float32", None)]),
        Graph([node("Identity", "x", "z")], [], [value("z", "float32", None)]),
    )
    test = [node("Shape", "x", "s"), node("Gather", "s two", "d"), node("Equal", "d one", "c")]
    chosen = node("If", "c", "h", name="/pick", then_branch=then, else_branch=otherwise)
    tensors = [tensor("two", np.array([2])), tensor("one", np.array([1])), tensor("w", np.ones((4, 2), "float32"))]
    return opened(model(Graph([*test, chosen, *tail], [value("x", "float32", ["n", "m", "k"])], [value("y", "float32", None)], tensors)), folder)


def test_what_follows_is_described_in_both(tmp_path: Path) -> None:
    net = squeezed([node("Relu", "h", "r"), node("ReduceSum", "r", "y", keepdims=0)], tmp_path)
    assert [float(net.run(x)["y"]) for x in (FLAT, SQUARE)] == [FLAT.sum(), SQUARE.sum()]
    assert [op.type for op in net.program.all_ops()].count("relu") == 2


def test_what_is_possible_in_one_alone_demands_its_condition(tmp_path: Path) -> None:
    net = squeezed([node("Gemm", "h w", "y")], tmp_path)
    assert net.run(FLAT)["y"].shape == (3, 2)
    with pytest.raises(fs.GuardError, match="k == 1"):
        net.run(SQUARE)
    net = squeezed([node("Transpose", "h", "y", perm=[2, 0, 1])], tmp_path)
    assert net.run(SQUARE)["y"].shape == (2, 3, 4)
    with pytest.raises(fs.ExecutionError, match="must be true, but was false"):
        net.run(FLAT)


def test_branches_within_branches_end(tmp_path: Path) -> None:
    def branch(operator: str, at: int) -> Graph:
        out = f"{operator}{at}"
        return Graph([node(operator, f"h{at} zero" if operator == "Unsqueeze" else f"h{at}", out)], [], [value(out, "float32", None)])

    chain = [node("If", "c", f"h{at + 1}", then_branch=branch("Unsqueeze", at), else_branch=branch("Identity", at)) for at in range(40)]
    fed, results = [value("x", "float32", [2]), value("c", "bool", [])], [value("h40", "float32", None)]
    data = model(Graph([node("Relu", "x", "h0"), *chain], fed, results, [tensor("zero", np.array([0]))]))
    with pytest.raises(fs.SchemaError, match=r"too many branches|depends on"):
        opened(data, tmp_path).run({"x": np.ones(2, "float32"), "c": np.array(True)})


def test_a_squeezed_result_has_as_many_dims_as_the_run_leaves(tmp_path: Path) -> None:
    """As onnxruntime gives it."""
    nodes = [node("Squeeze", "x", "s"), node("Sigmoid", "s", "y")]
    net = opened(model(Graph(nodes, [value("x", "float32", ["batch", 1])], [value("y", "float32", None)]), 11), tmp_path)
    for dims, want in (((1, 1), ()), ((2, 1), (2,))):
        found = net.run({"x": np.zeros(dims, "float32")})["y"]
        assert found.shape == want and np.all(found == 0.5)
