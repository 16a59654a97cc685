"""Frozen networks in bf16: results within its rounding, the same tasks' answers, weights held once, and the errors of settings."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
from support.frozen_nets import Net, images
from support.zoo import NAMES, network

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels.onednn_chain import Series
from foreshape.machine.kernels.onednn_library import BF16, F32, RESULT, SOURCE, Unimplemented, library

pytestmark = pytest.mark.skipif(library() is None, reason="oneDNN's library is not installed for this machine")
BOUND = 0.03
"""Of the largest magnitude: bf16 keeps 8 bits, and a network of fifty products loses three of them."""
CHOICES = {"det_ppyoloe", "det_ssd", "seg_enet", "ocr_rare_att"}
"""Networks with results that turn on which of nearly equal numbers is larger."""
QUICK = {"clas_SE_ResNet18_vd", "clas_DeiT_tiny_patch16_224", "vision_shufflenet_v2_x0_25", "ocr_crnn_mv3"}


@pytest.mark.parametrize("name", [n if n in QUICK else pytest.param(n, marks=pytest.mark.long) for n in NAMES if n not in CHOICES])
def test_a_network_of_the_zoo_gives_the_same_within_bf16(name: str) -> None:
    net = network(name)
    program, scope = fs.Program.from_bytes(net.data), net.scope()
    expected = fs.Executor().run(program, net.feed, net.fetches, scope)
    executor = fs.Executor(frozen=True, precision="bf16")
    for _ in range(2):
        for a, b in zip(executor.run(program, net.feed, net.fetches, scope), expected, strict=True):
            if b.dtype.kind == "f" and np.isfinite(b).all():
                assert np.abs(a - b).max() <= BOUND * np.abs(b).max()
    if name.startswith("clas"):
        order = np.sort(expected[0], axis=-1)
        sure = order[:, -1] - order[:, -2] > 0.02 * np.abs(order).max()  # bf16 may turn nearly equal ones
        assert (a.argmax(-1) == expected[0].argmax(-1))[sure].all()


def network_of_all_stages(x: Any) -> Any:
    h = layer.conv2d(x, 16, 3, padding=1, activation="relu")
    beside = layer.conv2d(h, 16, 1)
    h = layer.pool2d(layer.concat([h, beside, h + beside], axis=1), 2, "max", 2)
    h = layer.conv2d(layer.batch_norm(layer.conv2d(h, 32, 3, padding=1, groups=2), is_test=True), 32, 1, activation="swish")
    h = layer.conv2d_transpose(h * layer.sigmoid(layer.conv2d(h, 32, 1)), 8, 2, stride=2)
    return layer.softmax(layer.fc(layer.relu(layer.fc(layer.reduce_mean(h, [2, 3]), 64)), 10))


@pytest.mark.parametrize("size", [(1, 3, 16, 16), (3, 3, 18, 12)])
def test_every_stage_between_products_takes_bf16(size: tuple[int, ...]) -> None:
    net = Net(network_of_all_stages, images(*size), ["batch", 3, "height", "width"])
    expected = fs.Executor().run(net.main, {"x": net.x}, net.fetch, net.scope)[0]
    executor = fs.Executor(frozen=True, precision="bf16")
    seen = executor.run(net.main, {"x": net.x}, net.fetch, net.scope)[0]
    np.testing.assert_allclose(seen, expected, atol=0.02)
    assert seen.dtype == np.float32 and np.abs(seen.sum(-1) - 1).max() < 1e-5  # the softmax is fp32
    with ThreadPoolExecutor(4) as threads:
        for again in threads.map(lambda _: executor.run(net.main, {"x": net.x}, net.fetch, net.scope)[0], range(8)):
            np.testing.assert_array_equal(again, seen)


def test_values_between_kernels_and_weights_are_bf16() -> None:
    net = Net(lambda x: layer.fc(layer.relu(layer.fc(x, 256)), 64), np.ones((8, 64), "float32"), ["batch", 64])
    executor = fs.Executor(frozen=True, precision="bf16")
    net.run(executor)
    step = executor.step(net.main, net.fetch)
    (series,) = [v for v in step.bind(net.scope).values if hasattr(v, "line_of")]
    line = series.line_of([np_tensor(net.x)])
    products = [p.record for p in line.primitives if p.record.kind == "product"]
    assert [[p.memories[n].element for n in (SOURCE, RESULT)] for p in products] == [[BF16, BF16], [BF16, F32]]
    assert [s.stage.nbytes for s in series._steps] == [2 * 64 * 256, 2 * 256 * 64]


def np_tensor(array: np.ndarray) -> Any:
    import torch

    return torch.from_numpy(array)


def test_precisions_and_what_they_need() -> None:
    assert fs.Executor().precision == "fp32"
    found = library()
    assert found is not None
    assert fs.Executor(frozen=True, precision="auto").precision == ("bf16" if found.multiplies_halves else "fp32")
    with pytest.raises(fs.errors.SchemaError, match="precision"):
        fs.Executor(frozen=True, precision="fp8")  # type: ignore[arg-type]
    with pytest.raises(fs.errors.SchemaError, match="frozen"):
        fs.Executor(precision="bf16")


def test_a_series_whose_kernels_are_missing_runs_by_others_with_its_constants(monkeypatch: pytest.MonkeyPatch) -> None:
    def unimplemented(*_: Any) -> Any:
        raise Unimplemented("for a test")

    monkeypatch.setattr(Series, "line", unimplemented)
    net = Net(lambda x: layer.fc(layer.relu(layer.fc(x, 64)) / layer.fill_constant([1], "fp32", 3.0), 64), np.ones((8, 64), "float32"), ["batch", 64])
    net.same()
    net.same(executor=fs.Executor(frozen=True, precision="bf16"))


def test_a_network_of_int8_keeps_its_kernels(tmp_path: Any) -> None:
    net = Net(lambda x: layer.softmax(layer.fc(layer.relu(layer.conv2d(x, 32, 3)), 64)), images(8, 3, 8, 8), ["batch", 3, 8, 8])
    out = net.main.global_block.var(net.fetch[0])
    fs.save_inference_model(tmp_path / "net", ["x"], [out], fs.Executor(), net.main, net.scope)
    quantized = fs.quantize(fs.load_inference_model(tmp_path / "net"), {"x": net.x})
    fs.save_inference_model(tmp_path / "int8", quantized.feeds, quantized.fetches, fs.Executor(), quantized.program, quantized.scope)
    expected = fs.Predictor(tmp_path / "int8").run({"x": net.x})[0]
    seen = fs.Predictor(tmp_path / "int8", precision="bf16").run({"x": net.x})[0]
    np.testing.assert_array_equal(seen, expected)
