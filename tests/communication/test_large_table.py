"""A table of which one rank could hold a part only: each holds its rows, and little beside."""

from __future__ import annotations

from pathlib import Path

import pytest
from support import large_table
from support import launch_ranks as launch

from foreshape.apps.training.checkpoint.divided import BLOCK
from foreshape.machine.process.machine_memory import default_limit

RANKS = 4
LARGE, SMALL = 40_000_000, 400_000


def part(rows: int, held: int) -> int:
    """The bytes of a rank's rows, and of their state."""
    return rows // RANKS * large_table.WIDTH * 4 * held


@pytest.mark.longest
@pytest.mark.parametrize("name", large_table.OPTIMIZERS)
def test_ranks_hold_their_rows_and_little_beside(tmp_path: Path, name: str) -> None:
    held = large_table.OPTIMIZERS[name][1]
    needed = 1.07 * RANKS * part(LARGE, held)
    if (default_limit() or 0) < needed:
        pytest.skip(f"needs {needed / 1e9:.0f} GB")
    peaks: dict[int, list[int]] = {}
    for rows in (SMALL, LARGE):
        launch.run(RANKS, Path(large_table.__file__), name, rows, tmp_path / str(rows), deadline=600)
        peaks[rows] = [int((tmp_path / f"{rows}.{rank}").read_text()) for rank in range(RANKS)]
    beside = max(peaks[SMALL]) - part(SMALL, held) - together(SMALL, held)
    assert max(peaks[LARGE]) < part(LARGE, held) * 1.05 + together(LARGE, held) + beside


def together(rows: int, held: int) -> int:
    """What a rank holds at the end, when the table is put together, where this machine has the memory for it."""
    whole = RANKS * part(rows, held)
    return whole + 4 * BLOCK if whole * RANKS <= (default_limit() or 0) / 2 else 0  # and the blocks that are under way
