"""What is fed in each run, and what the parameters start with; as arrays of float64, the same for all that run the program."""

from __future__ import annotations

from functools import lru_cache
from typing import Any, NamedTuple

import numpy as np

from drawn.program import Program


class Feed(NamedTuple):
    """The arrays by input's name, and how long the sequences of ragged ones are."""

    arrays: dict[str, Any]
    lengths: dict[str, list[int]]


@lru_cache(4)
def feeds(program: Program) -> list[Feed]:
    """One for each run. Real numbers are multiples of 1/1024, which single precision holds."""
    out: list[Feed] = []
    for at, batch in enumerate(program.batches):
        arrays: dict[str, Any] = {}
        lengths: dict[str, list[int]] = {}
        for i in program.inputs:
            rng = np.random.default_rng([program.numbers, at, i.number])
            if i.ragged and i.shape[0] not in lengths:
                of = np.random.default_rng([program.numbers, at, int(str(i.shape[0])[1:])]).integers(0, 4, batch).tolist()
                lengths[str(i.shape[0])] = of if sum(of) else [*of[:-1], 2]
            shape = (sum(lengths[str(i.shape[0])]) if i.ragged else batch, *i.shape[1:])
            if not i.ragged and isinstance(i.shape[0] if i.shape else 1, int):
                shape = i.shape
            if i.below is not None:
                arrays[i.name] = np.asarray(rng.integers(0, i.below, shape))
            elif i.coarse:
                arrays[i.name] = np.asarray(rng.integers(-2, 3, shape) / 2)
            else:
                arrays[i.name] = np.asarray(rng.integers(-1024, 1025, shape) / 1024)
        out.append(Feed(arrays, lengths))
    return out


@lru_cache(4)
def starts(program: Program) -> dict[str, Any]:
    """The first values of the parameters."""
    out: dict[str, Any] = {}
    for name, p in program.parameters().items():
        rng = np.random.default_rng([program.numbers, int(name[1:])])
        out[name] = np.asarray(rng.integers(-1024, 1025, p.shape) / 1024 * p.start)
    return out
