"""Time and memory: 16 MiB of the worst are decided in 5 seconds of one core and 256 MiB beyond the file's size."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import bounds
import pytest

SECONDS, MIB = 5.0, 256
QUICK = {
    "5-smallest-ops", "5-empty-blocks", "5-slots-in-many-ops", "5-smallest-variables", "7-unknown-fields", "15-packed-integers", "12-an-op-with-many-inputs",
    "8-an-op-with-a-million-blocks", "6-wide-names",
}  # fmt: skip
LINEAR = {"infer": 8.0, "print": 8.0, "save": 5.0, "clone": 5.0}


def measure(name: str) -> dict[str, Any]:
    done = subprocess.run([sys.executable, str(Path(bounds.__file__)), name], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr[-3000:]
    return json.loads(done.stdout)


@pytest.mark.parametrize("name", [pytest.param(n, marks=() if n in QUICK else pytest.mark.long) for n in bounds.CASES])
def test_a_file_is_decided_within_bounds(name: str) -> None:
    found = measure(name)
    assert found["seconds"]["load"] < SECONDS, found
    assert found["mib"] < MIB, found
    for stage, ended in found["ended"].items():
        assert ended == "fine" or ended.startswith("FormatError: "), (stage, ended)


@pytest.mark.parametrize("name", ["12-a-chain", "12-a-variable-with-many-readers"])
def test_a_hundred_thousand_ops_are_inferred_printed_and_saved_in_linear_time(name: str) -> None:
    found = measure(name)
    assert all(ended == "fine" for ended in found["ended"].values()), found
    for stage, most in LINEAR.items():
        assert found["seconds"][stage] < most, found
