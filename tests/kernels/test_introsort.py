"""The order of equal elements: as PaddlePaddle's argsort has it, which is that of GNU's C++ library."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from foreshape.machine.kernels.introsort import introsort, order_equal

# as PaddlePaddle 2.6.2 and 3.3.1 print it, on a processor
SEEN = [
    ([0] * 16, [*range(16)]),
    ([0] * 17, [8, 16, 15, 14, 13, 12, 11, 10, 9, 0, 7, 6, 5, 4, 3, 2, 1]),
    ([0] * 20, [10, 19, 18, 17, 16, 15, 14, 13, 12, 11, 0, 9, 8, 7, 6, 5, 4, 3, 2, 1]),
    (
        [0] * 40,
        [30, 21, 22, 23, 24, 25, 26, 27, 28, 29, 20, 31, 32, 33, 34, 35, 36, 37, 38, 39, 10, 1, 2, 3, 4, 5, 6, 7, 8, 9, 0, 11, 12, 13, 14, 15, 16, 17, 18, 19],
    ),
    ([1, 0, 1, 0, 1, 1, 0, 0, 1, 0, 1, 1, 1, 0, 0, 0, 1, 0, 1, 0], [1, 19, 17, 15, 14, 13, 9, 7, 6, 3, 8, 10, 11, 12, 5, 4, 16, 2, 18, 0]),
]


@pytest.mark.parametrize(("keys", "places"), SEEN, ids=lambda x: str(len(x)))
def test_places_are_paddlepaddles(keys: list[int], places: list[int]) -> None:
    assert introsort(keys) == places


def killer(n: int) -> list[int]:
    """Keys that make each median of three one of the least (Musser, 1997): the parts shrink by two, and a heap takes over."""
    keys = [0] * n
    half = n // 2
    for i in range(1, half + 1):
        if i % 2:
            keys[i - 1] = i
            if i < half:
                keys[i] = half + i
        keys[half + i - 1] = 2 * i
    return keys


@pytest.mark.parametrize("n", [64, 200, 512])
def test_a_heap_takes_over(n: int) -> None:
    keys = killer(n)
    assert [keys[i] for i in introsort(keys)] == sorted(keys) and sorted(introsort(keys)) == [*range(n)]


@given(st.lists(st.integers(0, 5), max_size=120))
def test_all_are_sorted_and_none_is_lost(keys: list[int]) -> None:
    places = introsort(keys)
    assert sorted(places) == [*range(len(keys))] and [keys[i] for i in places] == sorted(keys)


def test_rows_without_equal_elements_stay() -> None:
    values = np.stack([np.arange(40.0), np.zeros(40), np.r_[np.arange(38.0), np.nan, np.nan]])
    places = np.stack([np.arange(40)[::-1], np.arange(40), np.arange(40)]).copy()
    before = places.copy()
    order_equal(values, places)
    assert (places[0] == before[0]).all() and places[1].tolist() == SEEN[3][1] and sorted(places[2].tolist()) == [*range(40)]
