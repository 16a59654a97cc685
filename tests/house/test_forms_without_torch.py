"""The forms of operators are read where torch is not installed: a model of ONNX is described, planned and converted there."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
sys.modules["torch"] = None
from foreshape.interop.forms.rules import import_families, types_in_onnx
import_families()
print(len(types_in_onnx()) > 300)
"""


def test_all_families_are_imported_without_torch() -> None:
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, encoding="utf-8", check=False)
    assert done.stdout.split() == ["True"], done.stderr
