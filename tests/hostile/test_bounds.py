"""Work and memory: the worst of files take both in proportion to their size, and 16 MiB no more than 256 MiB besides."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bounds
import pytest
from support.counted import NO_SQUARE, power

MIB, QUICK_MIB = 256, 80
"""Of memory, for a whole file and for a small one."""
CALLS_PER_BYTE = 20
TRIES = 3
QUICK = {
    "5-smallest-ops", "5-empty-blocks", "5-slots-in-many-ops", "5-smallest-variables", "7-unknown-fields", "15-packed-integers", "12-an-op-with-many-inputs",
    "8-an-op-with-a-million-blocks", "6-wide-names", "12-a-chain", "12-a-variable-with-many-readers", "22-guards-in-a-chain",
}  # fmt: skip
ALL_STAGES = {"12-a-chain", "12-a-variable-with-many-readers"}


def measure(name: str, whole: int) -> dict[str, Any]:
    """What a process of its own says; the limit is for one that hangs, and measures nothing."""
    done = subprocess.run([sys.executable, str(Path(bounds.__file__)), name, str(whole)], capture_output=True, text=True, timeout=1800)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


def check(name: str, whole: int, most: int) -> None:
    least: dict[str, list[float]] = {}
    steep: list[str] = []
    for _ in range(TRIES):  # other processes share the processor's memory, so that one may seem steep that is not
        found = measure(name, whole)
        assert found["mib"] < most, found
        for stage, ended in found["ended"].items():
            assert ended == "fine" or ended.startswith("FormatError: "), (stage, ended)
        if name in ALL_STAGES:
            assert set(found["ended"].values()) == {"fine"} and len(found["ended"]) == 5, found
        for stage, count in found["calls"].items():
            assert count < CALLS_PER_BYTE * whole / bounds.PARTS[0] + 1000, (stage, found)
        for stage, times in found["seconds"].items():
            least[stage] = [min(pair) for pair in zip(times, least.get(stage, times), strict=True)]
        sizes = [whole // part for part in bounds.PARTS]
        steep = [stage for stage, times in least.items() if len(times) > 1 and power(sizes[: len(times)], times) > NO_SQUARE]
        if not steep:
            return
    raise AssertionError(f"{', '.join(steep)}: {least}")


@pytest.mark.parametrize("name", [n if n == "7-unknown-fields" else pytest.param(n, marks=pytest.mark.long) for n in sorted(QUICK)])
def test_a_file_is_decided_in_proportion_to_its_size(name: str) -> None:
    check(name, bounds.WHOLE // 64, QUICK_MIB)


@pytest.mark.longest
@pytest.mark.parametrize("name", bounds.CASES)
def test_a_file_of_16_mib_is_decided_within_bounds(name: str) -> None:
    check(name, bounds.WHOLE, MIB)
