"""A run gives to its collectives what the plan says, to the byte; and a step that it measures is what the plan's timeline is drawn beside."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import bytes_sent
from support import launch_ranks as launch

from foreshape.compiler.cost.measured import Measured


@pytest.mark.parametrize("ranks", [pytest.param(n, marks=pytest.mark.long) for n in (2, 3)])
def test_what_is_sent_is_what_was_planned(ranks: int, tmp_path: Path) -> None:
    timeline = tmp_path / "step.json"
    launch.run(ranks, Path(bytes_sent.__file__), tmp_path / "out", environment={"FORESHAPE_TIMELINE": str(timeline)})
    found = [json.loads((tmp_path / f"out.{rank}.json").read_text()) for rank in range(ranks)]
    for name in bytes_sent.CASES:
        for of_rank in found:
            planned = {what: size for what, size in of_rank[name]["planned"].items() if size}
            assert len(planned) > 1, name
            assert of_rank[name]["sent"] == planned, name
    step = Measured.load(timeline)
    assert len(step.ranks) == ranks and 3 < step.step <= 12 and step.steps == 9
    planned = {what: size for what, size in found[0][bytes_sent.MEASURED]["planned"].items() if size}
    for one in step.ranks:
        sent: dict[str, int] = {}
        for message in one.messages:
            sent[message.type] = sent.get(message.type, 0) + message.bytes
            assert 0 <= message.started <= message.waited <= message.came <= one.seconds
        assert sent == planned
        assert 0 < one.exposed < one.seconds
        assert any(m.started < m.waited for m in one.messages), "some are only started"
