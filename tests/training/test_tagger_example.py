"""The sequence labeller, as a user runs it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "tagger.py"


@pytest.mark.longest
def test_the_tagger_reads_python_after_one_epoch(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path), "1"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "characters: i64[characters | batch]" in done.stdout and "= linear_chain_crf(" in done.stdout
    found = re.search(r"held out: ([\d.]+)% of the characters; .* F1 ([\d.]+)%", done.stdout)
    assert found is not None and float(found[1]) > 95 and float(found[2]) > 85, done.stdout
    assert (tmp_path / "tagger.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "tagger.pdmodel").exists() and (tmp_path / "tagger.pdiparams").exists()
