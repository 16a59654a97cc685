"""Figures: means of fetched values over examples, batch by batch."""

from __future__ import annotations

import math
from typing import Any

from foreshape.training.state import Sums


def mean_of_value(value: Any) -> float:
    """The mean of a fetched value, whatever its shape; 0 of none."""
    data = getattr(value, "data", value) if hasattr(value, "sequence_lengths") else value
    return float(data.mean()) if data.size else 0.0


def counted_by(value: Any, examples: int) -> int:
    """Of how many a value is the mean, or has one each: of ragged rows their number, otherwise that of the batch's examples."""
    return len(value.data) if examples and hasattr(value, "sequence_lengths") else examples


def add(sums: Sums, name: str, value: float, count: int) -> None:
    """Count a batch's figure, the mean over so many examples, or rows of ragged data."""
    total, counted = sums.get(name, (0.0, 0))
    sums[name] = (total + value * count, counted + count)


def mean_of(sums: Sums, name: str) -> float:
    """The mean of a figure over its examples; NaN where there were none since it is asked for."""
    total, count = sums.get(name, (math.nan, 0))
    return total / max(count, 1)
