"""What a step on a large table costs: against the table's height, which must not count, and against the words, which must count linearly.

    python benchmarks/tables.py [--rows 8192] [--tallest 10000000] [--repeats 40]

Bags of a table of width 64 are summed and trained, by SGD and by lazy Adam. A time is the shortest of its repeats, each of fresh ids,
since what else the machine does only adds to it.
"""

from __future__ import annotations

import argparse
import gc
import sys
import time
from typing import Any

import numpy as np
from rich.console import Console
from rich.table import Table

import foreshape as fs
from foreshape import layer

WIDTH, BATCH = 64, 256
OPTIMIZERS: dict[str, Any] = {"SGD": lambda: fs.optimizer.SGD(0.1), "lazy Adam": lambda: fs.optimizer.Adam(1e-3, lazy_mode=True)}


class Net:
    """Ragged bags of a table, a linear layer and a loss on it, trained."""

    def __init__(self, height: int, optimizer: str) -> None:
        self.main, startup = fs.Program(), fs.Program()
        with fs.program_guard(self.main, startup):
            words = layer.data("words", shape=["words"], dtype="int64", lod_level=1)
            bags = layer.embedding_bag(words, [height, WIDTH], weight=layer.Uniform(-0.01, 0.01))
            label = layer.data("label", shape=["batch", 1])
            self.loss = layer.mean(layer.sigmoid_cross_entropy_with_logits(layer.fc(bags, 1), label))
            OPTIMIZERS[optimizer]().minimize(self.loss)
        self.height, self.rng = height, np.random.RandomState(0)
        self.executor, self.scope = fs.Executor(), fs.Scope()
        self.executor.run(startup, scope=self.scope)

    def seconds(self, words: int, repeats: int) -> float:
        """The shortest step on bags with so many words, after two that are not counted."""
        times: list[float] = []
        for _ in range(repeats + 2):
            cuts = np.sort(self.rng.randint(0, words + 1, BATCH - 1))
            lengths = np.diff(np.concatenate([[0], cuts, [words]]))
            feed = {"words": fs.LoDTensor(self.rng.randint(0, self.height, words), [lengths]), "label": np.ones((BATCH, 1), np.float32)}
            at = time.perf_counter()
            self.executor.run(self.main, feed, self.loss, self.scope)
            times.append(time.perf_counter() - at)
        return min(times[2:])

    def step(self) -> Any:
        return self.executor.step(self.main, self.loss)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rows", type=int, default=8192, help="words in a batch where the height is varied")
    parser.add_argument("--tallest", type=int, default=10_000_000)
    parser.add_argument("--repeats", type=int, default=40)
    chosen = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    heights = [h for h in (10**4, 10**5, 10**6, 10**7) if h <= chosen.tallest]
    tall = Table("optimizer", "height", "table MiB", "ms per step", "times the lowest table's", title=f"{chosen.rows} words in {BATCH} bags, width {WIDTH}")
    for optimizer in OPTIMIZERS:
        first = 0.0
        for height in heights:
            net = Net(height, optimizer)
            seconds = net.seconds(chosen.rows, chosen.repeats)
            first = first or seconds
            tall.add_row(optimizer, f"{height:,}", f"{height * WIDTH * 4 / 2**20:.0f}", f"{seconds * 1e3:.3f}", f"{seconds / first:.2f}")
            del net
            gc.collect()
        tall.add_section()
    console.print(tall)
    long = Table("optimizer", "words", "ms per step", "nanoseconds per word", "steps compiled", title=f"{BATCH} bags of a table of 1,000,000 rows")
    for optimizer in OPTIMIZERS:
        net = Net(min(10**6, chosen.tallest), optimizer)
        compiled = {id(net.step())}
        for words in (1024, 4096, 16384, 65536):
            seconds = net.seconds(words, chosen.repeats)
            compiled.add(id(net.step()))
            long.add_row(optimizer, f"{words:,}", f"{seconds * 1e3:.3f}", f"{seconds / words * 1e9:.0f}", str(len(compiled)))
        long.add_section()
    console.print(long)


if __name__ == "__main__":
    main()
