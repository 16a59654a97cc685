"""The order of equal elements after an unstable sort, as PaddlePaddle's kernels leave it: by the introsort of GNU's C++ library.

Detectors sort a mask to bring found boxes to the front: nothing but equal elements. A result computed from their places is PaddlePaddle's only where the
places are. (Musser, Introspective Sorting and Selection Algorithms, 1997; ``std::sort`` of libstdc++.)
"""

from __future__ import annotations

from typing import Any, Final

MOST_ELEMENTS: Final = 2048
"""The most elements of a tensor brought into this order: it is found in Python. In larger tensors equal elements keep their order."""
_FEW: Final = 16
"""Parts of up to so many elements are sorted by insertion: it keeps the order of equal ones."""


def order_equal(values: Any, places: Any) -> None:
    """Bring the places of equal elements into the order of an introsort.

    Args:
        values: an array of numpy with sorted rows; at most `MOST_ELEMENTS` elements in all.
        places: an array of the same shape, int64: for each element its place before a stable sort; changed in place.
    """
    import numpy

    if values.shape[-1] <= _FEW:
        return
    same = (values[..., 1:] == values[..., :-1]) | ((values[..., 1:] != values[..., 1:]) & (values[..., :-1] != values[..., :-1]))  # NaN equals NaN
    for row in zip(*numpy.nonzero(same.any(axis=-1)), strict=True) if same.ndim > 1 else ([()] if same.any() else []):
        ranks = [0] * values.shape[-1]
        rank = 0
        for at, place in enumerate(places[row].tolist()):
            rank += at > 0 and not same[row][at - 1]
            ranks[place] = rank
        places[row] = introsort(ranks)


def introsort(keys: list[int]) -> list[int]:
    """Return the places of the ``keys`` in rising order; places of equal keys come as libstdc++'s ``std::sort`` leaves them."""
    order = list(range(len(keys)))
    if len(keys) > 1:
        _partition_all(order, keys, 0, len(keys), 2 * (len(keys).bit_length() - 1))
        _insert_all(order, keys, 0, min(_FEW, len(keys)), guarded=True)
        _insert_all(order, keys, _FEW, len(keys), guarded=False)
    return order


def _partition_all(order: list[int], keys: list[int], first: int, last: int, depth: int) -> None:
    """Partition around medians of three until the parts are small."""
    while last - first > _FEW:
        if not depth:
            _heapsort(order, keys, first, last)
            return
        depth -= 1
        cut = _partition(order, keys, first, last)
        _partition_all(order, keys, cut, last, depth)
        last = cut


def _partition(order: list[int], keys: list[int], first: int, last: int) -> int:
    a, b, c = first + 1, first + (last - first) // 2, last - 1
    ka, kb, kc = keys[order[a]], keys[order[b]], keys[order[c]]
    median = (b if kb < kc else c if ka < kc else a) if ka < kb else (a if ka < kc else c if kb < kc else b)
    order[first], order[median] = order[median], order[first]
    pivot, low, high = keys[order[first]], first + 1, last
    while True:
        while keys[order[low]] < pivot:
            low += 1
        high -= 1
        while pivot < keys[order[high]]:
            high -= 1
        if not low < high:
            return low
        order[low], order[high] = order[high], order[low]
        low += 1


def _insert_all(order: list[int], keys: list[int], first: int, last: int, *, guarded: bool) -> None:
    """Sort by insertion; ``guarded`` where the first element need not be the least of all before."""
    for at in range(first + guarded, last):
        place = order[at]
        key, to = keys[place], at
        while (to > first or not guarded) and key < keys[order[to - 1]]:
            order[to] = order[to - 1]
            to -= 1
        order[to] = place


def _heapsort(order: list[int], keys: list[int], first: int, last: int) -> None:
    """Sort a badly partitioning part, as ``std::partial_sort`` of all of it does."""
    count = last - first
    for parent in range((count - 2) // 2, -1, -1):
        _sift(order, keys, first, parent, count, order[first + parent])
    for end in range(count - 1, 0, -1):
        place = order[first + end]
        order[first + end] = order[first]
        _sift(order, keys, first, 0, end, place)


def _sift(order: list[int], keys: list[int], first: int, hole: int, count: int, place: int) -> None:
    top, child = hole, hole
    while child < (count - 1) // 2:
        child = 2 * (child + 1)
        if keys[order[first + child]] < keys[order[first + child - 1]]:
            child -= 1
        order[first + hole] = order[first + child]
        hole = child
    if count % 2 == 0 and child == (count - 2) // 2:
        child = 2 * (child + 1)
        order[first + hole] = order[first + child - 1]
        hole = child - 1
    while hole > top and keys[order[first + (hole - 1) // 2]] < keys[place]:
        order[first + hole] = order[first + (hole - 1) // 2]
        hole = (hole - 1) // 2
    order[first + hole] = place
