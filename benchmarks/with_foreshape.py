"""The workloads in Foreshape: ``build(workload, variant)`` gives a `Training`, whose call is ``step(i) -> loss``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import numpy as np
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
        return layer.fc(x, size, activation=activation, flatten_last=1, weight=f"{k}w{n}", bias=f"{k}b{n}")

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


def _encoded_texts(w: workloads.Workload) -> fs.Variable:
    width, heads, inner = w.settings["width"], w.settings["heads"], w.settings["inner"]
    h = layer.embedding(layer.data("x", shape=[-1], dtype="int64", lod_level=1), w.parameters["emb"].shape, weight="emb")

    def dense(x: fs.Variable, size: int, k: int, n: str, activation: str | None = None) -> fs.Variable:
        return layer.fc(x, size, activation=activation, weight=f"{k}w{n}", bias=f"{k}b{n}")

    def norm(x: fs.Variable, k: int, n: str) -> fs.Variable:
        return layer.layer_norm(x, epsilon=1e-5, weight=f"{k}g{n}", bias=f"{k}h{n}")

    for k in range(w.settings["layers"]):
        mixed = layer.sequence_attention(*(dense(h, width, k, n) for n in "qkv"), heads=heads)
        h = norm(h + dense(mixed, width, k, "o"), k, "1")
        h = norm(h + dense(dense(h, inner, k, "1", "gelu"), width, k, "2"), k, "2")
    return layer.fc(layer.sequence_pool(h, "average"), 2, weight="fw", bias="fb")


def _bag(w: workloads.Workload) -> fs.Variable:
    ids = layer.data("x", shape=["batch", w.data[0][0].shape[1]], dtype="int64")
    h = layer.embedding_bag(ids, w.parameters["emb"].shape, weight="emb")
    return layer.fc(h, 1, weight="fw", bias="fb")


def _residual(w: workloads.Workload) -> fs.Variable:
    def convolution(x: fs.Variable, name: str, stride: int = 1, activation: str | None = None) -> fs.Variable:
        o, _, size, _ = w.parameters[f"{name}w"].shape
        h = layer.conv2d(x, o, size, stride=stride, padding=size // 2, weight=f"{name}w", bias=False)
        return layer.batch_norm(h, activation=activation, weight=f"{name}g", bias=f"{name}h")

    x = layer.data("x", shape=["batch", *w.data[0][0].shape[1:]])
    h = layer.pool2d(convolution(x, "stem", 2, "relu"), 3, stride=2, padding=1)
    for name, _, _, stride, shortcut in workloads.bottlenecks():
        within = convolution(convolution(h, name + "1", activation="relu"), name + "2", stride, "relu")
        h = layer.relu(convolution(within, name + "3") + (convolution(h, name + "s", stride) if shortcut else h))
    return layer.fc(layer.reduce_mean(h, [2, 3]), 1000, weight="fw", bias="fb")


def _towers(w: workloads.Workload) -> fs.Variable:
    def dense(x: fs.Variable, name: str, k: int, activation: str | None) -> fs.Variable:
        return layer.fc(x, w.parameters[f"{name}w{k}"].shape[1], activation=activation, weight=f"{name}w{k}", bias=f"{name}b{k}")

    def tower(side: str, ids: np.ndarray, numbers: np.ndarray) -> fs.Variable:
        words = layer.embedding_bag(layer.data(f"{side}ids", ["batch", ids.shape[1]], "int64"), w.parameters[f"{side}e"].shape, weight=f"{side}e")
        h = layer.concat([words, layer.data(f"{side}x", ["batch", numbers.shape[1]])], axis=1)
        return dense(dense(h, side, 0, "relu"), side, 1, None)

    users, user, items, item, _ = w.data[0]
    return dense(dense(layer.concat([tower("u", users, user), tower("i", items, item)], axis=1), "", 0, "relu"), "", 1, None)


def _unet(w: workloads.Workload) -> fs.Variable:
    h = layer.data("x", shape=["batch", *w.data[0][0].shape[1:]])
    beside: dict[str, fs.Variable] = {}
    for name, _, channels, size in workloads.unet():
        if size == 2:
            h = layer.conv2d_transpose(h, channels, 2, stride=2, weight=f"{name}w", bias=f"{name}b")
            h = layer.concat([beside[f"d{name[1]}b"], h], axis=1)
            continue
        if name in ("d1a", "d2a"):
            h = layer.pool2d(h, 2, stride=2)
        activation = "relu" if size == 3 else None
        h = beside[name] = layer.conv2d(h, channels, size, padding=size // 2, activation=activation, weight=f"{name}w", bias=f"{name}b")
    return h


KINDS = {
    "stack": _stack, "images": _images, "text": _text, "encoder": _encoder, "bag": _bag, "residual": _residual, "towers": _towers, "unet": _unet,
    "encoded texts": _encoded_texts,
}  # fmt: skip


class Training:
    """A workload described and differentiated, with an executor and a scope with its parameters; called with ``i`` it does step ``i``."""

    def __init__(self, w: workloads.Workload, device: str = "cpu", precision: Literal["fp32", "bf16"] = "fp32") -> None:
        self.w, self.device = w, device
        self.main, self.startup = fs.Program(), fs.Program()
        with fs.program_guard(self.main, self.startup):
            logits = KINDS[w.kind](w)
            if w.kind in ("bag", "towers"):
                self.loss = layer.mean(layer.sigmoid_cross_entropy_with_logits(logits, layer.data("y", shape=["batch", 1])))
            else:
                label = layer.data("y", shape=["batch", *w.data[0][-1].shape[1:]], dtype="int64")
                self.loss = layer.mean(layer.softmax_with_cross_entropy(logits, label, axis=1))
            optimizers: dict[str, Callable[[], Any]] = {
                "sgd": lambda: fs.optimizer.SGD(w.rate),
                "momentum": lambda: fs.optimizer.Momentum(w.rate, w.settings["momentum"]),
                "adam": lambda: fs.optimizer.Adam(w.rate),
                "lazy adam": lambda: fs.optimizer.Adam(w.rate, lazy_mode=True),
            }
            if precision == "fp32":
                optimizers[w.optimizer]().minimize(self.loss)
        if precision != "fp32":
            made = fs.training_program(self.loss, optimizers[w.optimizer](), precision=precision, startup=self.startup)
            self.main, self.startup = made.program, made.startup
        self.fetch = [self.loss.name]
        self.start()

    def start(self) -> None:
        """A new executor, and a scope with the first parameters."""
        self.executor, self.scope = fs.Executor(self.device), fs.Scope()
        self.executor.run(self.startup, scope=self.scope)
        for name, value in self.w.parameters.items():
            self.scope.set(name, value.T if name in ("wi", "wh") else value)  # an LSTM's weights are [out, in]

    def feed(self, i: int) -> dict[str, Any]:
        given = self.w.data[i % len(self.w.data)]
        if self.w.kind == "towers":
            return dict(zip(("uids", "ux", "iids", "ix", "y"), given, strict=True))
        x, *lengths, y = given
        return {"x": fs.LoDTensor(x, lengths) if lengths else x, "y": y}

    def __call__(self, i: int) -> float:
        return float(self.executor.run(self.main, self.feed(i), self.fetch, self.scope)[0])


def build(w: workloads.Workload, variant: str) -> Training:
    """Describe, differentiate and set the parameters; returns the step. ``variant``: "bf16" for products in 16 bits."""
    return Training(w, precision="bf16" if variant == "bf16" else "fp32")
