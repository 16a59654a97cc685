"""Some drawn networks run frozen, and all that were found to fail once: ``python tests/fuzz/frozen.py`` draws more."""

from __future__ import annotations

import json
import os
import random
from typing import Any

import frozen as fuzzer
import frozen_case
import pytest
from frozen_case import KINDS, draw

from foreshape.machine.kernels import frozen as kernels
from foreshape.machine.kernels.onednn_library import SWITCH, library

CASES = [json.loads(line) for line in fuzzer.FOUND.read_text().splitlines()]


def ways() -> list[Any]:
    """Those of this machine."""
    return [pytest.param(way, marks=pytest.mark.skipif(way == "library" and library() is None, reason="oneDNN's library is not here")) for way in fuzzer.WAYS]


def of_seeds(first: int, count: int) -> list[dict[str, Any]]:
    return [draw(random.Random(seed)) for seed in range(first, first + count)]


@pytest.mark.long
@pytest.mark.parametrize("way", ways())
def test_what_failed_once_and_some_drawn_networks_compute_frozen_what_they_compute(way: str) -> None:
    outcome = fuzzer.run_cases([*CASES, *of_seeds(0, 6)], way)
    assert not outcome.faults, outcome.faults
    assert set(outcome.said[: len(CASES)]) == {"compared"} and outcome.said.count("compared") > len(CASES) + 3


@pytest.mark.long
@pytest.mark.parametrize("way", ways())
@pytest.mark.parametrize("processor", ["", "AVX2", "SSE41"])
def test_more_drawn_networks_compute_frozen_what_they_compute(way: str, processor: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that has less, other kernels compute."""
    if processor:
        monkeypatch.setenv("ONEDNN_MAX_CPU_ISA", processor)
    outcome = fuzzer.run_cases([*CASES, *of_seeds(100_000, 400)], way)
    assert not outcome.faults, outcome.faults


def test_every_kind_is_drawn() -> None:
    assert {kind for case in of_seeds(0, 120) for kind, _, _ in case["steps"]} == KINDS.keys()


@pytest.mark.long
def test_a_process_that_dies_is_a_fault_and_the_next_case_runs() -> None:
    dies = {"sizes": [[1, 2, 3, 3]], "open": False, "threads": 1, "steps": [["none", [0], {}]], "out": [1], "seed": 0}
    whole = {**dies, "steps": [["scale", [0], {"scale": 2.0}]]}
    outcome = fuzzer.run_cases([dies, whole], "torch")
    assert [words for _, words in outcome.faults] == ["the process ended with 1"]
    assert outcome.said == ["DEATH", "compared"]


def test_a_wrong_number_is_found_and_its_network_made_small(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(SWITCH, "torch")
    conv = ["conv", [1], {"num_filters": 4, "groups": 1, "kernel_size": [3, 3], "stride": [1, 1], "dilation": [1, 1], "padding": [0, 0], "bias": True}]
    steps = [["activation", [0], {"name": "relu", "numbers": []}], conv, ["softmax", [2], {"axis": 1}]]
    case = {"sizes": [[2, 3, 8, 8], [1, 3, 5, 5]], "open": True, "threads": 1, "steps": steps, "out": [2, 3], "seed": 5}
    assert frozen_case.compare(case) == "compared"
    right = kernels.activated
    monkeypatch.setattr(kernels, "activated", lambda x, following: right(x, following).mul_(1.001))
    assert frozen_case.compare(case).startswith("FAULT [2, 3, 8, 8], value 2, run 0:")
    monkeypatch.setattr(fuzzer, "run_cases", lambda cases, way: fuzzer.Outcome(faults=[(c, "") for c in cases if frozen_case.compare(c).startswith("FAULT")]))
    small = fuzzer.smaller(case, "torch")
    assert [kind for kind, _, _ in small["steps"]] == ["conv"] and len(small["sizes"]) == 1 and small["out"] == [1]


def test_each_way_has_its_variables() -> None:
    assert fuzzer.environment("torch")[SWITCH] == "torch" and SWITCH not in fuzzer.environment("library")
    assert fuzzer.environment("library").items() <= os.environ.items()
