"""Each strategy, and each pair of them, trains as one rank does: in fp64 to 1e-11, in fp32 as near to that as rounding lets."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support import every_strategy
from support import launch_ranks as launch
from support import rank_cases as cases
from support.ranks_compared import EXACT, apart, one, rounding

QUICK = {
    "shard_optimizer": ["plain", "wide"],
    "shard_parameters": ["texts", "repeated"],
    "split_tables": ["sparse_exact_adam", "sparse_sgd"],
    "split_tables and shard_parameters": ["sparse_lazy_adam"],
}
OTHERS = [s for s in cases.STRATEGIES if s != "data_parallel" and not s.startswith("split_layers")]
EQUAL = [c for c in cases.CASES if c not in cases.UNEQUAL]
RUNS = [
    pytest.param(2, QUICK, id="2-quick", marks=pytest.mark.long),
    *(pytest.param(n, dict.fromkeys(OTHERS, EQUAL), id=f"{n}-all", marks=pytest.mark.longest) for n in (2, 3, 4)),
]


@pytest.mark.parametrize(("ranks", "wanted"), RUNS)
def test_divided_training_is_training_on_one_rank(ranks: int, wanted: dict[str, list[str]], tmp_path: Path) -> None:
    arguments = [f"{strategy}={','.join(names)}" for strategy, names in wanted.items()]
    launch.run(ranks, Path(every_strategy.__file__), tmp_path / "out", *arguments, deadline=1800 if ranks > 2 or wanted is not QUICK else 300)
    found: list[dict[str, Any]] = [dict(np.load(tmp_path / f"out.{rank}.npz")) for rank in range(ranks)]
    for strategy, names in wanted.items():
        for name in names:
            for of in ("fp64", "fp32"):
                begin = f"{strategy}/{name}/{of}/"
                exact = one(name, "fp64")
                of_ranks = [{key.removeprefix(begin): value for key, value in values.items() if key.startswith(begin)} for values in found]
                assert of_ranks[0].keys() == exact.keys(), begin
                for key, value in of_ranks[0].items():
                    most = EXACT if of == "fp64" else rounding(name)
                    assert apart(value, exact[key]) <= most, begin + key
                    for others in of_ranks[1:]:
                        np.testing.assert_array_equal(others[key], value, begin + key)
