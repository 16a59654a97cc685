"""The workloads in Foreshape: ``build(workload, variant)`` gives ``step(i) -> loss``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import workloads

import foreshape as fs
from foreshape import layer


def _stack(w: workloads.Workload) -> fs.Variable:
    h = layer.data("x", shape=["batch", w.parameters["w0"].shape[0]])
    last = w.settings["layers"] - 1
    for k in range(last + 1):
        h = layer.fc(h, w.parameters[f"w{k}"].shape[1], activation="relu" if k < last else None, weight=f"w{k}", bias=f"b{k}")
    return h


def _images(w: workloads.Workload) -> fs.Variable:
    h = layer.data("x", shape=["batch", 3, 32, 32])
    for k, (_, channels, stride) in enumerate(workloads.CONVOLUTIONS):
        h = layer.conv2d(h, channels, 3, stride=stride, padding=1, activation="relu", weight=f"c{k}w", bias=f"c{k}b")
    return layer.fc(layer.reduce_mean(h, [2, 3]), 10, weight="fw", bias="fb")


def _text(w: workloads.Workload) -> fs.Variable:
    words, width = w.parameters["emb"].shape
    h = layer.embedding(layer.data("x", shape=[-1], dtype="int64", lod_level=1), [words, width], weight="emb")
    _, (last, _) = layer.lstm(h, w.settings["hidden"], input_weight="wi", hidden_weight="wh", bias="b")
    return layer.fc(layer.squeeze(last, [0]), 2, weight="fw", bias="fb")


def _encoder(w: workloads.Workload) -> fs.Variable:
    width, heads, inner = w.settings["width"], w.settings["heads"], w.settings["inner"]
    h = layer.data("x", shape=["batch", "time", width])

    def dense(x: fs.Variable, size: int, k: int, n: str, activation: str | None = None) -> fs.Variable:
        return layer.fc(x, size, activation=activation, num_flatten_dims=1, weight=f"{k}w{n}", bias=f"{k}b{n}")

    def split(x: fs.Variable) -> fs.Variable:
        return layer.transpose(layer.reshape(x, [0, 0, heads, width // heads]), [0, 2, 1, 3])

    def norm(x: fs.Variable, k: int, n: str) -> fs.Variable:
        return layer.layer_norm(x, begin_norm_axis=2, epsilon=1e-5, weight=f"{k}g{n}", bias=f"{k}h{n}")

    for k in range(w.settings["layers"]):
        q, key, value = (split(dense(h, width, k, n)) for n in "qkv")
        scores = layer.matmul(q * (width // heads) ** -0.5, key, transpose_y=True)
        mixed = layer.transpose(layer.matmul(layer.softmax(scores), value), [0, 2, 1, 3])
        h = norm(h + dense(layer.reshape(mixed, [0, 0, width]), width, k, "o"), k, "1")
        h = norm(h + dense(dense(h, inner, k, "1", "relu"), width, k, "2"), k, "2")
    return layer.fc(layer.reduce_mean(h, 1), 10, weight="fw", bias="fb")


def _bag(w: workloads.Workload) -> fs.Variable:
    ids = layer.data("x", shape=["batch", w.data[0][0].shape[1]], dtype="int64")
    h = layer.embedding_bag(ids, w.parameters["emb"].shape, weight="emb")
    return layer.fc(h, 1, weight="fw", bias="fb")


def build(w: workloads.Workload, variant: str) -> Callable[[int], float]:
    """Describe, differentiate and set the parameters; returns the step."""
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        logits = {"stack": _stack, "images": _images, "text": _text, "encoder": _encoder, "bag": _bag}[w.kind](w)
        if w.kind == "bag":
            loss = layer.mean(layer.sigmoid_cross_entropy_with_logits(logits, layer.data("y", shape=["batch", 1])))
        else:
            loss = layer.mean(layer.softmax_with_cross_entropy(logits, layer.data("y", shape=["batch"], dtype="int64")))
        optimizers: dict[str, Callable[[], Any]] = {
            "sgd": lambda: fs.optimizer.SGD(w.rate),
            "momentum": lambda: fs.optimizer.Momentum(w.rate, w.settings["momentum"]),
            "adam": lambda: fs.optimizer.Adam(w.rate),
            "lazy adam": lambda: fs.optimizer.Adam(w.rate, lazy_mode=True),
        }
        optimizers[w.optimizer]().minimize(loss)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    for name, value in w.parameters.items():
        scope.set(name, value.T if name in ("wi", "wh") else value)  # an LSTM's weights are [out, in]
    data, fetch = w.data, [loss]

    def step(i: int) -> float:
        x, *lengths, y = data[i % len(data)]
        if lengths:
            x = fs.LoDTensor(x, lengths)
        return float(executor.run(main, {"x": x, "y": y}, fetch, scope)[0])

    return step
