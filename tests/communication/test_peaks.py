"""A rank holds at most what is planned for it, to a twentieth."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import launch_ranks as launch
from support import rank_peaks

PART = 0.05
LESS = 0.1
"""What is planned for a number of words is a bound over the lengths of their sequences, by at most this part."""


@pytest.mark.longest
@pytest.mark.parametrize("ranks", [2])
def test_the_peak_of_a_rank_is_the_planned_one(ranks: int, tmp_path: Path) -> None:
    launch.run(ranks, Path(rank_peaks.__file__), tmp_path / "out", deadline=900)
    found = [json.loads((tmp_path / f"out.{rank}.json").read_text()) for rank in range(ranks)]
    for name in rank_peaks.CASES:
        of = [one[name] for one in found]
        for one in of:
            assert -PART <= one["planned"] / one["measured"] - 1 <= PART, f"{name}: {of}"
            assert -PART <= one["bound"] / one["measured"] - 1 <= (LESS if name.startswith("W4") else PART), f"{name}: {of}"
