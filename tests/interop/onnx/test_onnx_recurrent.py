"""ONNX's LSTM, GRU and RNN beside their formulas in numpy: by `rnn`, written out, and in a loop over an open time."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.onnx_writer import Graph, model, node, opened, tensor, value

import foreshape as fs

T, B, F, H = 4, 3, 2, 3
GATES = {"LSTM": 4, "GRU": 3, "RNN": 1}


def sigmoid(x: Any) -> Any:
    return 1 / (1 + np.exp(-x))


def wanted(kind: str, x: Any, w: Any, r: Any, b: Any, lengths: Any, h: Any, c: Any, p: Any, reverse: bool, a: dict[str, Any]) -> Any:
    """One direction, by the formulas of the specification: the hidden states [time, batch, hidden], and the last states."""
    limit = a.get("clip", np.inf)
    held = lambda v: np.clip(v, -limit, limit)  # noqa: E731
    out, wb, rb = np.zeros((len(x), B, H)), b[: GATES[kind] * H], b[GATES[kind] * H :]
    for t in reversed(range(len(x))) if reverse else range(len(x)):
        if kind == "RNN":
            new, cell = a.get("f", np.tanh)(held(x[t] @ w.T + h @ r.T + wb + rb)), c
        elif kind == "LSTM":
            i, o, f, g = np.split(x[t] @ w.T + h @ r.T + wb + rb, 4, 1)
            pi, po, pf = np.split(p, 3)
            i, f = sigmoid(held(i + pi * c)), sigmoid(held(f + pf * c))
            f = 1 - i if a.get("input_forget") else f
            cell = f * c + i * np.tanh(held(g))
            new = sigmoid(held(o + po * cell)) * np.tanh(held(cell))
        else:
            xz, xr, xh = np.split(x[t] @ w.T + wb, 3, 1)
            hz, hr, _ = np.split(h @ r.T + rb, 3, 1)
            z, gate, last, lb = sigmoid(held(xz + hz)), sigmoid(held(xr + hr)), r[2 * H :], rb[2 * H :]
            inner = gate * (h @ last.T + lb) if a.get("linear_before_reset") else (gate * h) @ last.T + lb
            new, cell = (1 - z) * np.tanh(held(xh + inner)) + z * h, c
        inside = (t < lengths)[:, None]
        out[t] = np.where(inside, new, 0)
        h, c = np.where(inside, new, h), np.where(inside, cell, c)
    return out, h, c


@pytest.mark.parametrize(
    ("kind", "direction", "given", "more"),
    [
        ("LSTM", "bidirectional", "constants", {"lengths": True}),
        ("LSTM", "reverse", "fed", {}),
        ("LSTM", "reverse", "constants", {"lengths": True}),
        ("LSTM", "forward", "constants", {"peepholes": True, "clip": 0.4, "input_forget": 1}),
        ("LSTM", "bidirectional", "open", {"peepholes": True, "lengths": True}),
        ("GRU", "bidirectional", "constants", {"linear_before_reset": 1}),
        ("GRU", "forward", "fed", {"linear_before_reset": 1, "layout": 1}),
        ("GRU", "bidirectional", "constants", {"lengths": True}),
        ("GRU", "forward", "open", {"linear_before_reset": 1, "clip": 0.3}),
        ("RNN", "forward", "fed", {}),
        ("RNN", "bidirectional", "constants", {"activations": "Relu"}),
        ("RNN", "reverse", "open", {"activations": "Sigmoid"}),
    ],
)
def test_a_net_is_as_its_formulas(kind: str, direction: str, given: str, more: dict[str, Any], tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    d, g = 2 if direction == "bidirectional" else 1, GATES[kind]
    made = lambda *dims: rng.standard_normal(dims).astype("float32")  # noqa: E731
    x, w, r, b, h, c = made(T, B, F), made(d, g * H, F), made(d, g * H, H), made(d, 2 * g * H), made(d, B, H), made(d, B, H)
    p = made(d, 3 * H) if "peepholes" in more else np.zeros((d, 3 * H), "float32")
    lengths = np.int32([2, T, 0]) if "lengths" in more else np.int32([T] * B)
    attributes = {k: v for k, v in more.items() if k in ("clip", "input_forget", "linear_before_reset", "layout")}
    name = more.get("activations")
    if name:
        attributes |= {"activations": [name] * d} if d > 1 else {"activations": [name]}
    batch_first = bool(more.get("layout"))
    turned = (lambda v: v.swapaxes(0, 1)) if batch_first else (lambda v: v)
    feeds = {"x": turned(x), "h": turned(h), "w": w, "r": r, "b": b}
    names = ["x", "w", "r", "b", "l" if "lengths" in more else "_", "h"]
    if "lengths" in more:
        feeds["l"] = lengths
    if kind == "LSTM":
        feeds["c"] = c
        names += ["c"]
        if "peepholes" in more:
            feeds["p"] = p
            names += ["p"]
    held = () if given == "fed" else ("w", "r", "b", "p")
    fed = [value(n, str(v.dtype), ["time", *v.shape[1:]] if n == "x" and given == "open" else v.shape) for n, v in feeds.items() if n not in held]
    tensors = [tensor(n, v) for n, v in feeds.items() if n in held]
    results = "y last cell" if kind == "LSTM" else "y last"
    made_node = node(kind, " ".join(names), results, hidden_size=H, direction=direction, **attributes)
    graph = Graph([made_node], fed, [value(n, "float32", None) for n in results.split()], tensors)
    net = opened(model(graph), tmp_path)
    got = net.run({n: v for n, v in feeds.items() if n not in held})
    options = attributes | ({"f": {"Relu": lambda v: np.maximum(v, 0), "Sigmoid": sigmoid}[name]} if name else {})
    each = [wanted(kind, x, w[k], r[k], b[k], lengths, h[k], c[k], p[k], direction == "reverse" or k == 1, options) for k in range(d)]
    y, last = np.stack([e[0] for e in each], 1), np.stack([e[1] for e in each])
    assert np.allclose(got["y"], y.transpose(2, 0, 1, 3) if batch_first else y, atol=1e-5)
    assert np.allclose(got["last"], turned(last), atol=1e-5)
    if kind == "LSTM":
        assert np.allclose(got["cell"], np.stack([e[2] for e in each]), atol=1e-5)
    written = [op.type for op in net.program.global_block.ops]
    assert ("rnn" in written) == (not {"clip", "peepholes"} & {*more} and not (kind == "GRU" and "linear_before_reset" not in more) and name != "Sigmoid")
    assert ("while" in written) == (given == "open")


def test_weights_of_the_file_are_parameters_with_the_gradients_of_torch(tmp_path: Path) -> None:
    import torch

    lstm = torch.nn.LSTM(20, 4, bias=False)
    order = [0, 3, 1, 2]  # torch's i, f, g, o as i, o, f, g
    w, r = (p.detach().view(4, 4, -1)[order].reshape(1, 16, -1).numpy() for p in (lstm.weight_ih_l0, lstm.weight_hh_l0))
    graph = Graph([node("LSTM", "x w r", "y", hidden_size=4)], [value("x", "float32", ["t", "b", 20])], [value("y", "float32", None)],
                  [tensor("w", w), tensor("r", r)])  # fmt: skip
    net = opened(model(graph), tmp_path)
    assert str(net.fetches[0].spec) == "f32[t, 1, b, 4]"
    with fs.program_guard(net.program):
        loss = fs.layer.reduce_sum(fs.layer.square(net.fetches[0]))
        gradients = {p.name: g for p, g in fs.append_backward(loss)}
    x = np.random.default_rng(5).standard_normal((T, B, 20)).astype("float32")
    seen = fs.Executor().run(net.program, {"x": x}, [gradients["w.0"], gradients["r.0"]], scope=net.scope)
    lstm(torch.from_numpy(x))[0].square().sum().backward()
    for got, weight in zip(seen, (lstm.weight_ih_l0, lstm.weight_hh_l0), strict=True):
        assert weight.grad is not None and np.allclose(got, weight.grad.numpy(), atol=1e-4)


def test_activations_that_are_not_known_are_refused_by_name(tmp_path: Path) -> None:
    graph = Graph([node("RNN", "x w r", "y", hidden_size=H, activations=["Wonder"])],
                  [value("x", "float32", [T, B, F]), value("w", "float32", [1, H, F]), value("r", "float32", [1, H, H])],
                  [value("y", "float32", None)])  # fmt: skip
    net = opened(model(graph), tmp_path)
    with pytest.raises(fs.ForeshapeError, match=r"RNN \(.*\) cannot be imported: the activation Wonder"):
        net.run({"x": np.zeros((T, B, F), "float32"), "w": np.zeros((1, H, F), "float32"), "r": np.zeros((1, H, H), "float32")})
