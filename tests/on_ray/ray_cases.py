"""A network and its data for ranks on Ray, and the processes of those ranks."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

SOURCE = str(Path(fs.__file__).parents[1])
HERE = str(Path(__file__).parent)
os.environ.setdefault("FORESHAPE_TESTS_ON_RAY", str(os.getpid()))  # what Ray starts inherits it
MARK = f"FORESHAPE_TESTS_ON_RAY={os.environ['FORESHAPE_TESTS_ON_RAY']}".encode()


def described(dropout: float = 0.1, seed: int = 3) -> tuple[fs.Variable, dict[str, Any]]:
    """A network over dense and ragged data, with a sparse table; and the data."""
    x, y = layer.data("x", input_size=8), layer.data("y", dims=1, data_type=fs.INT64)
    words = layer.data("words", shape=["words"], lod_level=1, dtype=fs.INT64)
    hidden = layer.fc(x, 16, "relu") + layer.sequence_pool(layer.embedding(words, size=[30, 16], is_sparse=True), "sum")
    cost = layer.softmax_with_cross_entropy(layer.fc(layer.dropout(hidden, dropout) if dropout else hidden, 4), y)
    fs.default_startup_program().random_seed = seed
    r = np.random.RandomState(seed)
    lengths = r.randint(1, 6, 20)
    return cost, {"x": r.rand(20, 8).astype(np.float32), "y": r.randint(0, 4, (20, 1)), "words": fs.LoDTensor(r.randint(0, 30, lengths.sum()), [lengths])}


def rank_processes(name: bytes = b"ray::Rank") -> list[int]:
    """The processes of ranks of these tests, by what they do."""
    out: list[int] = []
    for folder in Path("/proc").iterdir():
        try:
            ours = folder.name.isdigit() and (folder / "cmdline").read_bytes().startswith(name)
            if ours and MARK in (folder / "environ").read_bytes().split(b"\0"):
                out.append(int(folder.name))
        except OSError:
            continue
    return out


def no_ranks_within(seconds: float) -> bool:
    """Whether all ranks end in time."""
    end = time.monotonic() + seconds
    while rank_processes():
        if time.monotonic() > end:
            return False
        time.sleep(0.1)
    return True


def script(text: str, **variables: str) -> subprocess.Popen[str]:
    """A process of its own that runs a script with these helpers."""
    begin = f"import sys, time\nsys.path.insert(0, {HERE!r})\nimport foreshape as fs\nfrom ray_cases import *\ncost, data = described()\n"
    environment = {**os.environ, "PYTHONPATH": SOURCE, "PYTHONUNBUFFERED": "1", **variables}
    return subprocess.Popen([sys.executable, "-c", begin + text], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment)


def seen(process: subprocess.Popen[str], words: str) -> str:
    """Wait until a process has written some words; return all that it has written."""
    assert process.stdout is not None
    out = ""
    for line in process.stdout:
        out += line
        if words in line:
            return out
    raise AssertionError(out)
