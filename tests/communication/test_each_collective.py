"""Each collective between processes, beside what numpy makes of what all ranks gave."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from pathlib import Path

import numpy as np
import pytest
from support import each_collective
from support import launch_ranks as launch

HOW = {"sum": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}


def wanted(name: str, xs: Sequence[np.ndarray], rank: int) -> np.ndarray:
    """What a collective gives to a rank."""
    ranks, words = len(xs), name.replace("started ", "").split()
    total = reduce(np.add, xs)
    match words:
        case ["allreduce", how]:
            return reduce(HOW[how], xs)
        case ["reduce", how, "to", root]:
            return reduce(HOW[how], xs) if rank == int(root) else xs[rank]
        case ["broadcast", "from", root]:
            return xs[int(root)]
        case ["scatter", "from", root]:
            return np.split(xs[int(root)], ranks)[rank]
        case ["concat", axis]:
            return np.concatenate(xs, int(axis))
        case ["split", axis]:
            return np.split(xs[rank], ranks, int(axis))[rank]
        case ["allgather"] | ["gather"]:
            return np.concatenate(xs)
        case ["reducescatter"] | ["parts"]:
            return np.split(total, ranks)[rank]
        case ["alltoall"]:
            return np.concatenate([np.split(x, ranks)[rank] for x in xs])
        case ["mp", "allreduce"] | ["sum"]:
            return total
        case _:
            assert name in ("identity", "barrier"), name
            return xs[rank]


def wanted_gradient(name: str, ds: Sequence[np.ndarray], rank: int) -> np.ndarray:
    """The gradient of what a rank gave, where those of what each rank has got are these."""
    ranks, total = len(ds), reduce(np.add, ds)
    match name.split():
        case ["concat", axis]:  # all compute alike with it
            return np.split(ds[rank], ranks, int(axis))[rank]
        case ["split", axis]:
            return np.concatenate(ds, int(axis))
        case ["allgather"]:
            return np.split(total, ranks)[rank]
        case ["reducescatter"]:
            return np.concatenate(ds)
        case ["alltoall"]:
            return np.concatenate([np.split(d, ranks)[rank] for d in ds])
        case ["mp", "allreduce"]:
            return ds[rank]
        case _:
            assert name in ("identity", "allreduce sum"), name
            return total


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_each_collective_gives_what_it_says(ranks: int, tmp_path: Path) -> None:
    launch.run(ranks, Path(each_collective.__file__), tmp_path / "out", prepared=True)
    found = [dict(np.load(tmp_path / f"out.{rank}.npz")) for rank in range(ranks)]
    assert len(found[0]) == 2 * 2 * len(each_collective.calls(ranks)) + len(each_collective.DIFFERENTIATED)
    for key in found[0]:
        of, _, name = key.partition(" ")
        for rank, values in enumerate(found):
            if name.endswith("@GRAD"):
                base = name.removesuffix("@GRAD")
                want = wanted_gradient(base, [each_collective.factor(base, one[f"{of} {base}"].shape, r) for r, one in enumerate(found)], rank)
            else:
                want = wanted(name.removesuffix(" turned"), [each_collective.given(r, of) for r in range(ranks)], rank)
            assert values[key].dtype == want.dtype, key
            np.testing.assert_array_equal(values[key], want, f"{key} on rank {rank}")
    for rank in range(ranks):
        at_once = np.load(tmp_path / f"out.at_once.{rank}.npz")
        for name in each_collective.UNDER_WAY:
            total = reduce(np.add, [each_collective.under_way(r, name) for r in range(ranks)])
            np.testing.assert_array_equal(at_once[f"at once {name}"], total, f"{name} on rank {rank}")
