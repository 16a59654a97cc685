"""The demonstration and the example, as a user runs them."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
from rich.console import Console

import foreshape as fs
from foreshape.apps.training import demo
from foreshape.apps.training.classify import drawn

EXAMPLE = Path(__file__).parents[2] / "examples" / "digits.py"


def _run(folder: Path, epochs: int, terminal: bool = False) -> tuple[float, str]:
    out = io.StringIO()
    console = Console(file=out, width=120, force_terminal=terminal, color_system="truecolor" if terminal else None)
    return demo.run(folder, console, epochs), out.getvalue()


def _checked(folder: Path, accuracy: float, shown: str) -> None:
    assert {p.name for p in folder.iterdir()} == {"digits.pdmodel", "digits.pdiparams", "digits.png", "training.png", "predictions.json"}
    for name in ("digits.png", "training.png"):
        assert (folder / name).read_bytes().startswith(b"\x89PNG")
    found = json.loads((folder / "predictions.json").read_text())
    assert found["accuracy"] == pytest.approx(accuracy) and len(found["predicted"]) == len(found["labels"]) == 360
    assert np.mean(np.array(found["predicted"]) == found["labels"]) == pytest.approx(accuracy)
    assert found["labels"] == demo.digits()[1]["label"][:, 0].tolist()
    for text in ("[32, 32, 8, 8]", "multiply-adds", "45,162 numbers", f"test accuracy {accuracy:.2%}", "digits.pdmodel", "fresh process"):
        assert text in shown, text


@pytest.mark.long
def test_the_demonstration_in_few_epochs(tmp_path: Path) -> None:
    accuracy, shown = _run(tmp_path / "out", 2)
    assert accuracy >= 0.9
    _checked(tmp_path / "out", accuracy, shown)
    assert "\x1b" not in shown and any(half in shown for half in "▄▀") and "epoch 2/2" in shown
    # what the fresh process saw is what this one sees in the saved files
    program, feeds, fetches = fs.load_inference_model(str(tmp_path / "out" / "digits"), scope=(scope := fs.Scope()))
    (scores,) = fs.Executor().run(program, {feeds[0]: demo.digits()[1]["image"]}, fetches, scope)
    assert scores.argmax(1).tolist() == json.loads((tmp_path / "out" / "predictions.json").read_text())["predicted"]


@pytest.mark.long
def test_the_whole_demonstration_on_a_terminal(tmp_path: Path) -> None:
    accuracy, shown = _run(tmp_path, demo.EPOCHS, terminal=True)
    assert accuracy >= 0.985
    assert "\x1b[" in shown and "▄" in shown and "examples/s" in shown


def test_a_fresh_process_that_fails_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fs, "save_inference_model", lambda prefix, *args, **named: [Path(prefix + end).write_bytes(b"x") for end in (".pdmodel", ".pdiparams")])
    with pytest.raises(fs.ExecutionError, match=r"(?s)the fresh process failed.*FormatError"):
        _run(tmp_path, 0)


def test_digits_are_cut_alike_each_time() -> None:
    train, test = demo.digits()
    assert train["image"].shape == (1437, 1, 8, 8) and test["label"].shape == (360, 1)
    assert train["image"].dtype == np.float32 and test["label"].dtype == np.int64 and train["image"].max() == 1.0
    assert (demo.digits()[1]["image"] == test["image"]).all()


def test_half_blocks_show_two_pixels_each() -> None:
    image = np.array([[0.0, 1.0, 0.0, 1.0], [0.0, 0.0, 1.0, 1.0]])
    assert drawn([image], ["7"], colours=False).plain == " ▀▄█   \n7      \n"
    coloured = drawn([image, image], ["7", "1, is 7"], colours=True)
    assert coloured.plain.splitlines()[0] == "▄▄▄▄   ▄▄▄▄   "
    first = coloured.spans[1].style
    assert first.color.triplet.red == 0 and first.bgcolor.triplet.red == 255


@pytest.mark.long
def test_the_example_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE), str(tmp_path), "2"], capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr
    lines = done.stdout.splitlines()
    assert lines[0] == "[batch, 64, 2, 2]" and "epoch 2/2" in done.stdout
    assert float(lines[-1].split()[2].rstrip("%")) >= 85
    assert (tmp_path / "digits.pdmodel").exists() and (tmp_path / "digits.pdiparams").exists()
