"""Every sample of every operator that is written: clean in onnx's checker and strict inference, and the same in onnxruntime, plain and optimized."""

from __future__ import annotations

import json
import os
import pickle
import subprocess
from pathlib import Path
from typing import Any

import pytest
from support.harness import sampled
from support.written_samples import known, written

from foreshape.errors import FormatError
from foreshape.interop.forms.rules import onnx_writer
from foreshape.language.operator.operator import Operator

SIDE = Path(__file__).parent / "onnx_side.py"


def complaints(samples: dict[str, Any], folder: Path) -> dict[str, list[str]]:
    """Return the complaints of the other Python about each sample; that it ends the process is one."""
    file = folder / "samples.pickle"
    file.write_bytes(pickle.dumps(samples))
    found: dict[str, list[str]] = {}
    while len(found) < len(samples):
        run = subprocess.run([os.environ["ONNX_PYTHON"], str(SIDE), str(file), *found], capture_output=True, text=True, check=False)
        begun = ""
        for line in run.stdout.splitlines():
            name, told = json.loads(line)
            begun = name if told == "begins" else ""
            if told != "begins":
                found[name] = told
        if begun:
            found[begun] = [f"it ends the process: {run.returncode}"]
        elif run.returncode:
            raise AssertionError(run.stderr)
    return found


@pytest.mark.onnx
@pytest.mark.parametrize("opset", [None, 13, 21])
def test_samples_are_the_same_in_onnxruntime(opset: int | None, tmp_path: Path) -> None:
    samples: dict[str, Any] = {}
    for name, cls, sample in sampled():
        if onnx_writer(cls.type) is None and cls.expand is Operator.expand:
            continue
        try:
            made = written(cls, sample, opset)
        except FormatError:  # that these are known is held in tests/interop/onnx/test_written_operators.py
            continue
        if made.want and not made.want.keys() <= made.feed.keys():
            samples[name] = vars(made)
    found = complaints(samples, tmp_path)
    expected = known()["onnxruntime"]
    wrong = {name: told for name, told in found.items() if told and name not in expected}
    assert not wrong, "\n".join(f"{name}: {' | '.join(told)}" for name, told in wrong.items())
    print(f"{sum(not told for told in found.values())} of {len(found)} are the same")
    if opset is None:
        assert [name for name in expected if name in found and not found[name]] == [], "these are the same now: take them out of written_samples.json"
