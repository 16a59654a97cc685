"""Lengths of the sequences of a batch: as texts have them, and at either end of what they may be."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

BATCH = 32
LENGTHS: dict[str, Callable[[np.random.RandomState], list[int]]] = {
    "as text has them": lambda rng: np.clip(np.exp(3.6 + 0.8 * rng.standard_normal(BATCH)), 5, 150).astype(int).tolist(),
    "uniform": lambda rng: rng.randint(5, 90, BATCH).tolist(),
    "equal": lambda rng: [50] * BATCH,
}
