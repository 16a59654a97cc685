"""docs/operators.md is what the operator classes say."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).parents[2] / "docs" / "make_operator_reference.py"


def test_the_operator_reference_is_up_to_date(update: bool) -> None:
    done = subprocess.run([sys.executable, str(SCRIPT), *([] if update else ["--check"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
