"""Seconds of kernel calls between and beyond the measured sizes."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from typing import Any

import numpy

_NEAR = 12
"""The number of measured sizes in a prediction."""


class Curve:
    """Times at measured sizes of one kind of call; called with a size it gives seconds.

    In logarithms a plane is laid through the nearest sizes, the nearer the closer. Beyond the measured sizes time grows in proportion, and a smaller call
    takes as long as the smallest.

    Args:
        points: ``[[coordinate, ..., seconds], ...]``, each above 0.
    """

    def __init__(self, points: Sequence[Sequence[float]]) -> None:
        table = numpy.log(numpy.asarray(points, dtype=numpy.float64))
        self.at, self.seconds = table[:, :-1], table[:, -1]
        self.low, self.high = self.at.min(axis=0), self.at.max(axis=0)
        self._known: dict[tuple[float, ...], tuple[float, Any]] = {}

    @property
    def coordinates(self) -> int:
        return int(self.at.shape[1])

    def __call__(self, coordinates: Sequence[float], scaling: int | None = None) -> float:
        """Return the seconds at a size. Time grows with its first ``scaling`` coordinates (all of them by default)."""
        key = tuple(coordinates)
        entry = self._known.get(key)
        if entry is None:
            logarithms = numpy.array([log(max(c, 1.0)) for c in key])
            inside = numpy.clip(logarithms, self.low, self.high)
            interpolated = self._line(float(inside[0])) if self.coordinates == 1 else self._plane(inside)
            entry = self._known[key] = (interpolated, numpy.maximum(logarithms - inside, 0))
        interpolated, beyond = entry
        return float(numpy.exp(interpolated + beyond[:scaling].sum()))

    def _line(self, coordinate: float) -> float:
        order = numpy.argsort(self.at[:, 0], kind="stable")
        return float(numpy.interp(coordinate, self.at[order, 0], self.seconds[order]))

    def _plane(self, coordinates: Any) -> float:
        away = ((self.at - coordinates) ** 2).sum(axis=1)
        near = numpy.argsort(away, kind="stable")[: max(_NEAR, 3 * self.coordinates)]
        weight = 1 / (away[near] + 0.02)
        x = numpy.concatenate([numpy.ones((len(near), 1)), self.at[near] - coordinates], axis=1)
        ridge = numpy.diag([0.0] + [1e-3] * self.coordinates)
        left = (x * weight[:, None]).T @ x + ridge
        solve: Any = numpy.linalg.solve
        solution = solve(left, (x * weight[:, None]).T @ self.seconds[near])
        lowest, highest = self.seconds[near].min(), self.seconds[near].max()
        return float(numpy.clip(solution[0], lowest - 1.0, highest + 1.0))
