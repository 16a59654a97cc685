"""The times of a machine's kernels: measured once, saved as JSON, read back whole and checked before use."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Sequence
from dataclasses import dataclass, field
from math import log
from pathlib import Path
from typing import Any

import numpy

from foreshape.core.checked_json import bounded_json
from foreshape.core.checked_json.readers import any_text, document, listing, mapping, of_format, real, record, text
from foreshape.errors import FormatError
from foreshape.language.wire.files import read_file, replacing
from foreshape.language.wire.other_formats import JSON, instead_of

# --- Seconds of kernel calls between and beyond the measured sizes.


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


FORMAT = 2
MAX_BYTES = 8 << 20
MAX_KINDS, MAX_POINTS, MAX_COORDINATES, MAX_THREADS = 10_000, 100_000, 8, 64
_FILE = "calibration.json"

Points = list[list[float]]


@dataclass(slots=True)
class Kernels:
    """The kernels of a machine on one number of threads.

    ``step``: seconds of a step besides its calls. ``among``: extra seconds of a call among the different calls of a step, against the measured row of equal
    ones. ``kinds``: kind of call -> ``[[coordinate, ..., seconds], ...]``. ``memory``: ``[[bytes, seconds], ...]`` of moving bytes used again at once, from
    within the cache to far beyond it.
    """

    step: float
    among: float
    kinds: dict[str, Points]
    memory: Points
    _curves: dict[str, Curve] = field(default_factory=dict[str, Curve], compare=False, repr=False)
    _moving: Curve | None = field(default=None, compare=False, repr=False)

    def curve(self, kind: str) -> Curve | None:
        """Return the times of a kind; None if it was not measured."""
        entry = self._curves.get(kind)
        if entry is None and kind in self.kinds:
            entry = self._curves[kind] = Curve(self.kinds[kind])
        return entry

    def moving(self, count: float) -> float:
        """Return the seconds to move so many bytes used again and again."""
        if self._moving is None:
            self._moving = Curve(self.memory)
        return self._moving((count,))

    def copying(self, count: float) -> float:
        """Return the seconds to copy operands of so many bytes in all, left out of the times of kinds."""
        return self.moving(2 * count) if count else 0.0

    def beyond(self, count: float) -> float:
        """Return the seconds to move so many bytes from beyond the caches, at the rate of the largest measured size."""
        size, seconds = max(self.memory)
        return count * seconds / size


@dataclass(slots=True)
class Calibration:
    """A machine: its name in words, and its kernels by the number of threads."""

    machine: str
    threads: dict[int, Kernels]

    @property
    def most(self) -> int:
        """Return the largest measured number of threads."""
        return max(self.threads)

    def on(self, threads: int) -> Kernels:
        """Return the kernels on so many threads, or on the next lower measured number."""
        return self.threads[max((n for n in self.threads if n <= threads), default=min(self.threads))]

    # --- files

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write it to a file, in the user's cache directory where none is named. Return the path."""
        target = Path(path) if path is not None else default_path()
        kernels = {str(n): {"step": k.step, "among": k.among, "kinds": k.kinds, "memory": k.memory} for n, k in sorted(self.threads.items())}
        with replacing(target) as file:
            file.write(json.dumps({"format": FORMAT, "machine": self.machine, "threads": kernels}, allow_nan=False).encode())
        return target

    @classmethod
    def load(cls, path: str | os.PathLike[str] | None = None) -> Calibration:
        """Read a file, the one in the user's cache directory where none is named.

        Raises:
            FormatError: there is none, or it is no calibration.
        """
        target = Path(path) if path is not None else default_path()
        if path is None and not target.exists():
            raise FormatError(f"this machine is not calibrated: run `foreshape calibrate` ({target} is not there)")
        data = read_file(target, MAX_BYTES)
        try:
            return cls.of(bounded_json.parse(data))
        except FormatError as error:
            raise FormatError(f"{target}: no calibration: {instead_of(data, JSON) or error}"[:400]) from None

    @classmethod
    def of(cls, document: Any) -> Calibration:
        """Return the calibration in a file. Raise `FormatError` for anything that `save` would not write."""
        return _CALIBRATION("the file", of_format(document, FORMAT, "a calibration", ": run `foreshape calibrate` again"))


def _points(label: str, value: Any) -> Points:
    """Return measurements, ``[[size, ..., seconds], ...]``, of as many sizes each."""
    out = listing(_POINT, MAX_POINTS, 1)(label, value)
    if any(len(point) != len(out[0]) for point in out):
        raise FormatError(f"the measurements of {label} have different numbers of sizes")
    return out


def _threads(label: str, text: str) -> str:
    if not (text.isascii() and text.isdecimal() and 1 <= len(text) <= 4 and int(text) >= 1):
        raise FormatError(f"{text[:20]!r} is no number of threads")
    return text


def _calibration(machine: str, threads: dict[str, Kernels]) -> Calibration:
    if not threads:
        raise FormatError("a calibration of no number of threads")
    return Calibration(machine, {int(number): kernels for number, kernels in threads.items()})


_POSITIVE = real(below=1e18, above_zero=True)
_POINT = listing(_POSITIVE, MAX_COORDINATES, 2)
_KERNELS = record(
    Kernels, step=_POSITIVE, among=_POSITIVE, kinds=mapping(_points, MAX_KINDS, any_text), memory=listing(listing(_POSITIVE, 2, 2), MAX_POINTS, 1)
)
_CALIBRATION = document(_calibration, machine=text(1000, 0), threads=mapping(_KERNELS, MAX_THREADS, _threads))


def default_path() -> Path:
    """Return the path of a calibration: ``FORESHAPE_CALIBRATION``, or a file in the user's cache directory."""
    variable = os.environ.get("FORESHAPE_CALIBRATION")
    if variable:
        return Path(variable)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "foreshape" / _FILE


def this_machine() -> str:
    """Return this machine in words."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass  # only Linux has it
    return f"{name}, {os.cpu_count()} processors"
