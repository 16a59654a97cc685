"""ONNX's quantized operators beside whole numbers in numpy and torch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

RNG = np.random.default_rng(8)


def run(operator: str, operands: dict[str, Any], folder: Path, fed: str = "x", result: str = "float32", domain: str = "", **attributes: Any) -> Any:
    """Run one node; ``fed`` are the operands that are no tensors of the file."""
    inputs = [value(n, str(a.dtype), a.shape) for n, a in operands.items() if n in fed.split()]
    tensors = [tensor(n, a) for n, a in operands.items() if n not in fed.split() and n[0] != "_"]
    names = " ".join("_" if n[0] == "_" else n for n in operands)
    graph = Graph([node(operator, names, "y", domain=domain, **attributes)], inputs, [value("y", result, None)], tensors)
    return opened(model(graph, 21, domains=[domain] if domain else []), folder).run({n: operands[n] for n in fed.split()})["y"]


@pytest.mark.parametrize(("kind", "low", "high"), [("uint8", 0, 255), ("int8", -128, 127)])
@pytest.mark.parametrize("form", ["one", "axis", "blocks", "fed"])
def test_quantizing_rounds_halves_to_even_and_saturates(kind: str, low: int, high: int, form: str, tmp_path: Path) -> None:
    x = np.float32([[0.5, 1.5, 2.5, -0.5, 1000], [-1000, 3, 0.25, -1.5, 7]])
    scale, zero, more, wide = np.float32(0.5), np.array(3, kind), {}, lambda v: v
    if form == "axis":
        scale, zero, more, wide = np.float32([0.5, 2]), np.array([3, 100], kind), {"axis": -2}, lambda v: v[:, None]
    if form == "blocks":
        scale, zero = np.float32([[0.5, 2, 1], [1, 4, 2]]), np.array([[3, 1, 0], [0, 2, 5]], kind)
        more, wide = {"axis": 1, "block_size": 2}, lambda v: np.repeat(v, 2, 1)[:, :5]
    fed = "x s z" if form == "fed" else "x"
    got = run("QuantizeLinear", {"x": x, "s": scale, "z": zero}, tmp_path, fed, kind, **more)
    want = np.clip(np.round(x / wide(scale)) + wide(zero).astype("i4"), low, high).astype(kind)
    assert got.dtype == want.dtype and np.array_equal(got, want)
    back = run("DequantizeLinear", {"x": want, "s": scale, "z": zero}, tmp_path, fed, **more)
    assert back.dtype == np.float32 and np.array_equal(back, (want.astype("f4") - wide(zero)) * wide(scale))


def test_products_of_whole_numbers_are_exact(tmp_path: Path) -> None:
    x, y = RNG.integers(0, 256, (3, 70_000)).astype("uint8"), RNG.integers(-128, 128, (70_000, 2)).astype("int8")
    x[:] |= 0xC1  # large: the sums are beyond 2^24, and odd
    z, w = np.array([1, 2, 3], "uint8"), np.array([3, -5], "int8")
    got = run("MatMulInteger", {"x": x, "b": y, "z": z, "w": w}, tmp_path, "x b", "int32")
    want = (x.astype("i8") - z[:, None]) @ (y.astype("i8") - w)
    assert got.dtype == np.int32 and np.abs(want).max() > 2**24 and np.array_equal(got, want)


@pytest.mark.parametrize("channels", [False, True])
def test_a_quantized_convolution_is_that_of_whole_numbers(channels: bool, tmp_path: Path) -> None:
    import torch

    x, w = RNG.integers(0, 256, (2, 3, 6, 6)).astype("uint8"), RNG.integers(-128, 128, (4, 3, 3, 3)).astype("int8")
    bias, zero = RNG.integers(-999, 999, 4).astype("int32"), np.array([1, -2, 0, 5], "int8") if channels else np.array(2, "int8")
    scale = np.float32([0.01, 0.02, 0.03, 0.005]) if channels else np.float32(0.01)
    operands = {"x": x, "xs": np.float32(0.02), "xz": np.array(7, "uint8"), "w": w, "ws": scale, "wz": zero, "ys": np.float32(0.05),
                "yz": np.array(128, "uint8"), "b": bias}  # fmt: skip
    got = run("QLinearConv", operands, tmp_path, "x", "uint8", pads=[1, 1, 1, 1])
    less = torch.from_numpy(w.astype("f8") - (zero[:, None, None, None] if channels else zero))
    sums = torch.nn.functional.conv2d(torch.from_numpy(x.astype("f8") - 7), less, padding=1).numpy() + bias[:, None, None]
    factor = np.float32(0.02) * scale / np.float32(0.05)
    want = np.clip(np.round(sums.astype("f4") * (factor[:, None, None] if channels else factor)) + 128, 0, 255).astype("uint8")
    assert np.array_equal(got, want) and len(np.unique(got)) > 20
    more = {"x": x, "w": w, "xz": np.array(7, "uint8"), "wz": zero}
    assert np.array_equal(run("ConvInteger", more, tmp_path, "x", "int32", pads=[1, 1, 1, 1]), sums - bias[:, None, None])


def test_a_range_is_found_in_the_run(tmp_path: Path) -> None:
    for x in (np.float32([-1, 0.5, 3]), np.float32([2, 4]), np.zeros(3, "float32")):
        graph = Graph([node("DynamicQuantizeLinear", "x", "y s z")], [value("x", "float32", ["n"])],
                      [value("y", "uint8", None), value("s", "float32", None), value("z", "uint8", None)])  # fmt: skip
        got = opened(model(graph), tmp_path).run(x)
        span = max(x.max(), 0) - min(x.min(), 0)
        scale = span / np.float32(255) if span else np.float32(1)
        zero = np.clip(np.round(-min(x.min(), 0) / scale), 0, 255)
        assert got["s"] == scale and got["z"] == zero and got["z"].dtype == np.uint8 and np.array_equal(got["y"], np.clip(np.round(x / scale) + zero, 0, 255))


def test_sums_of_two_scales_and_products_without_a_scale_of_the_result(tmp_path: Path) -> None:
    a, b = RNG.integers(0, 256, (2, 8)).astype("uint8"), RNG.integers(0, 256, (2, 8)).astype("uint8")
    s, t, u, z = np.float32(0.1), np.float32(0.03), np.float32(0.2), np.array(5, "uint8")
    operands = {"a": a, "as": s, "az": z, "b": b, "bs": t, "bz": z, "cs": u, "cz": np.array(9, "uint8")}
    got = run("QLinearAdd", operands, tmp_path, "a b", "uint8", domain="com.microsoft")
    want = np.clip(np.round(((a.astype("f4") - 5) * s + (b.astype("f4") - 5) * t) / u) + 9, 0, 255)
    assert got.dtype == np.uint8 and np.array_equal(got, want)
    operands = {"a": a, "as": s, "az": z, "b": b, "bs": t, "bz": z}
    got = run("QGemm", operands, tmp_path, "a", domain="com.microsoft", transB=1)
    assert np.allclose(got, (a.astype("f8") - 5) @ (b.astype("f8") - 5).T * s * t)
