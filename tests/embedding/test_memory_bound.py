"""An embedder with a bound of memory: its process keeps to it, and what cannot fit is refused in words."""

from __future__ import annotations

import gc
import json
import os
import platform
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from model_folders import write_model

import foreshape as fs
from foreshape.apps.embedding import text_batches
from foreshape.apps.embedding.memory_bound import TextMemoryError
from foreshape.compiler.memory import bytes_of
from foreshape.interop.row_runner import HELD, _RowWorker
from foreshape.machine.kernels.onednn_library import library

BOUNDED = Path(__file__).parents[1] / "support" / "bounded_texts.py"
MIB = 1 << 20
linux = pytest.mark.skipif(sys.platform != "linux" or platform.libc_ver()[0] != "glibc", reason="a process is measured on Linux with glibc")


def long_model(folder: Path, width: int = 16) -> Path:
    positions = {"max_position_embeddings": 8192, "hidden_size": width, "intermediate_size": 2 * width}
    return write_model(folder, {"pooling_mode": "mean"}, "Normalize", tokenizer={"model_max_length": 8192}, **positions)


@linux
@pytest.mark.parametrize(("engine", "memory"), [("", "96MiB"), ("torch", "320MiB")])
def test_the_process_keeps_to_the_bound(engine: str, memory: str, tmp_path: Path) -> None:
    if not engine and library() is None:
        pytest.skip("needs oneDNN's library")
    environment = os.environ | {"OMP_NUM_THREADS": "1", "FORESHAPE_ONEDNN": engine, "FORESHAPE_KEEP_PAGES": "1"}
    command = [sys.executable, str(BOUNDED), str(long_model(tmp_path)), memory, "2000"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert answer["torch"] == bool(engine) and answer["refused"] == [] and answer["words"] > 50_000
    assert 0.4 * bytes_of(memory) < answer["taken"] <= bytes_of(memory), answer  # the measure sees what is taken


@linux
def test_batches_are_cut_by_the_sizes_of_texts_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run after a kill has the same batches, whatever the process has taken by then."""
    model, texts = fs.Embedder(long_model(tmp_path), memory="4GiB", threads=1), ["ship dawn " * n for n in (300, 40, 3, 120, 7)]
    vectors = model.encode(texts)
    batches: list[list[int]] = []
    network = model._network
    run = network.run

    def counted(variable: Any, ids: Any, types: Any, skipped: int = 0) -> Any:
        batches.append([len(x) for x in ids])
        return run(variable, ids, types, skipped)

    monkeypatch.setattr(network, "run", counted)
    monkeypatch.setattr(text_batches, "_SHARE", 4 << 30)
    model._limits.clear()
    np.testing.assert_allclose(model.encode(texts), vectors, atol=1e-6)
    assert batches[1:] == [[602], [242], [82], [16], [8]]  # the first opens the network
    batches.clear()
    assert model.bound is not None
    monkeypatch.setattr(model.bound, "has_room", lambda nbytes: nbytes < 8 << 20)
    model._limits = {key: lambda count, total, most: True for key in model._limits}
    needed = network.nbytes_of_run
    monkeypatch.setattr(network, "nbytes_of_run", lambda v, texts, rows, longest, skipped=0: (texts - 1) << 23 or needed(v, texts, rows, longest))
    np.testing.assert_allclose(model.encode(texts), vectors, atol=1e-6)
    assert batches == [[602], [242], [82], [16], [8]]


@linux
def test_a_text_that_cannot_fit_is_refused_by_its_number(tmp_path: Path) -> None:
    gc.collect()
    model = fs.Embedder(long_model(tmp_path, 64), memory="4GiB", threads=1)
    model.encode("ship")
    bound = model.bound
    assert bound is not None
    bound.size = bound.embedder_bytes + 24 * MIB
    model.encode(["ship dawn"] * 300)
    with pytest.raises(TextMemoryError, match=r'text 301 has 6,002 words; they take about .* MiB, and memory=".*" leaves .* MiB beside the model'):
        list(model.encode_stream(["ship dawn"] * 300 + ["a " * 6000]))
    with pytest.raises(fs.MemoryPlanError, match="text 2 has 1,000,000 characters; cut into words they take"):
        model.encode(["ship", "a " * 500_000])
    assert model.encode("ship").shape == (64,)


@linux
def test_the_callers_values_do_not_count_unless_the_process_is_the_embedders(tmp_path: Path) -> None:
    model = fs.Embedder(long_model(tmp_path), memory="4GiB", threads=1)
    model.encode("ship")
    bound = model.bound
    assert bound is not None
    bound.size = bound.embedder_bytes + 40 * MIB
    arrays, other = np.ones(64 * MIB // 8), fs.Embedder(tmp_path, memory="4GiB", threads=1)
    assert other.encode(["ship dawn"] * 300).shape == (300, 16)
    assert model.encode(["ship dawn"] * 300).shape == (300, 16)
    with pytest.raises(fs.MemoryPlanError, match="has no room for the tokenizer"):
        bound.take_process()
    assert arrays[0] == 1


@linux
def test_the_command_names_the_text_and_keeps_the_rows_before(tmp_path: Path) -> None:
    if library() is None:
        pytest.skip("needs oneDNN's library")
    texts = tmp_path / "t.txt"
    texts.write_text("ship dawn\n" * 300 + "a " * 200_000 + "\n")
    command = [sys.executable, "-m", "foreshape", "embed", str(long_model(tmp_path / "m")), str(texts), "--out", str(tmp_path / "a.npy")]
    done = subprocess.run([*command, "--memory", "120MiB"], capture_output=True, text=True, check=False)
    assert done.returncode == 1 and "text 301 has 400,000 characters" in " ".join(done.stderr.split()), done.stderr
    assert json.loads((tmp_path / "a.npy.journal").read_text())["rows"] == 256


def test_the_memory_of_many_texts_goes_back_when_they_are_done(tmp_path: Path) -> None:
    if library() is None:
        pytest.skip("needs oneDNN's library")
    model, texts = fs.Embedder(long_model(tmp_path, 64), threads=2), ["ship dawn " * n for n in (900, 700, 300, 3)]
    vectors = model.encode(texts)
    runner = model._network._runner
    assert runner is not None and runner.nbytes["values"] <= HELD * runner.threads
    worker = _RowWorker(runner.store, runner._program)
    worker._memory(("rows", 0), HELD, (1,))
    runner._free.append(worker)
    runner.rest()
    assert worker not in runner._free
    np.testing.assert_allclose(model.encode(texts), vectors, atol=1e-6)
