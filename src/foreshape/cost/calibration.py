"""What a machine's kernels take: measured once, saved as JSON, read back whole and checked before any of it is used."""

from __future__ import annotations

import json
import math
import os
import platform
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from foreshape.cost.curves import Curve
from foreshape.errors import FormatError
from foreshape.wire import bounded_json
from foreshape.wire.files import read_file, replacing
from foreshape.wire.other_formats import JSON, instead_of

FORMAT = 2
MAX_BYTES = 8 << 20
MAX_KINDS, MAX_POINTS, MAX_COORDINATES, MAX_THREADS = 10_000, 100_000, 8, 64
_FILE = "calibration.json"

Points = list[list[float]]


@dataclass(slots=True)
class Kernels:
    """The kernels of a machine on one number of threads.

    ``step``: seconds that a step takes besides its calls. ``among``: those that a call takes longer among others, as a step has them, than in a row of
    equal ones, as it was measured. ``kinds``: kind of call -> ``[[coordinate, ..., seconds], ...]``. ``memory``:
    ``[[bytes, seconds], ...]`` of moving what is used again at once, from what is in the cache to what is far beyond it.
    """

    step: float
    among: float
    kinds: dict[str, Points]
    memory: Points
    _curves: dict[str, Curve] = field(default_factory=dict[str, Curve], compare=False, repr=False)
    _moving: Curve | None = field(default=None, compare=False, repr=False)

    def curve(self, kind: str) -> Curve | None:
        """The times of a kind; None where it was not measured."""
        found = self._curves.get(kind)
        if found is None and kind in self.kinds:
            found = self._curves[kind] = Curve(self.kinds[kind])
        return found

    def moving(self, count: float) -> float:
        """Seconds to move so many bytes that are used again and again."""
        if self._moving is None:
            self._moving = Curve(self.memory)
        return self._moving((count,))

    def copying(self, count: float) -> float:
        """Seconds to copy operands of so many bytes in all, which the times of kinds leave out."""
        return self.moving(2 * count) if count else 0.0

    def beyond(self, count: float) -> float:
        """Seconds to move so many bytes from beyond the caches, as the largest that was measured."""
        size, seconds = max(self.memory)
        return count * seconds / size


@dataclass(slots=True)
class Calibration:
    """A machine: its name in words, and its kernels by the number of threads."""

    machine: str
    threads: dict[int, Kernels]

    @property
    def most(self) -> int:
        """The largest number of threads that was measured."""
        return max(self.threads)

    def on(self, threads: int) -> Kernels:
        """The kernels on so many threads, or on the next number below that was measured."""
        return self.threads[max((n for n in self.threads if n <= threads), default=min(self.threads))]

    # --- files

    def save(self, path: str | os.PathLike[str] | None = None) -> Path:
        """Write it to a file, in the user's cache directory where none is named. Returns the path."""
        target = Path(path) if path is not None else default_path()
        target.parent.mkdir(parents=True, exist_ok=True)
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
    def of(cls, found: Any) -> Calibration:
        """From what a file says. Raises `FormatError` for anything that `save` would not write."""
        top = _fields(found, "the file", ("format", "machine", "threads"))
        if top["format"] != FORMAT:
            raise FormatError(f"a calibration of format {str(top['format'])[:20]}; this version reads {FORMAT}: run `foreshape calibrate` again")
        if not isinstance(top["machine"], str) or len(top["machine"]) > 1000:
            raise FormatError("a calibration names its machine")
        threads = _mapping(top["threads"], "threads", MAX_THREADS)
        made: dict[int, Kernels] = {}
        for name, given in threads.items():
            if not (name.isascii() and name.isdecimal() and 1 <= len(name) <= 4 and int(name) >= 1):
                raise FormatError(f"{name[:20]!r} is no number of threads")
            one = _fields(given, f"threads {name}", ("step", "among", "kinds", "memory"))
            kinds = _mapping(one["kinds"], "kinds", MAX_KINDS)
            measured = {kind: _points(points, kind[:60]) for kind, points in kinds.items()}
            memory = _points(one["memory"], "memory")
            if any(len(p) != 2 for p in memory):
                raise FormatError("memory is measured in bytes and seconds")
            made[int(name)] = Kernels(_positive(one["step"], "step"), _positive(one["among"], "among"), measured, memory)
        if not made:
            raise FormatError("a calibration of no number of threads")
        return cls(top["machine"], made)


def _fields(found: Any, what: str, names: Sequence[str]) -> dict[str, Any]:
    values = _mapping(found, what, len(names))
    if set(values) != set(names):
        raise FormatError(f"{what} has {', '.join(names)}; seen {', '.join(sorted(values))[:200]}")
    return values


def _mapping(found: Any, what: str, most: int) -> dict[str, Any]:
    if not isinstance(found, Mapping) or len(found) > most:  # pyright: ignore[reportUnknownArgumentType]
        raise FormatError(f"{what} is an object of at most {most} entries")
    return {str(name): value for name, value in found.items()}  # pyright: ignore[reportUnknownArgumentType, reportUnknownVariableType]


def _points(found: Any, what: str) -> Points:
    if not isinstance(found, list) or not 1 <= len(found) <= MAX_POINTS:  # pyright: ignore[reportUnknownArgumentType]
        raise FormatError(f"{what} is a list of 1 to {MAX_POINTS} measurements")
    out: Points = []
    for point in found:  # pyright: ignore[reportUnknownVariableType]
        if not isinstance(point, list) or not 2 <= len(point) <= MAX_COORDINATES:  # pyright: ignore[reportUnknownArgumentType]
            raise FormatError(f"a measurement of {what} is sizes and seconds")
        out.append([_positive(v, what) for v in point])  # pyright: ignore[reportUnknownVariableType]
        if len(out[-1]) != len(out[0]):
            raise FormatError(f"the measurements of {what} have different numbers of sizes")
    return out


def _positive(found: Any, what: str) -> float:
    if isinstance(found, bool) or not isinstance(found, (int, float)) or not 0 < found < 1e18 or not math.isfinite(found):
        raise FormatError(f"{what}: sizes and seconds are numbers above 0; seen {str(found)[:40]}")
    return float(found)


def default_path() -> Path:
    """Where a calibration lies: ``FORESHAPE_CALIBRATION``, or a file in the user's cache directory."""
    named = os.environ.get("FORESHAPE_CALIBRATION")
    if named:
        return Path(named)
    base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "foreshape" / _FILE


def this_machine() -> str:
    """This machine in words."""
    name = platform.processor() or platform.machine()
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            name = next((line.split(":", 1)[1].strip() for line in file if line.startswith("model name")), name)
    except OSError:
        pass  # only Linux has it
    return f"{name}, {os.cpu_count()} processors"
