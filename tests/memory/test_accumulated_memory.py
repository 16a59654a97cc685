"""Gradients of several batches in one update: the step that updates takes what is planned, sums and means included, each of them once."""

from __future__ import annotations

import numpy as np
import pytest
from support.measured import measure

import foreshape as fs
from foreshape import layer

NEAR = 1.02
"""How far above what is measured a plan may be."""
SMALL = 256
"""Bytes: kernels wrap Python's numbers in tensors of 4 or 8 bytes while they run."""
OPTIMIZERS = {
    "SGD": lambda: fs.optimizer.SGD(0.1),
    "Momentum": lambda: fs.optimizer.Momentum(0.1, 0.9),
    "Adam": lambda: fs.optimizer.Adam(0.1),
    "clipped": lambda: fs.optimizer.Adam(0.1, clip=fs.optimizer.ClipByGlobalNorm(1.0)),
}


@pytest.mark.quick_cases("SGD", "clipped")
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_the_peak_is_the_planned_one(optimizer: str) -> None:
    hidden = layer.fc(layer.data("x", ["batch", 300]), 200, "tanh")
    made = fs.training_program(layer.square(layer.fc(hidden, 100)), OPTIMIZERS[optimizer](), accumulate=3)
    executor, scope, feed = fs.Executor(), fs.Scope(), {"x": np.ones((16, 300), np.float32)}
    executor.run(made.startup, scope=scope)

    seen = measure(executor, made.program, feed, [made.loss.name], scope, warm=5)  # the sixth updates
    planned = fs.plan(made.program, made.loss).peak(batch=16)
    assert seen.peak - SMALL <= planned <= NEAR * seen.peak, f"planned {planned:,}, measured {seen.peak:,}"
