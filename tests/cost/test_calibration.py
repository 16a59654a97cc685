"""Calibrations: curves between what was measured, and files that are read whole or not at all."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from support.planned_networks import machine

import foreshape as fs
from foreshape.compiler.cost import Calibration
from foreshape.compiler.cost.calibration import Curve, default_path


def test_a_curve_goes_through_what_was_measured() -> None:
    curve = Curve([[1e3, 1e-6], [1e5, 4e-6], [1e7, 1e-3]])
    assert curve((1e3,)) == pytest.approx(1e-6)
    assert curve((1e5,)) == pytest.approx(4e-6)
    assert curve((1e4,)) == pytest.approx(2e-6)  # the middle, in logarithms
    assert curve((1e8,)) == pytest.approx(1e-2)  # as much longer as it is larger
    assert curve((10,)) == pytest.approx(1e-6)  # no less than the smallest


def test_a_product_between_measured_sizes_takes_what_its_neighbours_say() -> None:
    points = [[float(m), float(k), float(n), 1e-11 * m * k * n] for m in (8, 64, 512) for k in (8, 64, 512) for n in (8, 64, 512)]
    curve = Curve(points)
    for at in ((8, 8, 8), (512, 512, 512), (20, 100, 300), (64, 64, 64), (300, 10, 30)):
        assert curve(at) == pytest.approx(1e-11 * at[0] * at[1] * at[2], rel=0.02)
    assert curve((5120, 512, 512)) == pytest.approx(10 * curve((512, 512, 512)), rel=0.001)


def test_what_only_says_what_is_the_case_does_not_make_a_call_longer() -> None:
    curve = Curve([[float(b), float(t), 1e-9 * b] for b in (1e3, 1e6) for t in (1e5, 1e7)])
    assert curve((1e6, 1e9), 1) == pytest.approx(1e-3, rel=0.01)
    assert curve((1e6, 1e9)) == pytest.approx(1e-1, rel=0.01)


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    path = machine().save(tmp_path / "deep" / "calibration.json")
    found = Calibration.load(path)
    assert found == machine()
    assert [p.name for p in path.parent.iterdir()] == ["calibration.json"]
    assert found.on(1) is found.threads[1]
    assert found.on(7) is found.threads[2]


def test_where_it_lies(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("FORESHAPE_CALIBRATION", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_path() == tmp_path / "foreshape" / "calibration.json"
    with pytest.raises(fs.FormatError if hasattr(fs, "FormatError") else Exception, match="foreshape calibrate"):
        Calibration.load()
    machine().save()
    assert Calibration.load() == machine()
    monkeypatch.setenv("FORESHAPE_CALIBRATION", str(tmp_path / "mine"))
    assert default_path() == tmp_path / "mine"


def test_a_file_that_ends_early_is_refused(tmp_path: Path) -> None:
    whole = machine().save(tmp_path / "whole").read_bytes()
    for end in range(0, len(whole), 37):
        (tmp_path / "part").write_bytes(whole[:end])
        with pytest.raises(fs.ForeshapeError):
            Calibration.load(tmp_path / "part")


def _changed(change: Any) -> Any:
    kernels: dict[str, Any] = {"step": 1e-5, "among": 1e-7, "kinds": {"relu": [[10.0, 1e-6]]}, "memory": [[10, 1e-9]]}
    found: Any = {"format": 2, "machine": "m", "threads": {"1": kernels}}
    change(found)
    return found


@pytest.mark.parametrize(
    "change",
    [
        lambda f: f.update(format=1),
        lambda f: f.update(machine=7),
        lambda f: f.update(more=1),
        lambda f: f.pop("threads"),
        lambda f: f.update(threads={}),
        lambda f: f.update(threads=[]),
        lambda f: f["threads"].update({"0": f["threads"]["1"]}),
        lambda f: f["threads"].update({"x": f["threads"]["1"]}),
        lambda f: f["threads"].update({"9" * 30: f["threads"]["1"]}),
        lambda f: f["threads"]["1"].update(step=0),
        lambda f: f["threads"]["1"].update(step=True),
        lambda f: f["threads"]["1"].update(among=-1e-6),
        lambda f: f["threads"]["1"].pop("among"),
        lambda f: f["threads"]["1"].update(step="1"),
        lambda f: f["threads"]["1"].update(memory=[]),
        lambda f: f["threads"]["1"].update(memory=[[1, 2, 3]]),
        lambda f: f["threads"]["1"]["kinds"].update(relu=[[1.0]]),
        lambda f: f["threads"]["1"]["kinds"].update(relu=[[-1.0, 1.0]]),
        lambda f: f["threads"]["1"]["kinds"].update(relu=[[1e300, 1.0]]),
        lambda f: f["threads"]["1"]["kinds"].update(relu=[[1.0, 1.0], [1.0, 2.0, 3.0]]),
        lambda f: f["threads"]["1"]["kinds"].update(relu={"a": 1}),
        lambda f: f["threads"]["1"]["kinds"].update(relu=[[[1.0], 1.0]]),
    ],
)
def test_what_is_no_calibration_is_refused(tmp_path: Path, change: Any) -> None:
    path = tmp_path / "file"
    path.write_text(json.dumps(_changed(lambda f: None)))
    assert Calibration.load(path).machine == "m"
    path.write_text(json.dumps(_changed(change)))
    with pytest.raises(fs.ForeshapeError):
        Calibration.load(path)


def test_of_another_format_it_is_said_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "file").write_text(json.dumps(_changed(lambda f: f.update(format=1))))
    with pytest.raises(fs.FormatError, match="of format 1; this version reads 2: run `foreshape calibrate` again"):
        Calibration.load(tmp_path / "file")


@pytest.mark.parametrize("text", ["", "[]", "null", "{", '{"format": NaN}', "[" * 100_000, "\x00", '{"format": 2e999}', "9" * 6000])
def test_what_is_no_such_json_is_refused(tmp_path: Path, text: str) -> None:
    (tmp_path / "file").write_text(text)
    with pytest.raises(fs.ForeshapeError):
        Calibration.load(tmp_path / "file")
