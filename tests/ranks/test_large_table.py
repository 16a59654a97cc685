"""A table of which one rank could hold a part only: each holds its rows, and little beside."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import large_table
from support import launch_ranks as launch

from foreshape.engine.machine_memory import default_limit
from foreshape.training.divided import BLOCK

RANKS = 4
LARGE, SMALL = 40_000_000, 400_000


def part(rows: int) -> int:
    """The bytes of a rank's rows."""
    return rows // RANKS * large_table.WIDTH * 4


@pytest.mark.longest
@pytest.mark.skipif((default_limit() or 0) < 1.4 * RANKS * part(LARGE), reason="needs 14 GB")
def test_ranks_hold_their_rows_and_little_beside(tmp_path: Path) -> None:
    peaks: dict[int, list[int]] = {}
    for rows in (SMALL, LARGE):
        launch.run(RANKS, Path(large_table.__file__), rows, tmp_path / str(rows), deadline=600)
        peaks[rows] = [int((tmp_path / f"{rows}.{rank}").read_text()) for rank in range(RANKS)]
    beside = max(peaks[SMALL]) - part(SMALL) - together(SMALL)
    assert max(peaks[LARGE]) < part(LARGE) * 1.05 + together(LARGE) + beside


def together(rows: int) -> int:
    """What a rank holds at the end, when the table is put together, where this machine has the memory for it."""
    whole = RANKS * part(rows)
    return whole + 4 * BLOCK if whole * RANKS <= (default_limit() or 0) / 2 else 0  # and the blocks that are under way
