"""A short run of the fuzzer, the same each time."""

from __future__ import annotations

from pathlib import Path

import fuzz
import pytest


@pytest.mark.parametrize("seed", range(4), ids=lambda s: f"1-fuzz-{s}")
def test_mutated_programs_are_read_or_refused(seed: int, tmp_path: Path) -> None:
    counts = fuzz.run(60, seed, most=150, failures=tmp_path)
    assert counts["FAILED"] == 0
    assert counts["refused"] > 20 and counts.total() - counts["refused"] > 20, counts


def test_a_failure_is_counted_and_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(data: bytes) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(fuzz, "survive", broken)
    assert fuzz.run(60, 1, most=12, failures=tmp_path)["FAILED"] == 10
    assert len(list(tmp_path.iterdir())) == 10
