"""Made-up buffers of training steps: activations kept for backward, skips, gradients, workspace; and the files of hard instances."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt

Ints = npt.NDArray[np.int64]
HARD = Path(__file__).parents[1] / "memory" / "minimalloc"


def hard(letter: str) -> tuple[Ints, Ints, Ints]:
    table = np.loadtxt(HARD / f"{letter}.1048576.csv", delimiter=",", skiprows=1, dtype=np.int64)
    return table[:, 1], table[:, 2], table[:, 3]


def network(layers: int, seed: int = 0) -> tuple[Ints, Ints, Ints]:
    """About four buffers a layer, shuffled."""
    chance = np.random.default_rng(seed)
    width, step = 131072, 0
    forward: list[tuple[int, int, int, bool]] = []
    for _ in range(layers):
        if chance.random() < 0.05:
            width = max(4096, width // 2 if chance.random() < 0.6 else width * 2)
        forward.append((step, int(width * chance.choice([1, 1, 1, 2, 4, 0.25])), int(chance.integers(1, 64)) * 4096, chance.random() < 0.5))
        step += int(chance.integers(1, 3))
    last = step + 2 * layers
    rows: list[tuple[int, int, int]] = []
    for i, (at, size, weight, kept) in enumerate(forward):
        back = step + 2 * (layers - 1 - i)
        reader = forward[min(i + int(chance.integers(1, 4)), layers - 1)][0] + 1
        rows.append((at, back + 1 if kept else max(reader, at + 1), size))
        rows.append((back, back + int(chance.integers(2, 5)), size))
        rows.append((at, at + 1, int(chance.choice([4, 64, 1024]))))
        for when in (at, back):
            if chance.random() < 0.3:
                rows.append((when, when + 1, int(size * chance.choice([0.1, 1, 3]))))
        if chance.random() < 0.6:
            rows.append((back + 1, last + 1 if chance.random() < 0.8 else back + 3, weight))
    table = np.array(rows, np.int64)[chance.permutation(len(rows))]
    return table[:, 0], table[:, 1], table[:, 2]
