"""Networks that are trained on one rank and on several, in the same way; run as a process, one per rank.

``python cases.py OUT CASE...`` trains each case with the ranks that the environment names, and lets rank 0 write losses and values.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

Case = Callable[[np.random.RandomState], tuple[Any, Any, Any, dict[str, Any]]]


def plain(r: np.random.RandomState) -> Any:
    x, y = layer.data("x", input_size=12), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.fc(x, output_size=9, activation=layer.relu)
    predicted = layer.fc(hidden, output_size=5, activation=layer.softmax)
    cost = layer.cross_entropy(predicted, y)
    data = {"x": r.rand(53, 12).astype(np.float32), "y": r.randint(0, 5, (53, 1))}
    return cost, data, fs.optimizer.Adam(0.01), {"batch_size": 10, "metrics": {"accuracy": layer.accuracy(predicted, y)}, "validation": data}


def wide(r: np.random.RandomState) -> Any:
    """Gradients that are larger than a bucket, clip by the norm of all, weight decay."""
    x, y = layer.data("x", input_size=300), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.fc(layer.fc(x, output_size=300, activation=layer.tanh), output_size=300, activation=layer.tanh)
    cost = layer.cross_entropy(layer.fc(hidden, output_size=5, activation=layer.softmax), y)
    optimizer = fs.optimizer.Momentum(0.05, 0.9, weight_decay=1e-3, clip=fs.optimizer.ClipByGlobalNorm(0.5))
    return cost, {"x": r.rand(40, 300).astype(np.float32), "y": r.randint(0, 5, (40, 1))}, optimizer, {"batch_size": 8}


def tiny_batches(r: np.random.RandomState) -> Any:
    """A last batch of one example, so that some ranks have none."""
    x, y = layer.data("x", input_size=4), layer.data("y", input_size=1)
    cost = layer.square(layer.fc(x, output_size=1) - y)
    return cost, {"x": r.rand(9, 4).astype(np.float32), "y": r.rand(9, 1).astype(np.float32)}, fs.optimizer.SGD(0.1), {"batch_size": 4}


def texts(r: np.random.RandomState) -> Any:
    """Sequences of uneven lengths: an embedding, an LSTM, a mean over words."""
    words, label = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64), layer.data("label", dims=1, data_type=fs.INT64)
    embedded = layer.embedding(words, size=[30, 8])
    state, _ = layer.lstm(embedded, 6)
    pooled = layer.sequence_pool(state, "max")
    cost = layer.cross_entropy(layer.fc(pooled, output_size=3, activation=layer.softmax), label)
    lengths = r.randint(1, 9, 22)
    rows = [r.randint(0, 30, n) for n in lengths]
    return cost, {"words": rows, "label": r.randint(0, 3, (22, 1))}, fs.optimizer.Adam(0.02), {"batch_size": 6}


def tagged(r: np.random.RandomState) -> Any:
    """A mean over the words of all texts, of which ranks have unevenly many."""
    words, label = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64), layer.data("label", shape=["words", 1], lod_level=1, dtype=fs.INT64)
    predicted = layer.fc(layer.embedding(words, size=[30, 8]), output_size=4, activation=layer.softmax)
    cost = layer.cross_entropy(predicted, label)
    lengths = r.randint(1, 9, 14)
    return cost, {"words": [r.randint(0, 30, n) for n in lengths], "label": [r.randint(0, 4, (n, 1)) for n in lengths]}, fs.optimizer.SGD(0.3), {"batch_size": 5}


def _bags(r: np.random.RandomState, optimizer: Any) -> Any:
    words, label = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64), layer.data("label", dims=1, data_type=fs.INT64)
    pooled = layer.sequence_pool(layer.embedding(words, size=[200, 6], is_sparse=True), "sum")
    cost = layer.cross_entropy(layer.fc(pooled, output_size=3, activation=layer.softmax), label)
    rows = [r.randint(0, 200, n) for n in r.randint(1, 12, 25)]
    return cost, {"words": rows, "label": r.randint(0, 3, (25, 1))}, optimizer, {"batch_size": 7}


def sparse_sgd(r: np.random.RandomState) -> Any:
    return _bags(r, fs.optimizer.SGD(0.1))


def sparse_lazy_adam(r: np.random.RandomState) -> Any:
    return _bags(r, fs.optimizer.Adam(0.02, lazy_mode=True))


def sparse_exact_adam(r: np.random.RandomState) -> Any:
    return _bags(r, fs.optimizer.Adam(0.02))


def images(r: np.random.RandomState) -> Any:
    """A convolutional network without statistics over the batch."""
    x, y = layer.data("x", shape=[-1, 1, 8, 8]), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = layer.pool2d(layer.conv2d(x, 4, 3, activation=layer.relu), 2, "max", 2)
    cost = layer.cross_entropy(layer.fc(hidden, output_size=5, activation=layer.softmax), y)
    return cost, {"x": r.rand(21, 1, 8, 8).astype(np.float32), "y": r.randint(0, 5, (21, 1))}, fs.optimizer.Adagrad(0.05), {"batch_size": 6}


CASES: dict[str, Case] = {f.__name__: f for f in (plain, wide, tiny_batches, texts, tagged, sparse_sgd, sparse_lazy_adam, sparse_exact_adam, images)}


def run(name: str, strategy: Any) -> dict[str, Any]:
    """Train one case for two epochs; the losses, the figures and the values."""
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    startup.random_seed = 7
    with fs.program_guard(main, startup):
        cost, data, optimizer, settings = CASES[name](np.random.RandomState(5))
        first = np.random.RandomState(6)
        for variable in main.global_block.vars.values():  # random numbers of a startup program depend on how values are divided
            if variable.is_parameter:
                scope.set(variable.name, (first.rand(*variable.shape) - 0.5).astype(np.float32))
        history = fs.train(cost, data, optimizer=optimizer, epochs=2, progress=False, ranks=strategy, scope=scope, startup=startup, **settings)
    out: dict[str, Any] = {f"{name}/value/{n}": scope.get(n) for n in scope.names()}
    out[f"{name}/losses"] = np.array(history.losses)
    for key in history.epochs[0]:
        if key != "seconds":
            out[f"{name}/figure/{key}"] = np.array([row[key] for row in history.epochs])
    return out


def main() -> None:
    out, strategy, *names = sys.argv[1:]
    found: dict[str, Any] = {}
    for name in names or CASES:
        found |= run(name, getattr(fs, strategy)(patience=60))
    if os.environ.get("RANK", "0") == "0" or out.endswith("all"):
        np.savez(f"{out}.{os.environ.get('RANK', '0')}", **found)


if __name__ == "__main__":
    main()
