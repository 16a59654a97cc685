"""A run gives to its collectives what the plan says, to the byte."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import bytes_sent
from support import launch_ranks as launch


@pytest.mark.parametrize("ranks", [2, pytest.param(3, marks=pytest.mark.long)])
def test_what_is_sent_is_what_was_planned(ranks: int, tmp_path: Path) -> None:
    launch.run(ranks, Path(bytes_sent.__file__), tmp_path / "out")
    found = [json.loads((tmp_path / f"out.{rank}.json").read_text()) for rank in range(ranks)]
    for name in bytes_sent.CASES:
        for of_rank in found:
            planned = {what: size for what, size in of_rank[name]["planned"].items() if size}
            assert len(planned) > 1, name
            assert of_rank[name]["sent"] == planned, name
