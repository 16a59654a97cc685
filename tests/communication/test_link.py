"""What ranks find between them is the same on each, and a plan can be made of it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support import launch_ranks as launch
from support import measured_link
from support.planned_networks import machine, stack

import foreshape as fs
from foreshape.compiler.cost.device import Machine, Slower
from foreshape.machine.communication.process_group import WHOLE


@pytest.mark.long
def test_all_ranks_find_the_same(tmp_path: Path) -> None:
    launch.run(2, Path(measured_link.__file__), tmp_path / "out")
    first, second = (json.loads((tmp_path / f"out.{rank}.json").read_text()) for rank in range(2))
    assert first == second
    slower = Slower(*first.pop("slower"))
    network = fs.Network(**first)
    assert all(times is not None and times >= 1.0 for times in slower)
    assert network.whole == WHOLE
    assert network.latency > 0
    assert network.processor > 0
    assert network.handling > 0
    assert fs.plan(stack(), ranks=2, batch=64, network=network, device=Machine(machine(), 1, slower)).timeline().seconds > 0
