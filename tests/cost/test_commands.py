"""The commands that plan for ranks, as a user types them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from support.commanded import call, facts
from support.planned_networks import machine, stack

import foreshape as fs
from foreshape import layer


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    path = tmp_path / "net.pdmodel"
    stack().save(path)
    monkeypatch.setenv("FORESHAPE_CALIBRATION", str(tmp_path / "calibration.json"))
    return path


def test_a_plan_for_ranks(model: Path, tmp_path: Path) -> None:
    machine().save()
    found = facts("plan", model, "--ranks", 64, "--batch", 4096, "--bandwidth", "25Gb/s", "--latency", "30us", "--within", "1GiB")
    assert found["sizes"] == {"batch": 4096, "ranks": 64}
    assert found["fits"] is True
    assert found["smallest"] == 1
    assert found["time"]["seconds"] == pytest.approx(found["time"]["computing"] + found["time"]["exposed"])
    assert sum(c["bytes"] for c in found["collectives"]) == sum(found["sent"].values())
    code, out, _ = call("plan", model, "--ranks", 64, "--batch", 4096, "--plot", tmp_path / "step.png")
    assert code == 0
    assert "ceil(batch/ranks)" in out
    assert "collectives of a step" in out
    assert (tmp_path / "step.png").stat().st_size > 1000


def test_without_a_calibration_times_are_left_out(model: Path) -> None:
    code, out, _ = call("plan", model, "--ranks", 4, "--batch", 64)
    assert code == 0
    assert "foreshape calibrate" in out
    assert facts("plan", model, "--ranks", 4, "--batch", 64)["time"] is None


def test_what_does_not_fit_ends_with_1(model: Path) -> None:
    code, out, _ = call("plan", model, "--ranks", 4, "--batch", 64, "--within", "1KiB")
    assert code == 1
    assert "however many there are" in out


def test_a_saved_network_is_planned_for_ranks_that_use_it(tmp_path: Path) -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        x = layer.data("x", input_size=32)
        y = layer.fc(layer.fc(x, 64, activation="relu"), 10)
        fs.Executor().run(fs.default_startup_program(), scope=(scope := fs.Scope()))
        fs.save_inference_model(tmp_path / "net", [x], [y], scope=scope)
    model = tmp_path / "net.pdmodel"
    given = ("plan", model, "--ranks", 4, "--batch", 100, "--device", "1TFLOPS:100GB/s")
    found, alone = facts(*given), facts("plan", model, "--batch", 25)
    assert (found["strategy"], found["collectives"], found["sent"]) == ("inference", [], {})
    assert found["peak"] == alone["peak"]
    assert found["time"]["seconds"] == found["time"]["computing"] > 0
    code, out, _ = call(*given, "--plot", tmp_path / "step.svg")
    assert code == 0
    assert "inference for ranks = 4, batch = 100" in out
    assert "nothing is sent: each rank has its part of the examples" in out
    assert facts(*given, "--fetch", "fc_0.tmp_2")["peak"] < found["peak"]


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (("plan", "--ranks", 0), "--ranks"),
        (("plan", "--ranks", 2, "--bandwidth", "fast"), "25Gb/s"),
        (("plan", "--ranks", 2, "--latency", "never"), "30us"),
        (("plan", "--ranks", 2, "--device", "nothing"), "nothing"),
        (("plan", "--ranks", 2, "--fetch", "x"), "without ranks"),
        (("plan", "--ranks", 2), "batch"),
    ],
)
def test_mistakes_are_told_in_plain_words(model: Path, args: tuple[Any, ...], words: str) -> None:
    code, out, err = call(args[0], model, *args[1:])
    assert code != 0
    assert words in out + err
    assert "Traceback" not in out + err


def test_what_is_between_ranks_needs_ranks(tmp_path: Path) -> None:
    code, _, said = call("calibrate", "--link")
    assert code == 1
    assert "torchrun --nproc-per-node 2 -m foreshape calibrate --link" in said
    assert call("calibrate", "--link", "--out", tmp_path / "link.json")[0] == 2
