"""The workloads, as numbers: parameters and batches that every framework is given alike. numpy only.

A step takes host arrays and returns its loss as a Python float: feed, forward, backward, update, fetch. Step ``i`` uses
batch ``i mod len(data)``. `REFERENCE` has the losses that each must reproduce.

- W1: linear 64-64-64-10, relu between; batch 32; SGD 0.1. All overhead.
- W2: linear 784-1024-1024-10; batch 128; SGD 0.05.
- W3: four 3x3 convolutions of 64 to 128 channels on 32x32 images; batch 32; momentum 0.9, 0.01.
- W5: a bag of 32 rows of a table of 1,000,000 x 64, summed; linear 64-1; batch 256, many repeats; SGD 0.1 with a sparse gradient.
- W5b: the same with lazy Adam 1e-3 on the table and Adam 1e-3 on the rest.
- W4: embedding 5000x64, LSTM 64-128, its last state, linear 128-2; 64 ragged sequences of 5 to 200 rows; Adam 1e-3.
- W6: four encoder layers, width 512, 8 heads, feed-forward 2048; 8 sequences of 128; Adam 1e-4.
- W8: W2 with 64 batch sizes in turn.
- W9: embedding 5000x256, four encoder layers, width 256, 4 heads, feed-forward 1024, gelu, the mean over each text's words, linear 256-2; 64 ragged
  texts of 5 to 200 words; Adam 1e-4.
- TOWERS: a recommender of two towers, whose views are joined and divided: of each side 8 ids of a table of 20,000 x 64, summed, and 64 numbers,
  linear 128-512-512, relu between; both sides, linear 1024-256-1; batch 256; SGD 0.05 with sparse gradients.
- UNET: convolutions 3x3 of 16, 32 and 64 channels on 64x64 images, two on each level down and up, with the images of each level beside those that
  come up; 4 classes a pixel; batch 8; momentum 0.9, 0.01.
- R50: ResNet-50 on 96x96 images, 1,000 classes; batch 8; momentum 0.9, 0.01. For memory; it has no reference.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np


@dataclass
class Workload:
    """Parameters by name, batches, and the optimizer with its settings."""

    name: str
    kind: str
    parameters: dict[str, np.ndarray]
    data: list[tuple[np.ndarray, ...]]
    optimizer: str
    rate: float
    settings: dict[str, Any] = field(default_factory=dict)

    def with_batch(self, size: int) -> Workload:
        """The same with batches of this size: the examples that there are, again from the first where they are too few."""
        return replace(self, data=[_resized(given, size) for given in self.data])


REFERENCE = {  # step -> loss
    "W1": {0: 2.963305, 1: 2.665741, 5: 2.204206, 9: 1.914898},
    "W2": {0: 3.080581, 1: 3.368529, 5: 3.630985, 9: 1.797709},
    "W3": {0: 2.829674, 1: 2.543146, 5: 2.234649, 9: 2.209199},
    "W5": {0: 0.694142, 1: 0.691911, 5: 0.693199, 9: 0.689133},
    "W5b": {0: 0.694142, 1: 0.691825, 5: 0.693681, 9: 0.623541},  # torch's SparseAdam adds epsilon elsewhere: 1.3e-4 apart
    "W4": {0: 0.691744, 1: 0.688540, 5: 0.682814, 9: 0.681890},
    "W6": {0: 2.575119, 1: 4.663497, 5: 2.518466, 9: 2.323068},
    "W8": {0: 3.307802, 1: 4.121059, 5: 4.643183, 9: 3.159928},
    "W9": {0: 0.78796, 1: 1.727084, 5: 1.126044, 9: 0.837624},
    "TOWERS": {0: 0.788236, 1: 0.784789, 5: 0.727459, 9: 0.680159},
    "UNET": {0: 2.522453, 1: 1.727910, 5: 1.450082, 9: 1.418343},
}

GOALS = {"W4": 2.2, "W9": 3.0}
"""How many times as fast as the best variant of torch a workload is meant to be; once is required."""

CONVOLUTIONS = [(3, 64, 1), (64, 64, 1), (64, 128, 2), (128, 128, 1)]
"""(channels in, channels out, stride)"""
LEVELS = (16, 32, 64)
"""Channels of the U-Net's levels."""
STAGES = [(64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)]
"""ResNet-50's: (channels within a block, blocks, stride of the first)"""


def _he(rng: np.random.RandomState, *shape: int, fan: int) -> np.ndarray:
    return (rng.standard_normal(shape) * np.sqrt(2.0 / fan)).astype(np.float32)


def _lecun(rng: np.random.RandomState, rows: int, columns: int) -> np.ndarray:
    return (rng.standard_normal((rows, columns)) / np.sqrt(rows)).astype(np.float32)


def _zeros(*shape: int) -> np.ndarray:
    return np.zeros(shape, np.float32)


def _labelled(rng: np.random.RandomState, shape: tuple[int, ...], classes: int = 10) -> tuple[np.ndarray, np.ndarray]:
    x = rng.standard_normal(shape).astype(np.float32)
    return x, rng.randint(0, classes, shape[0]).astype(np.int64)


def _linear_stack(name: str, seed: int, sizes: list[int], batches: list[int], rate: float) -> Workload:
    rng = np.random.RandomState(seed)
    parameters: dict[str, np.ndarray] = {}
    for k, (rows, columns) in enumerate(itertools.pairwise(sizes)):
        parameters[f"w{k}"], parameters[f"b{k}"] = _he(rng, rows, columns, fan=rows), _zeros(columns)
    rng = np.random.RandomState(seed + 1)
    data = [_labelled(rng, (n, sizes[0])) for n in batches]
    return Workload(name, "stack", parameters, data, "sgd", rate, {"layers": len(sizes) - 1})


def _images() -> Workload:
    rng = np.random.RandomState(3000)
    parameters: dict[str, np.ndarray] = {}
    for k, (i, o, _) in enumerate(CONVOLUTIONS):
        parameters[f"c{k}w"], parameters[f"c{k}b"] = _he(rng, o, i, 3, 3, fan=9 * i), _zeros(o)
    parameters["fw"], parameters["fb"] = _lecun(rng, 128, 10), _zeros(10)
    rng = np.random.RandomState(3001)
    return Workload("W3", "images", parameters, [_labelled(rng, (32, 3, 32, 32)) for _ in range(4)], "momentum", 0.01, {"momentum": 0.9})


def bottlenecks() -> Iterator[tuple[str, int, int, int, bool]]:
    """ResNet-50's blocks: name, channels in, channels within (a fourth of those that come out), stride, and whether the shortcut has a convolution."""
    channels = 64
    for stage, (width, blocks, stride) in enumerate(STAGES):
        for k in range(blocks):
            yield f"s{stage}b{k}", channels, width, stride if k == 0 else 1, k == 0
            channels = 4 * width


def _residual() -> Workload:
    rng = np.random.RandomState(7000)
    p: dict[str, np.ndarray] = {}

    def convolution(name: str, i: int, o: int, size: int) -> None:
        p[f"{name}w"], p[f"{name}g"], p[f"{name}h"] = _he(rng, o, i, size, size, fan=size * size * i), np.ones(o, np.float32), _zeros(o)

    convolution("stem", 3, 64, 7)
    for name, channels, width, _, shortcut in bottlenecks():
        for n, i, o, size in (("1", channels, width, 1), ("2", width, width, 3), ("3", width, 4 * width, 1)):
            convolution(name + n, i, o, size)
        if shortcut:
            convolution(name + "s", channels, 4 * width, 1)
    p["fw"], p["fb"] = _lecun(rng, 2048, 1000), _zeros(1000)
    rng = np.random.RandomState(7001)
    return Workload("R50", "residual", p, [_labelled(rng, (8, 3, 96, 96), 1000) for _ in range(4)], "momentum", 0.01, {"momentum": 0.9})


def _resized(given: tuple[np.ndarray, ...], size: int) -> tuple[np.ndarray, ...]:
    take = np.arange(size) % len(given[-1])
    if len(given) != 3:
        return tuple(a[take] for a in given)
    rows, lengths, y = given  # ragged
    parts = np.split(rows, np.cumsum(lengths)[:-1])
    return np.concatenate([parts[k] for k in take]), lengths[take], y[take]


def _bag(name: str, optimizer: str, rate: float, height: int = 1_000_000, words: int = 32, batches: int = 8) -> Workload:
    rng = np.random.RandomState(5000)
    base = (rng.standard_normal((4096, 64)) * 0.01).astype(np.float32)
    p = {"emb": np.tile(base, (height // 4096 + 1, 1))[:height], "fw": _lecun(rng, 64, 1), "fb": _zeros(1)}
    rng = np.random.RandomState(5001)
    data = [((height * rng.random_sample((256, words)) ** 3).astype(np.int64), rng.randint(0, 2, (256, 1)).astype(np.float32)) for _ in range(batches)]
    return Workload(name, "bag", p, data, optimizer, rate)


def _ragged_text() -> Workload:
    words, width, hidden, batch = 5000, 64, 128, 64
    rng = np.random.RandomState(4000)
    bound = 1 / np.sqrt(hidden)
    p = {
        "emb": (rng.standard_normal((words, width)) * 0.1).astype(np.float32),
        "wi": rng.uniform(-bound, bound, (width, 4 * hidden)).astype(np.float32),  # the gates stand as i, f, g, o
        "wh": rng.uniform(-bound, bound, (hidden, 4 * hidden)).astype(np.float32),
        "b": rng.uniform(-bound, bound, 4 * hidden).astype(np.float32),
    }
    p["fw"], p["fb"] = _lecun(rng, hidden, 2), _zeros(2)
    return Workload("W4", "text", p, _texts(4001, words, batch), "adam", 1e-3, {"hidden": hidden})


def _texts(seed: int, words: int, batch: int) -> list[tuple[np.ndarray, ...]]:
    rng = np.random.RandomState(seed)
    data: list[tuple[np.ndarray, ...]] = []
    for _ in range(8):
        lengths = np.clip(np.exp(3.6 + 0.8 * rng.standard_normal(batch)), 5, 200).astype(np.int64)
        ids = rng.randint(0, words, lengths.sum()).astype(np.int64)
        data.append((ids, lengths, rng.randint(0, 2, batch).astype(np.int64)))
    return data


def _blocks(rng: np.random.RandomState, layers: int, width: int, inner: int, classes: int) -> dict[str, np.ndarray]:
    p: dict[str, np.ndarray] = {}
    for k in range(layers):
        for n in "qkvo":
            p[f"{k}w{n}"], p[f"{k}b{n}"] = _lecun(rng, width, width), _zeros(width)
        p[f"{k}w1"], p[f"{k}b1"] = _lecun(rng, width, inner), _zeros(inner)
        p[f"{k}w2"], p[f"{k}b2"] = _lecun(rng, inner, width), _zeros(width)
        for n in "12":
            p[f"{k}g{n}"], p[f"{k}h{n}"] = np.ones(width, np.float32), _zeros(width)
    p["fw"], p["fb"] = _lecun(rng, width, classes), _zeros(classes)
    return p


def _encoder() -> Workload:
    width, inner, layers = 512, 2048, 4
    p = _blocks(np.random.RandomState(6000), layers, width, inner, 10)
    rng = np.random.RandomState(6001)
    data = [_labelled(rng, (8, 128, width)) for _ in range(4)]
    return Workload("W6", "encoder", p, data, "adam", 1e-4, {"layers": layers, "width": width, "heads": 8, "inner": inner})


def _encoded_texts() -> Workload:
    width, inner, layers = 256, 1024, 4
    rng = np.random.RandomState(9100)
    p = _blocks(rng, layers, width, inner, 2)
    p["emb"] = (rng.standard_normal((5000, width)) * 0.1).astype(np.float32)
    return Workload("W9", "encoded texts", p, _texts(9101, 5000, 64), "adam", 1e-4, {"layers": layers, "width": width, "heads": 4, "inner": inner})


def _towers() -> Workload:
    rng = np.random.RandomState(10000)
    rows, width, inner = 20_000, 64, 512
    p: dict[str, np.ndarray] = {}
    for side in "ui":
        p[f"{side}e"] = (rng.standard_normal((rows, width)) * 0.1).astype(np.float32)
        for k, size in enumerate((2 * width, inner)):
            p[f"{side}w{k}"], p[f"{side}b{k}"] = _he(rng, size, inner, fan=size), _zeros(inner)
    for k, (i, o) in enumerate(((2 * inner, 256), (256, 1))):
        p[f"w{k}"], p[f"b{k}"] = _lecun(rng, i, o), _zeros(o)
    rng = np.random.RandomState(10001)
    ids, numbers, clicked = (lambda: rng.randint(0, rows, (256, 8))), (lambda: rng.standard_normal((256, width)).astype(np.float32)), (256, 1)
    data = [(ids(), numbers(), ids(), numbers(), rng.randint(0, 2, clicked).astype(np.float32)) for _ in range(4)]
    return Workload("TOWERS", "towers", p, data, "sgd", 0.05)


def unet() -> Iterator[tuple[str, int, int, int]]:
    """The U-Net's convolutions: name, channels in and out, and the size of the window; 2 for transposed ones, which double the images."""
    before = 3
    for k, channels in enumerate(LEVELS):
        yield f"d{k}a", before, channels, 3
        yield f"d{k}b", channels, channels, 3
        before = channels
    for k, channels in reversed(list(enumerate(LEVELS[:-1]))):
        yield f"u{k}t", before, channels, 2
        yield f"u{k}a", 2 * channels, channels, 3
        yield f"u{k}b", channels, channels, 3
        before = channels
    yield "head", before, 4, 1


def _unet() -> Workload:
    rng = np.random.RandomState(11000)
    p: dict[str, np.ndarray] = {}
    for name, i, o, size in unet():
        p[f"{name}w"], p[f"{name}b"] = _he(rng, *((i, o) if size == 2 else (o, i)), size, size, fan=i * (1 if size == 2 else size * size)), _zeros(o)
    rng = np.random.RandomState(11001)
    data = [(rng.standard_normal((8, 3, 64, 64)).astype(np.float32), rng.randint(0, 4, (8, 64, 64))) for _ in range(4)]
    return Workload("UNET", "unet", p, data, "momentum", 0.01, {"momentum": 0.9})


def load(name: str, height: int = 1_000_000) -> Workload:
    """The workload of this name; ``height``: of the table of W5 and W5b."""
    if name == "W1":
        return _linear_stack("W1", 1000, [64, 64, 64, 10], [32] * 4, 0.1)
    if name == "W2":
        return _linear_stack("W2", 2000, [784, 1024, 1024, 10], [128] * 4, 0.05)
    if name == "W8":
        sizes = 32 + np.random.RandomState(8002).permutation(192)[:64]
        return _linear_stack("W8", 8000, [784, 1024, 1024, 10], [int(s) for s in sizes], 0.05)
    if name in ("W5", "W5b"):
        return _bag(name, *{"W5": ("sgd", 0.1), "W5b": ("lazy adam", 1e-3)}[name], height)
    return {"W3": _images, "W4": _ragged_text, "W6": _encoder, "W9": _encoded_texts, "R50": _residual, "TOWERS": _towers, "UNET": _unet}[name]()
