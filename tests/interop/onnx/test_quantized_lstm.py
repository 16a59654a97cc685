"""DynamicQuantizeLSTM: an LSTM with weights of 8 bits, beside the same with floats, and beside numbers of onnxruntime within its rounding."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

HIDDEN, FEATURES, TIME, BATCH = 3, 4, 5, 2
ONNXRUNTIME = [-0.0178, 0.1091, 0.4531, 0.0673, -0.015, -0.0498, -0.0325, 0.4413, -0.2634, -0.0512, 0.3992, -0.3217]


def _whole(rng: np.random.Generator, shape: tuple[int, ...], by_channel: bool) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return weights [directions, entries, gates], and their scales and zero points."""
    weights = rng.integers(0, 256, shape).astype("uint8")
    each = (shape[0], shape[2]) if by_channel else (shape[0],)
    return weights, rng.uniform(0.004, 0.006, each).astype("float32"), rng.integers(120, 136, each).astype("uint8")


def _wide(weights: np.ndarray, scale: np.ndarray, zero: np.ndarray) -> np.ndarray:
    by, shift = (n.reshape(len(weights), 1, -1).astype("float32") for n in (scale, zero))
    return np.ascontiguousarray(((weights - shift) * by).transpose(0, 2, 1))


def _networks(folder: Path, direction: str, by_channel: bool, extra: bool) -> tuple[Any, Any, dict[str, np.ndarray]]:
    rng, directions = np.random.default_rng(7), 2 if direction == "bidirectional" else 1
    w = _whole(rng, (directions, FEATURES, 4 * HIDDEN), by_channel)
    r = _whole(rng, (directions, HIDDEN, 4 * HIDDEN), by_channel)
    floats = {"B": rng.uniform(-0.5, 0.5, (directions, 8 * HIDDEN)).astype("float32")}
    x = rng.uniform(-1, 1, (TIME, BATCH, FEATURES)).astype("float32")
    more = "_ _ _ _"
    if extra:
        floats |= {name: rng.uniform(-0.5, 0.5, (directions, BATCH, HIDDEN)).astype("float32") for name in ("h", "c")}
        floats["P"] = rng.uniform(-0.5, 0.5, (directions, 3 * HIDDEN)).astype("float32")
        more = "n h c P"
    held = [tensor(name, array) for name, array in floats.items()] + [tensor("n", np.array([TIME, 3], "int32"))]
    bytes_held = [tensor(f"{kind}{at}", part) for kind, parts in (("w", w), ("r", r)) for at, part in enumerate(parts)]
    wide = [tensor("w", _wide(*w)), tensor("r", _wide(*r))]
    inputs, outputs = [value("x", "float32", ["time", "batch", FEATURES])], [value(n, "float32", None) for n in ("y", "yh", "yc")]
    attrs: dict[str, Any] = {"hidden_size": HIDDEN, "direction": direction}
    small = node("DynamicQuantizeLSTM", f"x w0 r0 B {more} w1 w2 r1 r2", "y yh yc", "com.microsoft", **attrs)
    plain = node("LSTM", f"x w r B {more}", "y yh yc", **attrs)
    nets = []
    for at, (one, tensors) in enumerate(((small, bytes_held), (plain, wide))):
        (folder / str(at)).mkdir()
        nets.append(opened(model(Graph([one], inputs, outputs, held + tensors), 14, domains=["com.microsoft"]), folder / str(at)))
    return nets[0], nets[1], {"x": x}


@pytest.mark.parametrize("extra", [False, True], ids=["plain", "lengths, states and peepholes"])
@pytest.mark.parametrize(("direction", "by_channel"), [("forward", False), ("reverse", True), ("bidirectional", False)])
def test_it_is_the_lstm_of_its_weights(direction: str, by_channel: bool, extra: bool, tmp_path: Path) -> None:
    small, plain, feed = _networks(tmp_path, direction, by_channel, extra)
    want = plain.run(feed)
    for name, got in small.run(feed).items():
        np.testing.assert_allclose(got, want[name], rtol=1e-5, atol=1e-6)


def test_it_is_as_onnxruntime_computes_it_and_rows_stay_independent(tmp_path: Path) -> None:
    small, _, feed = _networks(tmp_path, "bidirectional", False, False)
    last = small.run(feed)["yh"]
    np.testing.assert_allclose(last.reshape(-1), ONNXRUNTIME, atol=0.02)
    beside = feed["x"].copy()
    beside[:, 1] *= 1000.0
    np.testing.assert_allclose(small.run({"x": beside})["yh"][:, 0], last[:, 0], rtol=1e-6)


def test_a_clip_bounds_the_operands_of_activations_but_for_the_cell(tmp_path: Path) -> None:
    clip, byte = 0.4, np.full((1, 1, 4), 255, "uint8")
    scales = [np.full(1, 1 / 127, "float32"), np.array([128], "uint8")]
    held = [
        tensor("w0", byte),
        tensor("r0", np.full((1, 1, 4), 128, "uint8")),
        *(tensor(f"{kind}{at + 1}", part) for kind in "wr" for at, part in enumerate(scales)),
    ]
    op = node("DynamicQuantizeLSTM", "x w0 r0 _ _ _ _ _ w1 w2 r1 r2", "y yh yc", "com.microsoft", hidden_size=1, direction="forward", clip=clip)
    outputs = [value(n, "float32", None) for n in ("y", "yh", "yc")]
    net = opened(model(Graph([op], [value("x", "float32", ["time", 1, 1])], outputs, held), 14, domains=["com.microsoft"]), tmp_path)
    results = net.run({"x": np.full((6, 1, 1), 5.0, "float32")})
    gate, new, cell = 1.0 / (1.0 + np.exp(-clip)), np.tanh(clip), 0.0
    for y in results["y"].reshape(-1):
        cell = gate * cell + gate * new
        np.testing.assert_allclose(y, gate * np.tanh(cell), rtol=1e-5)
    assert cell > clip
    np.testing.assert_allclose(results["yc"].reshape(-1), cell, rtol=1e-5)
