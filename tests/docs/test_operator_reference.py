"""docs/operators.md and docs/operators/ are what the operator classes say, docs/onnx.md what the functions of ONNX's operators say,
docs/compatibility.md what was kept of the comparison with PaddlePaddle, the tables of figures what benchmarks wrote; the pictures are of the networks that the
pages describe."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"


SCRIPTS = (
    "make_operator_reference.py",
    "make_onnx_reference.py",
    "make_compatibility.py",
    "make_pictures.py",
    "make_architecture.py",
    "make_benchmark_tables.py",
)


@pytest.mark.long_cases("make_onnx_reference.py")
@pytest.mark.parametrize("script", SCRIPTS)
def test_the_operator_reference_is_up_to_date(script: str, update: bool) -> None:
    done = subprocess.run([sys.executable, str(DOCS / script), *([] if update else ["--check"])], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_the_first_figures_of_the_readme_are_those_of_the_benchmarks() -> None:
    results = json.loads((ROOT / "benchmarks" / "results.json").read_text())
    steps = [row["ms"] / row["torch_ms"] for row in results["training_steps"]["rows"].values()]
    modules = [row["time"] for row in results["torch_families"]["rows"].values()]
    first = " ".join((ROOT / "README.md").read_text().partition("- **Fast.**")[2].partition("- **Ragged.**")[0].split())
    assert f"takes {min(steps):.2f} to {max(steps):.2f} of eager PyTorch's time" in first
    assert f"takes about its eager time, {min(modules):.2f} to {max(modules):.2f}" in first
    assert all({"processor", "commit", "date"} <= row["measured"].keys() for of in results.values() for row in of["rows"].values())
    compared = (DOCS / "how-it-compares.md").read_text()
    assert f"from {min(modules):.2f} to {max(modules):.2f} of it in the networks measured" in " ".join(compared.split())
