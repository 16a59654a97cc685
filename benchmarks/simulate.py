"""Three networks that no machine here could train, described and not run: what training takes on 8 to 4,096 ranks, and what holds it up.

    python benchmarks/simulate.py [--networks "resnet50 transformer recommender"] [--device 150TFLOPS:2TB/s] [--bandwidth 200Gb/s]
        [--latency 5us] [--within 80GB] [--plot ranks.png]

The device is a calibration file or rates; each rank has one. Every step goes through an event queue with stragglers; equal seeds give equal
figures. Nothing is allocated: a table of 10^9 rows is a line of the description.
"""

from __future__ import annotations

import argparse
import sys
import time
from collections.abc import Callable
from typing import Any

import workloads
from rich.console import Console

import foreshape as fs
from foreshape import layer
from foreshape.apps.cli.ranks import simulation_table
from foreshape.compiler.cost.draw import draw_simulation
from foreshape.compiler.cost.simulation import ScalingPoint, simulate


def resnet50() -> None:
    """On 224x224 images of 1,000 classes; momentum."""

    def convolution(x: fs.Variable, channels: int, size: int, stride: int = 1, activation: str | None = None) -> fs.Variable:
        h = layer.conv2d(x, channels, size, stride=stride, padding=size // 2, bias=False)
        return layer.batch_norm(h, activation=activation)

    x, label = layer.data("image", shape=["batch", 3, 224, 224]), layer.data("label", shape=["batch"], dtype="int64")
    h = layer.pool2d(convolution(x, 64, 7, 2, "relu"), 3, stride=2, padding=1)
    for _, _, width, stride, shortcut in workloads.bottlenecks():
        within = convolution(convolution(h, width, 1, activation="relu"), width, 3, stride, "relu")
        h = layer.relu(convolution(within, 4 * width, 1) + (convolution(h, 4 * width, 1, stride) if shortcut else h))
    logits = layer.fc(layer.reduce_mean(h, [2, 3]), 1000)
    fs.optimizer.Momentum(0.1, 0.9).minimize(layer.mean(layer.softmax_with_cross_entropy(logits, label)))


def transformer(layers: int = 24, width: int = 2048, heads: int = 16, words: int = 50_257, time: int = 1024) -> None:
    """1.3 billion parameters: 24 layers of width 2,048 over 1,024 words of a vocabulary of 50,257; Adam."""
    ids = layer.data("ids", shape=["batch", time], dtype="int64")
    following = layer.data("following", shape=["batch", time, 1], dtype="int64")
    h = layer.embedding(ids, [words, width])

    def split(x: fs.Variable) -> fs.Variable:
        return layer.transpose(layer.reshape(x, [0, 0, heads, width // heads]), [0, 2, 1, 3])

    for _ in range(layers):
        x = layer.layer_norm(h, begin_norm_axis=2)
        q, k, v = (split(layer.fc(x, width, flatten_last=1)) for _ in "qkv")
        weights = layer.softmax(layer.matmul(q * (width // heads) ** -0.5, k, transpose_y=True))
        mixed = layer.reshape(layer.transpose(layer.matmul(weights, v), [0, 2, 1, 3]), [0, 0, width])
        h = h + layer.fc(mixed, width, flatten_last=1)
        x = layer.layer_norm(h, begin_norm_axis=2)
        h = h + layer.fc(layer.fc(x, 4 * width, flatten_last=1, activation="gelu"), width, flatten_last=1)
    logits = layer.fc(layer.layer_norm(h, begin_norm_axis=2), words, flatten_last=1)
    fs.optimizer.Adam(1e-4).minimize(layer.mean(layer.softmax_with_cross_entropy(logits, following)))


def recommender(rows: int = 10**9, width: int = 64, fields: int = 26) -> None:
    """A table of 10^9 rows, of which each example has 26, and a perceptron on them; Adagrad."""
    ids, dense = layer.data("ids", shape=["batch", fields], dtype="int64"), layer.data("dense", shape=["batch", 13])
    label = layer.data("clicked", shape=["batch", 1])
    found = layer.reshape(layer.embedding(ids, [rows, width], is_sparse=True), [0, fields * width])
    h = layer.concat([found, layer.fc(dense, width, activation="relu")], axis=1)
    for size in (1024, 512, 256):
        h = layer.fc(h, size, activation="relu")
    fs.optimizer.Adagrad(0.01).minimize(layer.mean(layer.sigmoid_cross_entropy_with_logits(layer.fc(h, 1), label)))


NETWORKS: dict[str, tuple[Callable[[], None], str, int, tuple[Callable[[], Any], ...]]] = {
    "resnet50": (resnet50, "ResNet-50", 64, (fs.data_parallel,)),
    "transformer": (transformer, "transformer of 1.3 billion parameters", 2, (fs.data_parallel, fs.shard_parameters)),
    "recommender": (recommender, "recommender with a table of 10^9 rows", 4096, (fs.data_parallel, fs.split_tables)),
}
"""Name -> (what describes it, what it is called, the batch of a rank, the strategies that are tried)."""


def described(build: Callable[[], None]) -> fs.Program:
    """The training program of a network."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        build()
    return program


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--networks", default=" ".join(NETWORKS))
    parser.add_argument("--device", default="150TFLOPS:2TB/s")
    parser.add_argument("--bandwidth", default="200Gb/s")
    parser.add_argument("--latency", default="5us")
    parser.add_argument("--tree", action=argparse.BooleanOptionalAction, default=True, help="sums may go by trees, as NCCL's do, and not by rings alone")
    parser.add_argument("--within", default="80GB")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--plot")
    chosen = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=160)
    network = fs.Network.of(chosen.bandwidth, chosen.latency, chosen.tree)
    drawn: list[tuple[str, list[ScalingPoint]]] = []
    for name in chosen.networks.split():
        build, words, batch, strategies = NETWORKS[name]
        for strategy in strategies:
            at = time.perf_counter()
            plan = fs.plan(described(build), ranks=8, batch=8 * batch, network=network, device=chosen.device, strategies=[strategy()])
            points = simulate(plan, batch_per_rank=batch, within=chosen.within, seed=chosen.seed)
            console.print(simulation_table(points, f"{words}, {plan.name}, {batch:,} examples for each rank; {plan.device}; {network}"))
            console.print(f"described, planned and simulated in {time.perf_counter() - at:.1f} s")
            drawn.append((f"{words}, {plan.name}", points))
    if chosen.plot:
        draw_simulation(drawn, chosen.plot)


if __name__ == "__main__":
    main()
