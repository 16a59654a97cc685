"""Operators of ONNX over open sizes, and drawn numbers."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs

RNG = np.random.default_rng(7)


def blocks(x: np.ndarray, mode: str, deeper: bool) -> np.ndarray:
    """Return SpaceToDepth (``deeper``) or DepthToSpace of blocks of 2, as the operators' documentation has them."""
    n, c, h, w = x.shape
    if deeper:
        parts = x.reshape(n, c, h // 2, 2, w // 2, 2).transpose((0, 3, 5, 1, 2, 4) if mode == "DCR" else (0, 1, 3, 5, 2, 4))
        return parts.reshape(n, c * 4, h // 2, w // 2)
    if mode == "DCR":
        return x.reshape(n, 2, 2, c // 4, h, w).transpose(0, 3, 4, 1, 5, 2).reshape(n, c // 4, h * 2, w * 2)
    return x.reshape(n, c // 4, 2, 2, h, w).transpose(0, 1, 4, 2, 5, 3).reshape(n, c // 4, h * 2, w * 2)


@pytest.mark.parametrize("dtype", ["float32", "int32"])
@pytest.mark.parametrize("mode", ["DCR", "CRD"])
@pytest.mark.parametrize("operator", ["SpaceToDepth", "DepthToSpace"])
def test_blocks_of_open_images(operator: str, mode: str, dtype: str, tmp_path: Path) -> None:
    x = RNG.integers(0, 99, (2, 12, 4, 6)).astype(dtype)
    graph = Graph([node(operator, "x", "y", blocksize=2, mode=mode)], [value("x", dtype, ["n", 12, "h", "w"])], [value("y", dtype, None)])
    assert np.array_equal(opened(model(graph), tmp_path).run(x)["y"], blocks(x, mode, operator == "SpaceToDepth"))


def test_an_index_may_be_smaller_than_its_tensor(tmp_path: Path) -> None:
    x, index = RNG.standard_normal((5, 4)).astype("float32"), RNG.integers(0, 4, (3, 2))
    graph = Graph(
        [node("GatherElements", "x i", "y", axis=1)], [value("x", "float32", ["n", "m"]), value("i", "int64", ["a", "b"])], [value("y", "float32", None)]
    )
    net = opened(model(graph), tmp_path)
    assert np.array_equal(net.run({"x": x, "i": index})["y"], np.take_along_axis(x[:3], index, 1))
    with pytest.raises(fs.ForeshapeError):
        net.run({"x": x[:2], "i": index})


def test_drawn_numbers_have_the_shape_and_range_asked_for(tmp_path: Path) -> None:
    nodes = [
        node("RandomNormalLike", "x", "a", mean=3.0, scale=0.5, seed=1.5),
        node("RandomUniformLike", "x", "b", low=2.0, high=3.0, dtype=11),
        node("RandomNormal", "", "c", shape=[3, 4]),
        node("Bernoulli", "b", "d", dtype=7),
        node("Multinomial", "p", "e", sample_size=9),
    ]
    results = [value(name, dtype, None) for name, dtype in zip("abcde", ("float32", "float64", "float32", "int64", "int32"), strict=True)]
    chances = [tensor("p", np.float32([[0, -1000, -1000], [-1000, -1000, 0]]))]
    nodes[3] = node("Bernoulli", "half", "d", dtype=7)
    graph = Graph(nodes, [value("x", "float32", ["n", 5])], results, [*chances, tensor("half", np.full((40, 5), 0.5, "float32"))])
    found = opened(model(graph), tmp_path).run(np.zeros((40, 5), "float32"))
    wanted = ("float32", (40, 5)), ("float64", (40, 5)), ("float32", (3, 4)), ("int64", (40, 5)), ("int32", (2, 9))
    assert tuple((str(found[name].dtype), found[name].shape) for name in "abcde") == wanted
    assert abs(found["a"].mean() - 3) < 0.2 and 2 <= found["b"].min() < found["b"].max() < 3
    assert set(found["d"].reshape(-1)) == {0, 1} and found["e"].tolist() == [[0] * 9, [2] * 9]


def test_a_constant_of_an_unknown_element_type_is_no_operand_of_a_refused_node(tmp_path: Path) -> None:
    counted = tensor("k", np.array([1], "int64")).replace(b"\x10\x07", b"\x10\x11", 1)  # float8
    graph = Graph([node("BitShift", "x k", "y", direction="LEFT")], [value("x", "uint8", [2])], [value("y", "uint8", None)], [counted])
    with pytest.raises(fs.SchemaError, match="float8"):
        opened(model(graph), tmp_path).run(np.zeros(2, "uint8"))


def test_open_dims_stay_where_all_of_1_go_and_much_follows(tmp_path: Path) -> None:
    nodes = [node("Squeeze", "x", "h0"), *(node("Relu", f"h{at}", f"h{at + 1}") for at in range(20))]
    net = opened(model(Graph(nodes, [value("x", "float32", ["n", 1, 3])], [value("h20", "float32", None)])), tmp_path)
    assert net.run(np.ones((2, 1, 3), "float32"))["h20"].shape == (2, 3)
    with pytest.raises(fs.ExecutionError, match="dim_0_of_x_is_not_1 must be true"):
        net.run(np.ones((1, 1, 3), "float32"))
