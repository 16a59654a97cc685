"""`examples/preflight.py`: its batches, and the whole script for a small network on two cards."""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "examples" / "preflight.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("preflight_example", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_batches_are_within_the_budget(example: ModuleType) -> None:
    sizes = example.batches(16384, count=50)
    assert len(sizes) == 50 and all(0 < rows * length <= 16384 for rows, length in sizes) and len({length for _, length in sizes}) > 20
    assert sizes == example.batches(16384, count=50)


def test_a_small_network_does_not_fit_on_a_small_card(example: ModuleType, capsys: pytest.CaptureFixture[str]) -> None:
    assert example.main(["--tokens", "4096", "--width", "64", "--layers", "1", "--batches", "12", "--device", "1GiB"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("does not fit on 1.0 GiB: ") and " dies first: " in out and "preflight.py:" in out


@pytest.mark.long
def test_the_script_runs_as_a_script() -> None:
    done = subprocess.run([sys.executable, str(EXAMPLE)], capture_output=True, text=True, check=False)
    assert done.returncode in (0, 1) and "H100-80GB" in done.stdout, done.stderr
