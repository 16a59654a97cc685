"""Sends random requests to a predictor with a bound of memory, and prints what the process took: ``bounded.py NETWORK MEMORY REQUESTS [SEED]`` in JSON."""

from __future__ import annotations

import json
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
from grown import peak

import foreshape as fs
from foreshape import layer
from foreshape.interop.bounded_model import BoundedModel
from foreshape.machine.kernels import kept_kernels
from foreshape.machine.process.pages import resident

Draw = np.random.Generator
COMPARED = 12
"""So many answers are compared with those of a predictor without a bound."""


def texts() -> tuple[fs.Variable, fs.Variable]:
    words = layer.data("words", shape=["rows"], dtype="int64", lod_level=1)
    x = layer.transformer_encoder(layer.embedding(words, [500, 64]), 2, heads=4)
    return words, layer.fc(layer.sequence_pool(x, "average"), 16)


def some_texts(draw: Draw) -> Any:
    lengths = [int(draw.integers(1, 1024 if draw.random() < 0.2 else 96)) for _ in range(int(draw.integers(1, 17)))]
    return fs.LoDTensor(draw.integers(0, 500, sum(lengths)), [lengths])


def images() -> tuple[fs.Variable, fs.Variable]:
    x = y = layer.data("x", ["batch", 3, "height", "width"])
    for channels in (16, 32):
        y = layer.relu(layer.batch_norm(layer.conv2d(y, channels, 3, padding=1)))
    return x, layer.fc(layer.reduce_mean(y, [2, 3]), 10)


def some_images(draw: Draw) -> Any:
    return draw.standard_normal((int(draw.integers(1, 9)), 3, int(draw.integers(8, 193)), int(draw.integers(8, 193))), np.float32)


NETWORKS: dict[str, tuple[Callable[[], tuple[fs.Variable, fs.Variable]], Callable[[Draw], Any]]] = {
    "texts": (texts, some_texts), "images": (images, some_images),
}  # fmt: skip


def main(name: str, memory: str, requests: int, seed: int) -> None:
    network, request = NETWORKS[name]
    counts = {"parts": 0, "refused": 0, "evictions": 0}

    def counted(owner: Any, method: str, word: str) -> None:
        function = getattr(owner, method)

        def call(*arguments: Any) -> Any:
            counts[word] += 1
            return function(*arguments)

        setattr(owner, method, call)

    counted(BoundedModel, "_run_parts", "parts")
    counted(kept_kernels.WeakKeyDictionary, "__iter__", "evictions")  # the owners are listed for nothing else
    with tempfile.TemporaryDirectory() as folder:
        with fs.program() as program:
            x, y = network()
        fs.Executor(seed=1).run(program.startup)
        path = str(Path(folder) / "network")
        fs.save_inference_model(path, [x], [y])
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # the peak is that of now
        start = resident()
        predictor = fs.Predictor(path, memory=memory, threads=1)
        answers: dict[int, Any] = {}
        for number in range(requests):
            with suppress(fs.MemoryPlanError):
                answers[number] = predictor.run(request(np.random.default_rng([seed, number])))[0]
        taken = peak() - start
        counts["refused"] = requests - len(answers)
        budget = predictor._executor.budget
        assert budget is not None
        plain = fs.Predictor(path, threads=1)
        compared = list(answers)[:: max(len(answers) // COMPARED, 1)]
        difference = max(float(np.abs(plain.run(request(np.random.default_rng([seed, n])))[0] - answers[n]).max()) for n in compared)
        print(json.dumps({"taken": taken, "weights": budget.weights, "difference": difference, **counts}))


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4]) if len(sys.argv) > 4 else 0)
