"""Trains a table that is split over ranks; run as a process, one per rank: ``python large_table.py OPTIMIZER ROWS OUT``, which says what a rank held
at most."""

from __future__ import annotations

import os
import resource
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

WIDTH, STEPS = 64, 6
OPTIMIZERS = {"SGD": (lambda: fs.optimizer.SGD(0.1), 1), "Adagrad": (lambda: fs.optimizer.Adagrad(0.1), 2)}
"""Each with how many numbers it holds for one of the table: the number itself, and its state."""


def main() -> None:
    made, rows, out = OPTIMIZERS[sys.argv[1]][0], int(sys.argv[2]), sys.argv[3]
    words, label = layer.data("words", shape=[-1, 32], dtype="int64"), layer.data("label", dims=1, data_type="int64")
    found = layer.embedding(words, size=[rows, WIDTH], is_sparse=True)
    cost = layer.softmax_with_cross_entropy(layer.fc(layer.reduce_mean(found, 1), 4), label)

    def batches() -> Iterator[dict[str, Any]]:
        r = np.random.RandomState(1)
        for _ in range(STEPS):
            yield {"words": r.zipf(1.3, (256, 32)) * 7919 % rows, "label": r.randint(0, 4, (256, 1))}

    history = fs.train(cost, batches, optimizer=made(), ranks=fs.split_tables(patience=200), progress=False)
    assert history.losses[-1] < 2.0
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    Path(f"{out}.{os.environ['RANK']}").write_text(str(peak))


if __name__ == "__main__":
    main()
