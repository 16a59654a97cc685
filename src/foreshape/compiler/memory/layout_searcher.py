"""The caller of the layout search: buffers in a strategy's order, and the memory of the search, in lists or in arrays for machine code."""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foreshape.compiler.memory import layout_search
from foreshape.compiler.memory.layout_search import FOUND, IMPOSSIBLE, PARTS, Frames, Placement, search_layout
from foreshape.compiler.memory.sections import Buffers, Floats, Ints

_TRAIL = {True: 1 << 21, False: 1 << 18}
MOST = 1500
"""The most buffers in a search: pairs alive together are listed, in memory of the square of their number."""


class Heuristic(NamedTuple):
    """An order of the buffers; whether it is made anew for separate parts; and the depth of the rule of the lowest."""

    order: str
    anew: bool = False
    visits: int = 0


STRATEGIES = (
    Heuristic("WT", visits=2), Heuristic("TWA"), Heuristic("WT"), Heuristic("TAW"), Heuristic("TCA"), Heuristic("WAT"), Heuristic("TAW", visits=2),
    Heuristic("TWA", anew=True), Heuristic("CAT"), Heuristic("CAT", visits=2), Heuristic("TAW", anew=True),
)  # fmt: skip
"""T: bytes alive in the fullest section of a buffer; W: the steps it lives; A: bytes times steps; C: its sections. Most first."""


_compiled: list[Any] = []


def can_compile() -> bool:
    return importlib.util.find_spec("numba") is not None


def compiled() -> Any:
    """Return `search_layout` in machine code; kept on disk between processes if possible."""
    if not _compiled:
        numba, extending = importlib.import_module("numba"), importlib.import_module("numba.extending")
        for part in PARTS:
            extending.register_jitable(error_model="numpy")(part)
        try:
            _compiled.append(numba.njit(cache=True, error_model="numpy")(search_layout))
        except RuntimeError:  # no folder for numba to write to
            _compiled.append(numba.njit(error_model="numpy")(search_layout))
    return _compiled[0]


def is_compiled() -> bool:
    """Return True if the machine code is in this process or on disk."""
    run = compiled()
    if run.signatures:
        return True
    folder, source = run.stats.cache_path, Path(layout_search.__file__)
    files = Path(folder).glob(f"{source.stem}.{search_layout.__name__}-*.nbc") if folder else ()
    return any(file.stat().st_mtime >= source.stat().st_mtime for file in files)


class Searcher:
    """The search over one part's buffers, whose lower and upper are sections, for any height and strategy.

    total: the bytes alive in each section; steps: how long each buffer lives.
    """

    def __init__(self, buffers: Buffers, total: Ints, steps: Floats, fast: bool) -> None:
        self.buffers, self.total, self.steps, self.fast = buffers, total, steps, fast
        self._prepared: dict[str, tuple[Ints, tuple[Any, ...]]] = {}
        count, sections, trail = len(buffers.size), len(total), _TRAIL[fast]
        square = count * (count + 3) // 2 + 2 * count + 10
        lengths = ((count, count, sections, sections, count), (trail,) * 3, (count + 2,) * len(Frames._fields),
                   (square, square, 4 * (count + sections) + 10), (sections, sections, count, count))  # fmt: skip
        self._room = [tuple(self._flat(np.zeros(n, np.int64)) for n in column) for column in lengths]
        """As `Placement`, `Trail`, `Frames`, `Lists` and `Scratch`."""

    def _flat(self, array: Ints) -> Any:
        return np.ascontiguousarray(array, np.int64) if self.fast else array.tolist()

    def _ordered(self, key: str) -> tuple[Ints, tuple[Any, ...]]:
        if key not in self._prepared:
            lower, upper, size = self.buffers
            fullest = np.maximum.reduceat(np.append(self.total, 0), np.stack((lower, upper), 1).ravel())[::2]
            measures: dict[str, Any] = {"T": fullest, "W": self.steps, "A": self.steps * size, "C": upper - lower}
            order = np.lexsort([-measures[letter] for letter in reversed(key)])
            first, end = lower[order], upper[order]
            meet = (first[:, None] < end) & (end[:, None] > first)
            np.fill_diagonal(meet, False)
            moments = np.arange(len(self.total))[:, None]
            present = (first <= moments) & (moments < end)
            rows = [np.append(0, np.cumsum(table.sum(1))) for table in (meet, present)]
            parts = (first, end, size[order], rows[0], meet.nonzero()[1], rows[1], present.nonzero()[1])
            self._prepared[key] = order, tuple(map(self._flat, parts))
        return self._prepared[key]

    def look(self, strategy: Heuristic, height: int, work: int) -> tuple[int, int, Ints | None]:
        """Return the outcome, the work done, and the offsets if some were found within the height."""
        order, problem = self._ordered(strategy.order)
        if height < self.total.max(initial=0):
            return IMPOSSIBLE, 0, None
        run: Any = compiled() if self.fast else search_layout
        outcome, done = run(problem, (height, work, strategy.anew, strategy.visits), *self._room)
        if outcome != FOUND:
            return outcome, done, None
        offsets = np.empty(len(order), np.int64)
        offsets[order] = Placement(*self._room[0]).offset
        return outcome, done, offsets
