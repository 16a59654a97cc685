"""The file of measured figures, from which the tables of the pages are written: ``results.json``.

A benchmark with ``--results`` replaces the rows of what it measured, each with its processor, versions, commit and date. Then
``python docs/make_benchmark_tables.py`` writes the tables anew.
"""

from __future__ import annotations

import json
import platform
import subprocess
import time
from pathlib import Path
from typing import Any

FILE = Path(__file__).with_name("results.json")


def provenance(threads: int) -> dict[str, Any]:
    """Return where and when figures of this process are measured."""
    import torch

    commit = subprocess.run(["git", "describe", "--always", "--dirty"], capture_output=True, text=True, cwd=FILE.parent).stdout.strip()
    names = [line.split(":", 1)[1].strip() for line in Path("/proc/cpuinfo").read_text().splitlines() if line.startswith("model name")]
    processor = f"{len(names)} x {names[0]}, {torch.backends.cpu.get_cpu_capability()}" if names else platform.processor()
    return {"processor": processor, "threads": threads, "torch": torch.__version__, "commit": commit, "date": time.strftime("%Y-%m-%d")}


def read(path: Path = FILE) -> dict[str, Any]:
    """Return all figures: benchmark -> its rows by name, among other facts."""
    return json.loads(path.read_text(encoding="utf-8"))


def write(benchmark: str, rows: dict[str, dict[str, Any]], measured: dict[str, Any], path: Path = FILE) -> None:
    """Replace the figures of the rows that were measured again; words of a row, and other rows, stay."""
    whole = read(path)
    for name, row in rows.items():
        before = whole[benchmark]["rows"].get(name, {})
        whole[benchmark]["rows"][name] = {**before, **row, "measured": measured}
    path.write_text(json.dumps(whole, indent=1) + "\n", encoding="utf-8")
