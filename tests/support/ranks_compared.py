"""What ranks have trained beside what one rank has: how far apart, and how far is rounding."""

from __future__ import annotations

from functools import cache
from typing import Any

import numpy as np

from support import rank_cases as cases

Values = dict[str, Any]
EXACT = 1e-11
ROUNDED = 1e-6
"""In fp32, relative to the largest number."""
AMPLIFIED = 3.0
"""Where one rank's rounding is more than that: how many times as much is still rounding."""


@cache
def one(name: str, of: str) -> Values:
    """What one rank makes, with the whole batch."""
    return cases.run(name, of)


@cache
def rounding(name: str) -> float:
    """How far what ranks make in fp32 may be from what one rank makes in fp64: by the value that one rank rounds most, since how much it
    rounds a single one is chance."""
    exact, single = one(name, "fp64"), one(name, "fp32")
    return max(ROUNDED, AMPLIFIED * max(apart(single[key], value) for key, value in exact.items()))


def of_case(found: Values, name: str, which: str = "") -> Values:
    begin = f"{name}/{which}"
    return {key.removeprefix(begin): value for key, value in found.items() if key.startswith((begin + "value", begin + "losses", begin + "figure"))}


def apart(a: np.ndarray, b: np.ndarray) -> float:
    """The largest difference, relative to the largest number of the second."""
    return float(np.abs(a - b).max() / max(np.abs(b).max(), 1e-30)) if a.size else 0.0
