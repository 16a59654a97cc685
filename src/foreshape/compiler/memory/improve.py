"""Layouts improved by repetition: a buffer that does not fit is placed earlier the next time.

Only the order of placement changes ("squeaky wheel" optimization, Joslin and Clements 1999). A pass ends at the first buffer that does not fit below the best
height so far. It moves towards the front, and a little chance keeps the order from running in circles. After some passes without gain the order starts again
from the best layout, bottom up.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from foreshape.compiler.memory.greedy import height, place
from foreshape.compiler.memory.sections import Buffers, Ints

_PATIENCE = 40


def improve(buffers: Buffers, order: Ints, best: Ints, target: int, placements: int, go_on: Callable[[], bool], seed: int = 0) -> Ints:
    """Return the best offsets reached with about so many placements from this order, ended early at the target or where `go_on` says no."""
    chance = np.random.default_rng(seed)
    count, since = len(order), 0
    reached = height(buffers, best)
    while placements > 0 and reached > target and go_on():
        offsets, placed = place(buffers, order, below=reached)
        placements -= placed + count // 20
        if placed == count:
            best, since = offsets, 0
            reached = height(buffers, best)
            order = np.argsort(best, kind="stable")
            continue
        since += 1
        if since % _PATIENCE == 0:
            order = np.argsort(best + buffers.size * (since // _PATIENCE % 2), kind="stable")
            continue
        target_place = int(placed * chance.uniform(0.0, 0.9))
        order = np.concatenate((order[:target_place], order[placed : placed + 1], order[target_place:placed], order[placed + 1 :]))
        first, second = chance.integers(0, count, 2)
        order[first], order[second] = order[second], order[first]
    return best
