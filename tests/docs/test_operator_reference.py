"""docs/operators.md and docs/operators/ are what the operator classes say, docs/onnx.md what the functions of ONNX's operators say,
docs/compatibility.md what was kept of the comparison with PaddlePaddle, and the pictures are of the networks that the pages describe."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

DOCS = Path(__file__).parents[2] / "docs"


SCRIPTS = ("make_operator_reference.py", "make_onnx_reference.py", "make_compatibility.py", "make_pictures.py", "make_architecture.py")


@pytest.mark.parametrize("script", SCRIPTS)
def test_the_operator_reference_is_up_to_date(script: str, update: bool) -> None:
    done = subprocess.run([sys.executable, str(DOCS / script), *([] if update else ["--check"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
