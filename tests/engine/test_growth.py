"""What a process takes beyond its plan when shapes grow: bytes, in processes of their own."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.machine.process import pages

GROWN = Path(__file__).parents[1] / "support" / "grown.py"
MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="pages are kept on Linux with glibc")


@linux
@pytest.mark.parametrize(
    "arguments",
    [
        pytest.param(["convolutions", "256"], marks=pytest.mark.long),
        *(pytest.param(a, marks=pytest.mark.long) for a in (["products", "4096"], ["attention", "256"], ["recurrent", "1024"])),
        *(pytest.param([*a, "inference"], marks=pytest.mark.long) for a in (["convolutions", "256"], ["attention", "512"])),
    ],
    ids=" ".join,
)
def test_a_process_that_grows_takes_little_more_than_its_plan(arguments: list[str]) -> None:
    """A quarter more for holes, and 32 MiB for what oneDNN keeps for eight sizes. With glibc 2.36 a process takes 0.6 to 1.3 plans; keeping all that ever was,
    convolutions took 2.0 to 2.6. Where blocks come to lie differs from process to process: the smallest of three counts."""
    took: dict[str, int] = {}
    for seed in "123":
        environment = os.environ | {"FORESHAPE_KEEP_PAGES": "1", "OMP_NUM_THREADS": "1", "PYTHONHASHSEED": seed}
        done = subprocess.run([sys.executable, str(GROWN), *arguments], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        took = json.loads(done.stdout)
        assert took["grown"] > 0.4 * took["planned"]  # the measure sees what is taken
        if took["grown"] < 1.25 * took["planned"] + 32 * MIB:
            return
    pytest.fail(f"{took}")


def classes() -> tuple[fs.Program, fs.Variable]:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        x, y = layer.data("x", ["batch", 1024]), layer.data("y", ["batch"], "int64")
        loss = layer.mean(layer.softmax_with_cross_entropy(layer.exp(layer.scale(x, 0.5)), y))
    return main, loss


@pytest.fixture
def as_at_first(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """A process in which nothing large has run yet, and what it asks of the allocator."""
    asked: list[str] = []
    monkeypatch.setattr(pages.Growth, "kept", True)
    monkeypatch.setattr(pages.Growth, "_largest", pages.LEAST)
    monkeypatch.setattr(pages, "_give_back", lambda: asked.append("give back"))

    def map_from(size: int) -> bool:
        asked.append("mapped" if size == pages.MAPPED else "kept")
        return True

    monkeypatch.setattr(pages, "_map_from", map_from)
    return asked


ALL = ["give back", "mapped", "kept", "give back", "mapped", "kept", "give back", "give back"]


@pytest.mark.long
def test_the_first_runs_of_a_larger_arena_are_taken_outside_the_heap_and_no_others(as_at_first: list[str]) -> None:
    main, loss = classes()
    executor = fs.Executor()

    def run(batch: int) -> list[str]:
        as_at_first.clear()
        for _ in range(6):
            executor.run(main, {"x": np.zeros((batch, 1024), np.float32), "y": np.zeros(batch, np.int64)}, [loss])
        return as_at_first[:]

    assert run(16) == []  # too small
    assert run(8192) == ALL
    assert run(4096) == run(8192) == run(9000) == []
    assert run(12000) == ALL
    executor = fs.Executor()  # another one, and as large
    assert run(12000) == []


def test_a_run_that_fails_leaves_the_allocator_as_it_was(as_at_first: list[str]) -> None:
    main, loss = classes()
    with pytest.raises(fs.ExecutionError):
        fs.Executor().run(main, {"x": np.zeros((8192, 1024), np.float32), "y": np.full(8192, 5000)}, [loss])
    assert as_at_first == ["give back", "mapped", "kept"]


def test_pages_that_are_not_kept_are_left_to_the_allocator(as_at_first: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pages.Growth, "kept", False)
    main, loss = classes()
    fs.Executor(keep_memory=False).run(main, {"x": np.zeros((8192, 1024), np.float32), "y": np.zeros(8192, np.int64)}, [loss])
    assert as_at_first == []


def test_of_runs_at_once_the_last_ends_what_they_began(as_at_first: list[str]) -> None:
    one, two = pages.Growth.of(1 << 30), pages.Growth.of(1 << 31)
    assert one is not None and two is not None and pages.Growth.of(1 << 30) is None
    for ask in (one.begin, two.begin, one.begin, one.end, two.end):
        ask()
    assert "kept" not in as_at_first
    one.end()
    assert as_at_first[-1] == "kept"
