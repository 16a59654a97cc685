"""The classifier of texts, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "languages.py"


def _run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUTF8": "1"}, encoding="utf-8", check=False
    )


@pytest.mark.long
def test_languages_are_told_apart_after_one_epoch(tmp_path: Path) -> None:
    done = _run(str(EXAMPLE), str(tmp_path), "1")
    assert done.returncode == 0, done.stderr
    assert "input words: i64[words | words.level1 | batch]" in done.stdout and "= sequence_softmax(" in done.stdout
    found = re.search(r"held out: ([\d.]+)% of the texts; always the most frequent language: ([\d.]+)%", done.stdout)
    assert found is not None and float(found[1]) > 80 > 30 > float(found[2]), done.stdout
    table = re.search(r"is \\ read as .*\n((?:.+\n){7})", done.stdout)
    assert table is not None
    counts = [[0 if c == "." else int(c) for c in line.split()[1:]] for line in table[1].splitlines()]
    assert all(len(row) == 7 for row in counts) and sum(max(row) == row[i] for i, row in enumerate(counts)) >= 6, table[0]  # of Fortran there is little
    assert (tmp_path / "languages.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "languages.pdmodel").exists() and (tmp_path / "languages.pdiparams").exists()


def test_what_is_not_installed_is_named(tmp_path: Path) -> None:
    absent = "import importlib.util, runpy, sys; f = importlib.util.find_spec\n"
    absent += "importlib.util.find_spec = lambda name, *a: None if name == 'sklearn' else f(name, *a)\n"
    done = _run("-c", f"{absent}sys.argv = ['languages', {str(tmp_path)!r}]; runpy.run_path({str(EXAMPLE)!r})")
    assert done.returncode == 1 and "hardly any files in Cython" in done.stderr, done.stderr
