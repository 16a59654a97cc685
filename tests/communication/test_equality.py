"""Training over ranks is training on one rank: the same losses, figures and values.

In fp64 they are the same to 1e-11 of the largest number of each value. In fp32 they are as near to those of fp64 as what one rank makes, which
sums in another order: a gradient that is nearly zero is rounded by as much as what it is the sum of, and Adam divides it by its own size.
"""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import launch_ranks as launch
from support import rank_cases as cases
from support.ranks_compared import EXACT, ROUNDED, Values, apart, of_case, one, rounding

COMPARED = [name for name in cases.CASES if name not in cases.UNEQUAL]
COUNTS = [2, 3, 4]
QUICK = ("normalised", "called_back", "gathered", "half")
"""Cases that are run on two ranks beside all others."""


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How many ranks -> what each of them has after all cases."""

    @cache
    def train(ranks: int) -> list[Values]:
        folder = tmp_path_factory.mktemp("equality")
        launch.run(ranks, Path(cases.__file__), folder / "out", "data_parallel", *(["every"] if ranks > 2 else []))
        return [dict(np.load(folder / f"out.{rank}.npz")) for rank in range(ranks)]

    return train


def test_two_ranks_train_as_one_rank_does(tmp_path: Path) -> None:
    launch.run(2, Path(cases.__file__), tmp_path / "out", "data_parallel", *QUICK, prepared=True)
    found, other = (dict(np.load(tmp_path / f"out.{rank}.npz")) for rank in range(2))
    assert found.keys() == other.keys()
    for key, value in found.items():
        np.testing.assert_array_equal(value, other[key], key)
    for name in QUICK:
        if name not in cases.UNEQUAL:
            compare(name, found)
        if name == "half":
            for key, value in of_case(found, name).items():
                assert apart(value, one(name, "fp32")[key]) <= 0.01, key
        again = of_case(found, name, "again/")
        assert bool(again) is (name in cases.REPEATED)
        for key, value in again.items():
            np.testing.assert_array_equal(value, of_case(found, name)[key], key)


@pytest.mark.long
@pytest.mark.parametrize("ranks", COUNTS)
@pytest.mark.parametrize("name", COMPARED)
def test_ranks_train_as_one_rank_does(name: str, ranks: int, trained: Any) -> None:
    compare(name, trained(ranks)[0])


def compare(name: str, found: Values) -> None:
    """What ranks have made of a case beside what one rank makes."""
    exact, single = one(name, "fp64"), one(name, "fp32")
    for key, value in of_case(found, name, "fp64/").items():
        assert apart(value, exact[key]) <= EXACT, key
    of_ranks = of_case(found, name)
    assert of_ranks.keys() == exact.keys()
    for key, value in of_ranks.items():
        assert apart(value, exact[key]) <= rounding(name), key
        if key == "losses":  # of which one rank alone may round more, by kernels without vectors
            assert apart(value, single[key]) <= max(ROUNDED, 2.0 * apart(single[key], exact[key])), key


@pytest.mark.long
@pytest.mark.parametrize("ranks", COUNTS)
@pytest.mark.parametrize("name", cases.CASES)
def test_all_ranks_have_the_same_bits_and_again_in_another_run(name: str, ranks: int, trained: Any) -> None:
    first, *others = (of_case(values, name) for values in trained(ranks))
    again = of_case(trained(ranks)[0], name, "again/")
    assert again.keys() == (first.keys() if ranks > 2 or name in cases.REPEATED else set())
    for key, value in again.items():
        np.testing.assert_array_equal(value, first[key], key)
    for key, value in first.items():
        for other in others:
            np.testing.assert_array_equal(value, other[key], key)


@pytest.mark.long
def test_statistics_of_parts_of_a_batch_are_others_than_those_of_the_whole(trained: Any) -> None:
    """What the documents say of batch normalisation that is not synchronised: near, and not the same."""
    found, whole = of_case(trained(2)[0], "apart"), one("apart", "fp32")
    assert 1e-3 < apart(found["losses"], whole["losses"]) < 0.5


@pytest.mark.long
def test_ranks_drop_other_elements_than_one_rank(trained: Any) -> None:
    found, whole = of_case(trained(2)[0], "dropped"), one("dropped", "fp32")
    assert 1e-4 < apart(found["losses"], whole["losses"]) < 1.0
