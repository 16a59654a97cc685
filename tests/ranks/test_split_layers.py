"""Layers divided over ranks train as on one rank: the same losses, figures and values."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from ranks import cases, launch
from ranks.test_equality import EXACT, Values, apart, of_case

LONG = pytest.mark.long
RUNS = [
    pytest.param(2, "split_layers", id="2"),
    pytest.param(4, "split_layers_2", id="4 in groups of 2", marks=LONG),
    pytest.param(4, "split_layers", id="4", marks=LONG),
    pytest.param(4, "split_layers_2_tables", id="4 in groups of 2 with split tables", marks=LONG),
]


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """How many ranks, and the strategy -> what each of them has after all cases."""

    @cache
    def train(ranks: int, strategy: str) -> list[Values]:
        folder = tmp_path_factory.mktemp("split")
        launch.run(ranks, Path(cases.__file__), folder / "out", strategy, *cases.SPLIT)
        return [dict(np.load(folder / f"out.{rank}.npz")) for rank in range(ranks)]

    return train


@cache
def one(name: str) -> Values:
    """What one rank makes, with the whole batch, in fp64."""
    return cases.run(name, "fp64")


@pytest.mark.parametrize(("ranks", "strategy"), RUNS)
@pytest.mark.parametrize("name", cases.SPLIT)
def test_divided_layers_train_as_one_rank_does(name: str, ranks: int, strategy: str, trained: Any) -> None:
    first, *others = (of_case(values, name, "fp64/") for values in trained(ranks, strategy))
    exact = one(name)
    assert first.keys() == exact.keys()
    for key, value in first.items():
        assert apart(value, exact[key]) <= EXACT, key
        for other in others:
            np.testing.assert_array_equal(other[key], value, key)
