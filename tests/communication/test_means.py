"""Losses and figures over ranks are those of one rank, whatever they are means over: weights, labels that count, words; and functions of such."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from support import launch_ranks as launch
from support import mean_cases as cases
from support.ranks_compared import EXACT, apart

QUICK = ("weighted/1", "likelihood/3", "number and penalty/1")
ALL = [f"{name}/{accumulate}" for name in (*cases.ONE_WEIGHT, *cases.OTHERS) for accumulate in (1, 3)]

pytestmark = pytest.mark.filterwarnings("ignore:accumulate=")


def compare(ranks: int, chosen: Sequence[str], folder: Path) -> None:
    """Train over ranks and alone."""
    launch.run(ranks, Path(cases.__file__), folder / "out", *chosen, prepared=True)
    first, *others = (dict(np.load(folder / f"out.{rank}.npz")) for rank in range(ranks))
    for case in chosen:
        name, accumulate = case.split("/")
        for key, value in cases.train(name, 5, int(accumulate), epochs=2).items():
            at = f"{case}/{key}"
            assert apart(first[at], value) <= EXACT, at
            for other in others:
                np.testing.assert_array_equal(first[at], other[at], at)


@pytest.mark.long
def test_two_ranks_make_one_number_of_a_loss_and_its_figures(tmp_path: Path) -> None:
    compare(2, QUICK, tmp_path)


@pytest.mark.long
@pytest.mark.parametrize("ranks", [2, 3])
def test_ranks_make_one_number_of_every_loss_and_figure(ranks: int, tmp_path: Path) -> None:
    compare(ranks, ALL, tmp_path)
