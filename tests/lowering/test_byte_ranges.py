"""Products of bytes by a range that is found in the run, as ONNX's dynamic quantization has them: frozen, as they are, and beside fp64."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.frozen_nets import kernels_of
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs
from foreshape.compiler.lowering.kernel_calls import FusedCall
from foreshape.machine.kernels.onednn_library import library

__all__ = ["kernels_of"]  # by oneDNN's own library and by torch's kernels
RNG = np.random.default_rng(4)
K, N = 24, 300
BIAS = RNG.standard_normal(N).astype("float32")
WEIGHTS: dict[str, tuple[Any, Any, Any]] = {
    "int8": (RNG.integers(-127, 128, (K, N)).astype("int8"), None, np.float32(0.01)),
    "int8 with a point": (RNG.integers(-127, 128, (K, N)).astype("int8"), np.int8(-9), np.float32(0.01)),
    "uint8": (RNG.integers(0, 256, (K, N)).astype("uint8"), np.uint8(128), np.float32([0.01])),
    "uint8 off the middle": (RNG.integers(0, 256, (K, N)).astype("uint8"), np.uint8(131), np.float32(0.01)),
    "scales of columns": (RNG.integers(-127, 128, (K, N)).astype("int8"), np.zeros(N, "int8"), RNG.uniform(0.001, 0.02, N).astype("float32")),
    "points of columns": (
        RNG.integers(0, 256, (K, N)).astype("uint8"),
        RNG.integers(90, 160, N).astype("uint8"),
        RNG.uniform(0.001, 0.02, N).astype("float32"),
    ),
}


def network(kind: str, folder: Path, form: str = "cast") -> fs.InferenceModel:
    """Return a network ``y = relu(x W + b) + x W``, of which all rows are quantized together; both products read the same bytes."""
    whole, point, scale = WEIGHTS[kind]
    tensors = [tensor("w", whole), tensor("t", scale), tensor("b", BIAS)]
    tensors += [] if point is None else [tensor("p", point)]
    p = "_" if point is None else "p"
    nodes = [node("DynamicQuantizeLinear", "x", "q s z")]
    if form == "cast":
        nodes.append(node("Mul", "s t", "st"))
        for name in ("a", "c"):
            nodes += [node("MatMulInteger", f"q w z {p}", f"{name}_sums"), node("Cast", f"{name}_sums", f"{name}_floats", to=1),
                      node("Mul", f"{name}_floats st", name)]  # fmt: skip
        nodes.append(node("Add", "a b", "ab"))
    elif form == "to float":
        nodes += [node("MatMulIntegerToFloat", f"q w s t z {p} b", "ab", "com.microsoft"), node("MatMulIntegerToFloat", f"q w s t z {p}", "c", "com.microsoft")]
    else:
        nodes = [node("DynamicQuantizeMatMul", f"x w t {p} b", "ab", "com.microsoft"), node("DynamicQuantizeMatMul", f"x w t {p}", "c", "com.microsoft")]
    nodes += [node("Relu", "ab", "r"), node("Add", "r c", "y")]
    graph = Graph(nodes, [value("x", "float32", ["batch", "words", K])], [value("y", "float32", None)], tensors)
    return opened(model(graph, 21, domains=["com.microsoft"]), folder)


def expected(x: Any, kind: str) -> Any:
    """Return the results in fp64, from the bytes."""
    whole, point, scale = WEIGHTS[kind]
    low, high = min(x.min(initial=0), 0), max(x.max(initial=0), 0)
    step = np.float32(high - low) / np.float32(255) if high > low else np.float32(1)
    zero = np.clip(np.round(np.float32(-low) / step), 0, 255)
    levels = np.clip(np.round(x / step) + zero, 0, 255).astype("float64") - zero
    product = levels @ (whole.astype("float64") - (0 if point is None else point.astype("float64"))) * float(step) * scale.astype("float64")
    return np.maximum(product + BIAS, 0) + product


def ran(net: fs.InferenceModel, x: Any, executor: fs.Executor) -> Any:
    return executor.run(net.program, {"x": x}, net.fetches, net.scope)[0]


@pytest.mark.parametrize("form", ["cast", "to float", "one node"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_frozen_and_as_it_is_it_has_the_bytes_of_fp64(kind: str, form: str, tmp_path: Path) -> None:
    net, executor = network(kind, tmp_path, form), fs.Executor(frozen=True)
    for dims in ((1, 1, K), (2, 5, K), (1, 7, K), (3, 70, K), (2, 0, K)):
        x = (RNG.standard_normal(dims) * RNG.choice([0.1, 3.0])).astype("float32")
        want = expected(x, kind)
        step = (x.max(initial=0) - x.min(initial=0)) / 255 * 255 * np.max(np.abs(WEIGHTS[kind][2]))  # of one level more or less of one number
        for got in (ran(net, x, fs.Executor()), ran(net, x, executor)):
            assert got.shape == want.shape and np.abs(got - want).max(initial=0) <= 3 * step
            assert np.median(np.abs(got - want)) <= 1e-5 * max(1.0, np.abs(want).max(initial=0)) if got.size else True


@pytest.mark.parametrize("form", ["cast", "to float", "one node"])
@pytest.mark.parametrize("kind", WEIGHTS)
def test_both_products_are_one_series_over_one_rounding(kind: str, form: str, tmp_path: Path) -> None:
    found = library()
    if found is None:
        pytest.skip("oneDNN's library is switched off")
    net = network(kind, tmp_path, form)
    calls = fs.Executor(frozen=True).step(net.program, net.fetches).emitted.lowered.calls
    assert len(calls) == (1 if found.multiplies_bytes else 2) and all(isinstance(i, FusedCall) for i in calls)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_number_that_is_not_finite_reaches_all_results(number: float, tmp_path: Path) -> None:
    net = network("uint8 off the middle", tmp_path)
    x = RNG.standard_normal((2, 5, K)).astype("float32")
    x[1, 2, 3] = number
    for executor in (fs.Executor(check=False), fs.Executor(frozen=True, check=False)):
        assert np.isnan(ran(net, x, executor)).all()


def test_zeros_give_the_bias_and_a_range_on_one_side_has_0_in_it(tmp_path: Path) -> None:
    net, zeros = network("int8", tmp_path), np.zeros((2, 3, K), "float32")
    plain, frozen = fs.Executor(), fs.Executor(frozen=True)
    np.testing.assert_array_equal(ran(net, zeros, plain), ran(net, zeros, frozen))
    for x in (zeros + 3, zeros - 0.5, zeros + 1e-30, RNG.uniform(5, 6, zeros.shape).astype("float32")):
        np.testing.assert_allclose(ran(net, x, plain), ran(net, x, frozen), rtol=1e-4, atol=1e-4)


def test_threads_with_other_ranges_do_not_disturb_each_other(tmp_path: Path) -> None:
    net, executor = network("scales of columns", tmp_path), fs.Executor(frozen=True)
    feeds = [RNG.standard_normal((1, 5, K)).astype("float32") * np.float32(10.0**k) for k in range(-2, 3)]
    alone = [ran(net, x, executor) for x in feeds]
    with ThreadPoolExecutor(4) as threads:
        for index, got in enumerate(threads.map(lambda k: ran(net, feeds[k % 5], executor), range(100))):
            np.testing.assert_array_equal(got, alone[index % 5])


def test_bytes_that_are_fetched_or_read_otherwise_stay(tmp_path: Path) -> None:
    nodes = [node("DynamicQuantizeLinear", "x", "q s z"), node("MatMulInteger", "q w z", "sums"), node("Cast", "sums", "floats", to=1),
             node("Mul", "floats s", "y")]  # fmt: skip
    graph = Graph(nodes, [value("x", "float32", ["rows", K])], [value(n, t, None) for n, t in (("y", "float32"), ("q", "uint8"), ("sums", "int32"))],
                  [tensor("w", WEIGHTS["int8"][0])])  # fmt: skip
    net, x = opened(model(graph, 21), tmp_path), RNG.standard_normal((6, K)).astype("float32")
    plain, frozen = (e.run(net.program, {"x": x}, net.fetches, net.scope) for e in (fs.Executor(), fs.Executor(frozen=True)))
    for a, b in zip(plain, frozen, strict=True):
        assert a.dtype == b.dtype
        np.testing.assert_array_equal(a, b)
