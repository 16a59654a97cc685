"""Layouts made in one pass: buffers placed one after the other in some order, or as time goes by.

`in_order` puts each buffer into the lowest gap (first-fit) or the tightest one (best-fit) left by earlier ones. Its work grows with the square of the number
of buffers, in numpy. `in_time` is an allocator that knows the future. It walks through the steps once, near-linearly. It can keep long lifetimes at the
bottom and short ones at the top, so that neither splits the other's room.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right

import numpy as np

from foreshape.compiler.memory.sections import Buffers, Ints, Sections

_ENDLESS = 2**63 - 1


def height(buffers: Buffers, offsets: Ints) -> int:
    return int((offsets + buffers.size).max(initial=0))


def orders(buffers: Buffers, sections: Sections) -> dict[str, Ints]:
    """Return the orders worth trying with `in_order`, the best ones first."""
    lower, size = buffers.lower, buffers.size
    length = sections.end - sections.first
    area = size.astype(np.float64) * length
    crowd = np.maximum.reduceat(np.append(sections.total, 0), np.stack((sections.first, sections.end), 1).ravel())[::2]
    peak = int(sections.total.argmax())
    at_peak = (sections.first <= peak) & (peak < sections.end)
    distance = np.maximum(sections.first - peak, peak - sections.end + 1)
    return {
        "size": np.argsort(-size, kind="stable"),
        "length": np.lexsort((-size, -length)),
        "peak, length": np.lexsort((-size, -length, ~at_peak)),
        "area": np.lexsort((-size, -area)),
        "size, length": np.lexsort((lower, -length, -size)),
        "crowd, length": np.lexsort((-size, -length, -crowd)),
        "crowd, size": np.lexsort((-length, -size, -crowd)),
        "peak, distance": np.lexsort((-length, -size, distance)),
        "peak, size": np.lexsort((-length, -size, ~at_peak)),
        "size, start": np.lexsort((lower, -size)),
        "start": np.lexsort((-length, lower)),
        "end": np.lexsort((-length, -buffers.upper)),
    }


def in_order(buffers: Buffers, order: Ints, best_fit: bool = False, below: int = _ENDLESS) -> Ints | None:
    """Return offsets of the buffers placed in this order, or None as soon as one ends at or above `below`."""
    offsets, placed = place(buffers, order, best_fit, below)
    return offsets if placed == len(order) else None


def place(buffers: Buffers, order: Ints, best_fit: bool = False, below: int = _ENDLESS) -> tuple[Ints, int]:
    """Return offsets, and how many buffers were placed in this order before one did not end below `below`."""
    count = len(order)
    placed = np.empty((4, count), np.int64)  # kept in order of offset: lower, upper, offset, end
    offsets = np.zeros(count, np.int64)
    lowers: list[int] = buffers.lower[order].tolist()
    uppers: list[int] = buffers.upper[order].tolist()
    sizes: list[int] = buffers.size[order].tolist()
    starts: list[int] = []
    for k, (buffer, lower, upper, size) in enumerate(zip(order.tolist(), lowers, uppers, sizes, strict=True)):
        meets: Ints = ((placed[0, :k] < upper) & (placed[1, :k] > lower)).nonzero()[0]
        offset = 0
        if meets.size:
            around: Ints = placed[2:, :k].take(meets, axis=1)
            gaps, ends = around[0], np.maximum.accumulate(around[1])
            gaps[1:] -= ends[:-1]
            fits: Ints = (gaps >= size).nonzero()[0]
            if fits.size:
                hole = int(fits[gaps[fits].argmin()]) if best_fit else int(fits[0])
                offset = int(ends[hole - 1]) if hole else 0
            else:
                offset = int(ends[-1])
        if offset + size >= below:
            return offsets, k
        offsets[buffer] = offset
        slot = bisect_right(starts, offset)
        starts.insert(slot, offset)
        placed[:, slot + 1 : k + 1] = placed[:, slot:k]
        placed[:, slot] = lower, upper, offset, offset + size
    return offsets, count


def in_time(buffers: Buffers, rule: str, backwards: bool = False, ceiling: int = 0, long: int = 0, below: int = _ENDLESS) -> Ints | None:
    """Return the offsets of an allocator that walks through time, or None as soon as a buffer ends at or above `below`.

    Rule "first" takes the lowest gap that fits, "best" the tightest. "ends" takes the lowest for buffers of at least `long` steps. For the others it takes
    the highest under `ceiling`, or else the lowest.
    """
    lower, upper = (-buffers.upper, -buffers.lower) if backwards else (buffers.lower, buffers.upper)
    length: list[int] = (upper - lower).tolist()
    lowers: list[int] = lower.tolist()
    sizes: list[int] = buffers.size.tolist()
    arrivals: list[int] = np.lexsort((-buffers.size, lower - upper, lower)).tolist()
    leaving = np.argsort(upper, kind="stable")
    leaves: list[int] = upper[leaving].tolist()
    departures: list[int] = leaving.tolist()
    offsets = [0] * len(sizes)
    begin, end = [0], [_ENDLESS]  # the gaps, in order
    gone = 0
    for buffer in arrivals:
        step, size = lowers[buffer], sizes[buffer]
        while leaves[gone] <= step:
            freed = departures[gone]
            gone += 1
            start, stop = offsets[freed], offsets[freed] + sizes[freed]
            slot = bisect_left(begin, start)
            joins_left, joins_right = slot > 0 and end[slot - 1] == start, begin[slot] == stop
            if joins_left and joins_right:
                end[slot - 1] = end[slot]
                del begin[slot], end[slot]
            elif joins_left:
                end[slot - 1] = stop
            elif joins_right:
                begin[slot] = start
            else:
                begin.insert(slot, start)
                end.insert(slot, stop)
        slot, offset = -1, 0
        if rule == "ends" and length[buffer] < long:
            for k in range(len(begin) - 1, -1, -1):
                stop = min(end[k], ceiling)
                if stop - begin[k] >= size:
                    slot, offset = k, stop - size
                    break
        if slot < 0:
            if rule == "best":
                slot = min(gap for gap in zip(map(int.__sub__, end, begin), range(len(begin)), strict=True) if gap[0] >= size)[1]
            else:
                slot = next(k for k, (start, stop) in enumerate(zip(begin, end, strict=True)) if stop - start >= size)
            offset = begin[slot]
        if offset + size >= below:
            return None
        offsets[buffer] = offset
        start, stop = begin[slot], end[slot]
        if offset > start:
            end[slot] = offset
            if offset + size < stop:
                begin.insert(slot + 1, offset + size)
                end.insert(slot + 1, stop)
        elif offset + size < stop:
            begin[slot] = offset + size
        else:
            del begin[slot], end[slot]
    return np.array(offsets, np.int64)
