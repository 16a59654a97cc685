"""A short run of the fuzzer, the same each time."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import files
import pytest
from support.some import one_in


@pytest.mark.long_cases("measured steps", "checkpoints, right checksum")
@pytest.mark.parametrize("family", one_in(2, files.MAKERS))
def test_mutated_and_crafted_files_are_read_or_refused(family: str, tmp_path: Path) -> None:
    crafted = family == "programs, crafted"  # which are whole, and looked at by everything
    slow = any(words in family for words in ("checkpoints", "PaddlePaddle 3, crafted", "measured steps"))
    counts = files.run(math.inf, 1, most=30 if crafted else 40 if slow else 150, folder=tmp_path, families=[family])
    assert not list(tmp_path.glob("case-*"))
    assert counts[f"{family}: read, with errors" if crafted else f"{family}: refused"] > 8, counts
    assert counts[f"{family}: run"] > 8 or not family.endswith("crafted") or not family.startswith("programs"), counts


def test_a_case_is_the_same_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[bytes] = []

    def look(path: Path) -> str:
        seen.append(path.read_bytes())
        return "read"

    monkeypatch.setattr(files, "READERS", dict.fromkeys(files.READERS, look))
    files.run(math.inf, 5, most=12, folder=tmp_path)
    files.run(math.inf, 5, folder=tmp_path, only=11)
    assert len(seen) == 13 and seen[11] == seen[12]


def test_a_violation_ends_the_run_and_its_file_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(path: Path) -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(files, "READERS", dict.fromkeys(files.READERS, broken))
    with pytest.raises(files.Violation, match=r"--seed 1 --only 0(.|\n)*ZeroDivisionError"):
        files.run(math.inf, 1, most=12, folder=tmp_path)
    assert len(list(tmp_path.glob("case-1-0.*"))) == 1


@pytest.mark.long
def test_what_kills_the_process_is_a_violation(tmp_path: Path) -> None:
    import os
    import subprocess
    import sys

    script = tmp_path / "dies.py"
    script.write_text(
        f"import os, sys\nsys.path.insert(0, {str(Path(files.__file__).parent)!r})\nimport files\n"
        "files.READERS = dict.fromkeys(files.READERS, lambda path: os.abort())\nfiles.__file__ = __file__\nsys.exit(files.main())\n"
    )
    environment = {**os.environ, "TMPDIR": str(tmp_path)}
    done = subprocess.run([sys.executable, script, "--seconds", "60", "--seed", "3"], capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 1 and "seed 3: ended with -6; the case: " in done.stderr and "case-3-0" in done.stderr
