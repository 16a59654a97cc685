"""Layers divided over ranks train as on one rank: the same losses, figures and values."""

from __future__ import annotations

import shutil
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import launch_ranks as launch
from support import rank_cases as cases
from support.ranks_compared import EXACT, Values, apart, of_case

RESUME = """
import sys
sys.path.insert(0, sys.argv[1])
import os, numpy
from support import rank_cases as cases
_, _, out, folder, strategy, epochs = sys.argv
numpy.savez(f"{out}.{os.environ['RANK']}", **cases.run("divided", "fp64", strategy, int(epochs), folder))
"""
LONG = pytest.mark.long
RUNS = [
    pytest.param(2, "split_layers", id="2", marks=LONG),
    pytest.param(4, "split_layers_2", id="4 in groups of 2", marks=LONG),
    pytest.param(4, "split_layers", id="4", marks=LONG),
    pytest.param(4, "split_layers_2_tables", id="4 in groups of 2 with split tables", marks=LONG),
    pytest.param(4, "split_layers_2_optimizer", id="4 in groups of 2 with the state divided over them", marks=LONG),
    pytest.param(4, "split_layers_2_parameters", id="4 in groups of 2 with the parameters divided over them", marks=LONG),
    pytest.param(4, "split_layers_2_all", id="4 in groups of 2 with tables and parameters divided over them", marks=LONG),
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
@pytest.mark.parametrize("name", [name for name in cases.SPLIT if name not in cases.UNEQUAL])
def test_divided_layers_train_as_one_rank_does(name: str, ranks: int, strategy: str, trained: Any) -> None:
    first, *others = (of_case(values, name, "fp64/") for values in trained(ranks, strategy))
    exact = one(name)
    assert first.keys() == exact.keys()
    for key, value in first.items():
        assert apart(value, exact[key]) <= EXACT, key
        for other in others:
            np.testing.assert_array_equal(other[key], value, key)


@pytest.mark.parametrize(("ranks", "strategy"), RUNS)
def test_dropout_keeps_what_is_alike_alike_and_is_the_same_again(ranks: int, strategy: str, trained: Any) -> None:
    first, *others = (of_case(values, "dropped_heads") for values in trained(ranks, strategy))
    again = of_case(trained(ranks, strategy)[0], "dropped_heads", "again/")
    assert first.keys() == again.keys() and np.isfinite(first["losses"]).all()
    for key, value in first.items():
        np.testing.assert_array_equal(again[key], value, key)
        for other in others:
            np.testing.assert_array_equal(other[key], value, key)
    assert 1e-4 < apart(first["losses"], cases.run("dropped_heads")["losses"]) < 1.0


@pytest.mark.long
def test_a_checkpoint_of_divided_layers_opens_on_other_ranks(tmp_path: Path) -> None:
    """2 ranks -> 4 ranks in groups of 2, with their parameters divided over them -> one rank, and 2 ranks -> one rank -> 2 ranks; an epoch each."""
    script, tests = tmp_path / "resume.py", Path(__file__).parents[1]
    script.write_text(RESUME)

    def train(ranks: int, strategy: str, folder: Path, epochs: int) -> Values:
        if ranks == 1:
            return cases.run("divided", "fp64", epochs=epochs, checkpoint=str(folder))
        launch.run(ranks, script, tests, tmp_path / "out", folder, strategy, epochs)
        return dict(np.load(tmp_path / "out.0.npz"))

    exact = cases.run("divided", "fp64", epochs=3)
    train(2, "split_layers", tmp_path / "first", 1)
    assert len(list((tmp_path / "first").glob("*.part-*-of-2"))) == 2
    shutil.copytree(tmp_path / "first", tmp_path / "second")
    train(4, "split_layers_2_parameters", tmp_path / "first", 2)
    train(1, "", tmp_path / "second", 2)
    for found in (train(1, "", tmp_path / "first", 3), train(2, "split_layers", tmp_path / "second", 3)):
        assert found.keys() == exact.keys()
        for key, value in found.items():
            assert apart(value, exact[key]) <= EXACT, key
