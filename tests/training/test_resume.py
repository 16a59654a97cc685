"""A killed run that is started again ends with the same bytes; a checkpoint that is not whole is never used."""

from __future__ import annotations

import errno
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import killed_runs as runs
import numpy as np
import pytest
from support.some import one_in

import foreshape as fs
from foreshape import layer
from foreshape.apps.training import Checkpoint
from foreshape.apps.training.checkpoint import container


@pytest.fixture(scope="module")
def want() -> str:
    return runs.run(None)[0]


def _script(what: str, folder: Path, *options: str) -> list[dict[str, Any]]:
    command = [sys.executable, runs.__file__, what, str(folder), *options]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1800, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


FEW = pytest.mark.parametrize("options", [["few"], pytest.param([], marks=pytest.mark.longest)], ids=["few", "all"])


@FEW
@pytest.mark.long
def test_killed_at_every_boundary_of_writing(tmp_path: Path, options: list[str]) -> None:
    results = _script("boundaries", tmp_path, *options)
    assert all(r["killed"] for r in results), results
    assert [r["at"] for r in results if not r["same"]] == []
    assert all(len(r["left"]) == 2 and all(n.endswith(".safetensors") for n in r["left"]) for r in results), results


@FEW
@pytest.mark.long
def test_killed_at_random_moments(tmp_path: Path, options: list[str]) -> None:
    results = _script("moments", tmp_path, *options)
    assert sum(r["kills"] for r in results) >= len(results), results
    assert all(r["same"] for r in results), results


@pytest.mark.quick_cases("drawn-1", "None-4")
@pytest.mark.parametrize("every", [None, 1, 4])
@pytest.mark.parametrize("data", [None, runs.drawn])
def test_checkpoints_change_nothing_and_a_finished_run_is_not_run_again(tmp_path: Path, every: int | None, data: Any) -> None:
    plain, history = runs.run(None, data=data)
    assert history.steps == runs.STEPS
    assert runs.run(tmp_path, every, data)[0] == plain
    written = {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()}
    again, history_again = runs.run(tmp_path, every, data)
    assert again == plain and history_again.losses == history.losses
    assert {p.name: p.stat().st_mtime_ns for p in tmp_path.iterdir()} == written


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("code", [errno.ENOSPC, errno.EIO])
@pytest.mark.parametrize("at", one_in(3, [1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 17, 20, 23, 26]))
def test_a_write_that_fails_leaves_the_checkpoints_before(tmp_path: Path, want: str, at: int, code: int) -> None:
    def fail(what: str) -> None:
        raise OSError(code, os.strerror(code))

    with runs.Boundaries(at, fail) as boundaries, pytest.raises(fs.FormatError, match=os.strerror(code)):
        runs.run(tmp_path)
    assert boundaries.count >= at
    assert [p.name for p in tmp_path.iterdir() if p.name.startswith(".")] == []  # nothing unfinished is left
    for path in tmp_path.iterdir():
        container.read(path)
    assert runs.run(tmp_path)[0] == want


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_disk_that_is_full(tmp_path: Path, want: str, monkeypatch: pytest.MonkeyPatch) -> None:
    runs.run(tmp_path, every=4)
    newest = Checkpoint(tmp_path).files()[0]
    before = {p.name: p.read_bytes() for p in tmp_path.iterdir()}

    opened = os.open
    monkeypatch.setattr(os, "open", lambda at, *how: opened("/dev/full", os.O_WRONLY) if ".writing-" in str(at) else opened(at, *how))
    tensors, facts = container.read(newest)
    with pytest.raises(fs.FormatError, match="No space left"):
        container.write(newest, tensors, facts)
    monkeypatch.undo()
    assert {p.name: p.read_bytes() for p in tmp_path.iterdir()} == before
    assert runs.run(tmp_path)[0] == want


@pytest.mark.parametrize("every", [9, pytest.param(1, marks=pytest.mark.long)])
def test_every_flipped_bit_and_every_cut_is_found(tmp_path: Path, every: int) -> None:
    """All of them, or a bit of each byte and a ninth of the cuts."""
    import torch

    path = tmp_path / "c"
    container.write(path, {"a": torch.arange(24, dtype=torch.float32).reshape(2, 12), "b": torch.ones(3, dtype=torch.bfloat16)}, {"step": 7})
    tensors, facts = container.read(path)
    assert facts == {"step": 7} and torch.equal(tensors["a"], torch.arange(24.0).reshape(2, 12)) and tensors["b"].dtype is torch.bfloat16
    whole = path.read_bytes()
    for at in range(0, len(whole) * 8, every):
        broken = bytearray(whole)
        broken[at // 8] ^= 1 << at % 8
        path.write_bytes(broken)
        with pytest.raises(fs.FormatError):
            container.read(path)
    for size in range(0, len(whole), every):
        path.write_bytes(whole[:size])
        with pytest.raises(fs.FormatError):
            container.read(path)
    path.write_bytes(whole + b"\0")
    with pytest.raises(fs.FormatError):
        container.read(path)


def test_the_file_is_one_that_safetensors_opens(tmp_path: Path) -> None:
    from safetensors import safe_open

    runs.run(tmp_path)
    with safe_open(Checkpoint(tmp_path).files()[0], "pt") as file:
        assert "value/fc_0.w_0" in file.keys()  # noqa: SIM118
        assert json.loads(file.metadata()["facts"])["position"] == [runs.EPOCHS + 1, 0]


def test_a_broken_checkpoint_is_skipped_and_that_is_said(tmp_path: Path, want: str, capsys: pytest.CaptureFixture[str]) -> None:
    runs.run(tmp_path, every=4)
    newest, before = Checkpoint(tmp_path).files()
    Path(newest).write_bytes(Path(newest).read_bytes()[:-5])
    assert runs.run(tmp_path, every=4)[0] == want
    said = capsys.readouterr().err
    assert "skipped" in said and newest in said and before not in said


def test_where_none_is_whole_nothing_is_begun_anew(tmp_path: Path) -> None:
    runs.run(tmp_path, every=4)
    for path in Checkpoint(tmp_path).files():
        Path(path).write_bytes(b"")
    with pytest.raises(fs.FormatError, match="no checkpoint is whole"):
        runs.run(tmp_path, every=4)


def _other(width: int = 64, activation: str = "relu", more: bool = False) -> tuple[fs.Program, Any]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x, y = layer.data("x", 12), layer.data("y", 1, "int64")
        h = layer.fc(x, width, activation)
        if more:
            h = layer.fc(h, width)
        cost = layer.softmax_with_cross_entropy(layer.fc(h, 5), y)
    return startup, cost


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"width": 32}, r"fc_0\.w_0 is f32\[12, 64\] in the checkpoint, and f32\[12, 32\] in the program"),
        ({"more": True}, r"fc_2\.w_0 \(f32\[64, 5\]\) is in the program, and the checkpoint has no such value"),
        ({"activation": "tanh"}, r"op 2 is in the checkpoint\n.*relu\(.*\n.*\n.*tanh\("),
    ],
)
def test_a_checkpoint_of_another_program_is_refused(tmp_path: Path, change: dict[str, Any], says: str) -> None:
    options: dict[str, Any] = {"progress": False, "checkpoint": tmp_path, "batch_size": 8}
    startup, cost = _other()
    fs.train(cost, runs.arrays(), startup=startup, scope=fs.Scope(), **options)
    startup, cost = _other(**change)
    scope, executor = fs.Scope(), fs.Executor(seed=1)
    random_before = executor.random_state()
    with pytest.raises(fs.ExecutionError, match=says):
        fs.train(cost, runs.arrays(), startup=startup, scope=scope, executor=executor, **options)
    assert scope.names() == [] and (executor.random_state() == random_before).all()  # nothing is half-loaded


def test_a_checkpoint_of_other_data_is_refused(tmp_path: Path) -> None:
    startup, cost = _other()
    fs.train(cost, runs.arrays(), startup=startup, scope=fs.Scope(), progress=False, checkpoint=tmp_path, batch_size=8)
    startup, cost = _other()
    with pytest.raises(fs.ExecutionError, match="batch_size of the data was 8, and is 4"):
        fs.train(cost, runs.arrays(), startup=startup, scope=fs.Scope(), progress=False, checkpoint=tmp_path, batch_size=4)


def test_more_epochs_go_on_from_the_end(tmp_path: Path) -> None:
    def train(epochs: int, folder: Path | None) -> Any:
        startup, cost = _other()
        scope = fs.Scope()
        history = fs.train(cost, runs.arrays(), startup=startup, scope=scope, progress=False, checkpoint=folder, epochs=epochs)
        return history.losses, scope.get("fc_0.w_0").tobytes()

    train(2, tmp_path)
    assert train(5, tmp_path) == train(5, None)


@pytest.mark.quick_cases("drawn-7")
@pytest.mark.parametrize("program_seed", [0, 7])
@pytest.mark.parametrize("data", [None, runs.drawn])
def test_evaluation_and_seeds_of_programs_do_not_come_between(tmp_path: Path, program_seed: int, data: Any) -> None:
    def run(folder: Path | None, stop: int = 0) -> tuple[str, list[Any]]:
        digest, history = runs.run(
            folder, 2, data, program_seed, validation=runs.drawn if data else runs.arrays(), callbacks=[lambda epoch, row: epoch == stop]
        )
        return digest, [history.losses, history.column("loss"), history.column("validation loss")]

    plain = run(None)
    assert len(run(tmp_path, stop=1)[1][1]) == 1
    assert len(run(tmp_path, stop=2)[1][1]) == 2
    assert run(tmp_path) == plain
    assert plain[0] == runs.run(None, data=data, program_seed=program_seed)[0]
    assert plain[0] != runs.run(None, data=data, program_seed=program_seed + 1)[0]


def test_an_executor_without_a_seed_goes_on_from_where_it_was(tmp_path: Path) -> None:
    runs.run(tmp_path / "a", 2, executor=fs.Executor(seed=None), callbacks=[lambda epoch, row: epoch == 1])
    shutil.copytree(tmp_path / "a", tmp_path / "b")
    assert runs.run(tmp_path / "a", 2, executor=fs.Executor(seed=None))[0] == runs.run(tmp_path / "b", 2, executor=fs.Executor(seed=None))[0]
    assert runs.run(None, executor=fs.Executor(seed=None))[0] != runs.run(None, executor=fs.Executor(seed=None))[0]


def test_only_the_newest_are_kept(tmp_path: Path) -> None:
    startup, cost = _other()
    fs.train(cost, runs.arrays(), startup=startup, scope=fs.Scope(), progress=False, checkpoint=Checkpoint(tmp_path, every=1, keep=3), batch_size=8)
    assert sorted(p.name for p in tmp_path.iterdir()) == [f"step-{n:09d}.safetensors" for n in (3, 4, 5)]


def test_a_place_that_cannot_be_written_to(tmp_path: Path) -> None:
    startup, cost = _other()
    (tmp_path / "file").write_text("")
    with pytest.raises(fs.FormatError, match="file"):
        fs.train(cost, runs.arrays(), startup=startup, scope=fs.Scope(), progress=False, checkpoint=tmp_path / "file" / "folder")


def test_a_finished_run_that_is_resumed_says_that_it_is_finished(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    x = layer.data("x", input_size=2)
    cost = layer.mean(layer.fc(x, 1))
    for _ in range(2):
        fs.train(cost, {"x": np.ones((4, 2), "float32")}, epochs=2, batch_size=4, checkpoint=tmp_path / "run", scope=fs.Scope())
    assert "resumed after step 2 (all 2 epochs are done)" in capsys.readouterr().out
