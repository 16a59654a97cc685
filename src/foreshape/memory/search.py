"""Exact search for a layout within a height, after MiniMalloc (Moffitt, ASPLOS 2023); written anew from the paper's ideas.

Any layout can be pushed down until each buffer lies on the ground or on another one; such a layout is found by placing the buffers in
order of their offsets, each at the least offset that those below it leave. The search tries such orders, depth first:

- offsets never fall from one placement to the next, and equal ones follow the given order (one order per layout);
- a buffer is not placed so high that another one would fit below it (a gap that can be filled is never left);
- a buffer with nothing left above it is placed for good;
- every section's remaining buffers must fit: taken by their least offsets, one upon the other, they must end within the height; and one
  that cannot be the lowest of them is at least as high as the lowest end of another (`visits` bounds how far this is followed);
- where no remaining buffer crosses between two sections, both sides are solved apart, and the first that fails ends both.

`canonical` is plain Python over flat sequences: lists where it runs as it is, arrays where numba compiles it, some hundred times faster.
"""

from __future__ import annotations

import importlib
import importlib.util
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from foreshape.memory.sections import Buffers, Floats, Ints

FOUND, IMPOSSIBLE, STOPPED = 1, 0, 2
_NEVER = 2**62
_TRAIL = {True: 1 << 21, False: 1 << 18}
MOST = 1500
"""Buffers that meet each other in time are listed, which takes room with the square of their number."""


class Strategy(NamedTuple):
    """An order of the buffers; whether it is made anew for parts that come apart; how far the rule of the lowest is followed."""

    order: str
    anew: bool = False
    visits: int = 0


STRATEGIES = (
    Strategy("WT", visits=2), Strategy("TWA"), Strategy("WT"), Strategy("TAW"), Strategy("TCA"), Strategy("WAT"), Strategy("TAW", visits=2),
    Strategy("TWA", anew=True), Strategy("CAT"), Strategy("CAT", visits=2), Strategy("TAW", anew=True),
)  # fmt: skip
"""T: bytes alive in the fullest section of a buffer; W: the steps it lives; A: bytes times steps; C: its sections. Most first."""


def canonical(
    count: int, sections: int, first: Any, end: Any, size: Any, near_at: Any, near: Any, alive_at: Any, alive: Any, height: int,
    work: int, anew: bool, visits: int, least: Any, offset: Any, total: Any, cuts: Any, rank: Any, trail_what: Any, trail_at: Any, trail_old: Any,
    mark: Any, queue: Any, releases: Any, which: Any, frames: Any, members: Any, choices: Any, ranges: Any,
) -> tuple[int, int]:  # fmt: skip
    """(FOUND, IMPOSSIBLE or STOPPED, work done): looks for offsets within the height; they are left in `offset`.

    The state is least (offset of a buffer), offset (-1: not placed), total (bytes to place in a section), cuts (remaining buffers from a
    section to the next) and rank; every change of it is on the trail. A frame of the depth-first search is a column of `frames`:
    0, 1 its sections; 2 least offset, 3 least rank; 4, 5, 6 choices: first, end, next; 7 trail; 8, 9 members; 10, 11, 12 ranges of
    sections left to solve after its choice: first, end, next; 13 whether the choice is for good.
    """
    for b in range(count):
        least[b] = 0
        offset[b] = -1
        rank[b] = b
        members[b] = b
    for s in range(sections):
        total[s] = 0
        cuts[s] = 0
        mark[s] = 0
    for b in range(count):
        for s in range(first[b], end[b]):
            total[s] += size[b]
            if s + 1 < end[b]:
                cuts[s] += 1
    room_on_trail = len(trail_what) - 6 * count - 8 * sections
    changes, done, stamp, depth, step = 0, 0, 0, 0, 0
    for k in range(14):
        frames[k][0] = 0
    frames[1][0] = sections
    frames[9][0] = count
    while True:
        if step == 0:  # a new frame: its choices, lowest first
            done += 1 + (frames[9][depth] - frames[8][depth]) // 16
            if done > work or changes > room_on_trail:
                return 2, done
            gap = _NEVER
            for i in range(frames[8][depth], frames[9][depth]):
                b = members[i]
                gap = min(gap, least[b] + size[b])
            start = frames[4][depth]
            stop = start
            floor, lowest_rank = frames[2][depth], frames[3][depth]
            for i in range(frames[8][depth], frames[9][depth]):
                b = members[i]
                at = least[b]
                if at < gap and (at > floor or (at == floor and rank[b] >= lowest_rank)):
                    j = stop
                    while j > start and (least[choices[j - 1]] > at or (least[choices[j - 1]] == at and rank[choices[j - 1]] > rank[b])):
                        choices[j] = choices[j - 1]
                        j -= 1
                    choices[j] = b
                    stop += 1
            frames[5][depth] = stop
            frames[6][depth] = start
            frames[7][depth] = changes
            frames[13][depth] = 0
            step = 1
        elif step == 1:  # the next choice of this frame
            while changes > frames[7][depth]:
                changes -= 1
                what, k, old = trail_what[changes], trail_at[changes], trail_old[changes]
                if what == 0:
                    least[k] = old
                elif what == 1:
                    offset[k] = -1
                elif what == 2:
                    total[k] = old
                elif what == 3:
                    cuts[k] = old
                else:
                    rank[k] = old
            if frames[6][depth] == frames[5][depth] or frames[13][depth] == 1:
                depth -= 1
                if depth < 0:
                    return 0, done
                continue
            b = choices[frames[6][depth]]
            frames[6][depth] += 1
            done += 1 + (near_at[b + 1] - near_at[b]) // 16
            at = least[b]
            top = at + size[b]
            offset[b] = at
            trail_what[changes], trail_at[changes], trail_old[changes] = 1, b, -1
            changes += 1
            stamp += 2
            waiting = 0
            for s in range(first[b], end[b]):
                trail_what[changes], trail_at[changes], trail_old[changes] = 2, s, total[s]
                changes += 1
                total[s] -= size[b]
                mark[s] = stamp
                queue[waiting] = s
                waiting += 1
            for_good = True
            for i in range(near_at[b], near_at[b + 1]):
                c = near[i]
                if offset[c] < 0:
                    for_good = False
                    if least[c] < top:
                        trail_what[changes], trail_at[changes], trail_old[changes] = 0, c, least[c]
                        changes += 1
                        least[c] = top
                        for s in range(first[c], end[c]):
                            if mark[s] != stamp:
                                mark[s] = stamp
                                queue[waiting] = s
                                waiting += 1
            if for_good:
                frames[13][depth] = 1
            fits = True
            for s in range(frames[0][depth], frames[1][depth]):
                if total[s] > 0 and total[s] + at > height:
                    fits = False
                    break
            head, most = 0, waiting * visits
            while fits and head < waiting:  # the sections that this choice touches
                s = queue[head % sections]
                head += 1
                mark[s] = stamp - 1
                left, latest = height - total[s], at
                found = 0
                for i in range(alive_at[s], alive_at[s + 1]):
                    c = alive[i]
                    if offset[c] < 0:
                        which[found] = c
                        found += 1
                        latest = max(latest, least[c])
                if found == 0 or latest <= left:
                    continue
                done += 1
                for i in range(found):
                    c = which[i]
                    r = max(least[c], at)
                    j = i
                    while j > 0 and releases[j - 1] > r:
                        releases[j] = releases[j - 1]
                        which[j] = which[j - 1]
                        j -= 1
                    releases[j] = r
                    which[j] = c
                pile, soonest, second, owner = 0, _NEVER, _NEVER, -1
                for i in range(found):
                    pile = max(pile, releases[i]) + size[which[i]]
                    ends = releases[i] + size[which[i]]
                    if ends < soonest:
                        soonest, second, owner = ends, soonest, which[i]
                    elif ends < second:
                        second = ends
                if pile > height:
                    fits = False
                    break
                if head > most or changes > room_on_trail:
                    continue
                for k in range(found):
                    i = found - 1 - k
                    if releases[i] <= left:
                        break
                    c = which[i]
                    raised = second if c == owner else soonest
                    if found > 1 and raised > least[c]:
                        if raised + size[c] > height:
                            fits = False
                            break
                        trail_what[changes], trail_at[changes], trail_old[changes] = 0, c, least[c]
                        changes += 1
                        least[c] = raised
                        for v in range(first[c], end[c]):
                            if mark[v] != stamp:
                                mark[v] = stamp
                                queue[waiting % sections] = v
                                waiting += 1
            if not fits:
                continue
            kid, opens = frames[10][depth], frames[0][depth]
            for s in range(first[b], end[b] - 1):
                trail_what[changes], trail_at[changes], trail_old[changes] = 3, s, cuts[s]
                changes += 1
                cuts[s] -= 1
                if cuts[s] == 0:
                    ranges[kid], ranges[kid + 1] = opens, s + 1
                    kid += 2
                    opens = s + 1
            ranges[kid], ranges[kid + 1] = opens, frames[1][depth]
            frames[11][depth] = kid + 2
            frames[12][depth] = frames[10][depth]
            if anew and kid > frames[10][depth]:
                found = 0
                for i in range(frames[8][depth], frames[9][depth]):
                    c = members[i]
                    if offset[c] >= 0:
                        continue
                    fullest = 0
                    for s in range(first[c], end[c]):
                        fullest = max(fullest, total[s])
                    j = found
                    while j > 0 and (releases[j - 1] < fullest or (releases[j - 1] == fullest and which[j - 1] > c)):
                        releases[j] = releases[j - 1]
                        which[j] = which[j - 1]
                        j -= 1
                    releases[j] = fullest
                    which[j] = c
                    found += 1
                for j in range(found):
                    c = which[j]
                    trail_what[changes], trail_at[changes], trail_old[changes] = 4, c, rank[c]
                    changes += 1
                    rank[c] = j
            step = 2
        else:  # the choice of this frame stands: solve what it leaves, range by range
            kid = frames[12][depth]
            if kid == frames[11][depth]:
                depth -= 1
                if depth < 0:
                    return 1, done
                continue
            frames[12][depth] = kid + 2
            deeper = depth + 1
            opens, closes = ranges[kid], ranges[kid + 1]
            stop = frames[9][depth]
            for i in range(frames[8][depth], frames[9][depth]):
                c = members[i]
                if offset[c] < 0 and first[c] >= opens and end[c] <= closes:
                    members[stop] = c
                    stop += 1
            if stop == frames[9][depth]:
                continue
            b = choices[frames[6][depth] - 1]
            alone = frames[11][depth] == frames[10][depth] + 2
            frames[0][deeper] = opens
            frames[1][deeper] = closes
            frames[2][deeper] = offset[b]
            frames[3][deeper] = rank[b] if alone or not anew else -1
            frames[4][deeper] = frames[5][depth]
            frames[8][deeper] = frames[9][depth]
            frames[9][deeper] = stop
            frames[10][deeper] = frames[11][depth]
            depth = deeper
            step = 0


_compiled: list[Any] = []


def can_compile() -> bool:
    return importlib.util.find_spec("numba") is not None


def compiled() -> Any:
    """`canonical` in machine code; kept on disk between processes where there is a place for it."""
    if not _compiled:
        numba = importlib.import_module("numba")
        try:
            _compiled.append(numba.njit(cache=True, error_model="numpy")(canonical))
        except RuntimeError:  # no folder that numba may write to
            _compiled.append(numba.njit(error_model="numpy")(canonical))
    return _compiled[0]


def is_compiled() -> bool:
    """Whether the machine code is in this process or on disk, so that it need not be made."""
    run = compiled()
    if run.signatures:
        return True
    folder, source = run.stats.cache_path, Path(__file__)
    made = Path(folder).glob(f"{source.stem}.{canonical.__name__}-*.nbc") if folder else ()
    return any(file.stat().st_mtime >= source.stat().st_mtime for file in made)


class Searcher:
    """The search over one part's buffers, whose lower and upper are sections, for any height and strategy.

    total: the bytes alive in each section; steps: how long each buffer lives.
    """

    def __init__(self, buffers: Buffers, total: Ints, steps: Floats, fast: bool) -> None:
        self.buffers, self.total, self.steps, self.fast = buffers, total, steps, fast
        self._prepared: dict[str, tuple[Ints, tuple[Any, ...]]] = {}
        count, sections = len(buffers.size), len(total)
        trail = _TRAIL[fast]
        lengths = [count, count, sections, sections, count, trail, trail, trail, sections, sections, count, count]
        square = count * (count + 3) // 2 + 2 * count + 10
        self._room = [self._flat(np.zeros(n, np.int64)) for n in lengths]
        frames = np.zeros((14, count + 2), np.int64)
        self._room.append(frames if fast else frames.tolist())
        self._room += [self._flat(np.zeros(n, np.int64)) for n in (square, square, 4 * (count + sections) + 10)]

    def _flat(self, array: Ints) -> Any:
        return np.ascontiguousarray(array, np.int64) if self.fast else array.tolist()

    def _ordered(self, key: str) -> tuple[Ints, tuple[Any, ...]]:
        if key not in self._prepared:
            lower, upper, size = self.buffers
            fullest = np.maximum.reduceat(np.append(self.total, 0), np.stack((lower, upper), 1).ravel())[::2]
            by: dict[str, Any] = {"T": fullest, "W": self.steps, "A": self.steps * size, "C": upper - lower}
            order = np.lexsort([-by[letter] for letter in reversed(key)])
            first, end = lower[order], upper[order]
            meet = (first[:, None] < end) & (end[:, None] > first)
            np.fill_diagonal(meet, False)
            moments = np.arange(len(self.total))[:, None]
            present = (first <= moments) & (moments < end)
            rows = [np.append(0, np.cumsum(table.sum(1))) for table in (meet, present)]
            parts = (first, end, size[order], rows[0], meet.nonzero()[1], rows[1], present.nonzero()[1])
            self._prepared[key] = order, tuple(self._flat(part) for part in parts)
        return self._prepared[key]

    def look(self, strategy: Strategy, height: int, work: int) -> tuple[int, int, Ints | None]:
        """The outcome, the work done, and the offsets where some were found within the height."""
        order, given = self._ordered(strategy.order)
        if height < self.total.max(initial=0):
            return IMPOSSIBLE, 0, None
        run: Any = compiled() if self.fast else canonical
        outcome, done = run(len(order), len(self.total), *given, height, work, strategy.anew, strategy.visits, *self._room)
        if outcome != FOUND:
            return outcome, done, None
        offsets = np.empty(len(order), np.int64)
        offsets[order] = self._room[1]
        return outcome, done, offsets
