"""``make bench``: Foreshape beside what a user would pick instead, in one run, interleaved. Ratios count, not seconds.

    python benchmarks/run.py [--workloads "W1 W2"] [--repeats 5] [--seconds 1] [--variants "eager fused"] [--results]

Each framework runs in a process of its own; the processes take turns, so that a machine that slows down slows all of them.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import results
import workloads
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent


class Peer:
    """A worker process. ``environment`` is added to ours, and ``place`` is given the process' number as it begins."""

    def __init__(
        self, workload: str, module: str, variant: str, batch: int | None = None, environment: Mapping[str, str] | None = None,
        place: Callable[[int], Any] | None = None,
    ) -> None:  # fmt: skip
        self.label = f"{module.removeprefix('with_')} {variant}".strip()
        command = [sys.executable, str(HERE / "worker.py"), workload, module, variant, *([] if batch is None else [str(batch)])]
        whole = {**os.environ, **(environment or {})}
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE, env=whole)
        if place is not None:
            place(self.process.pid)
        self.ready = self.read()
        self.times: list[float] = []
        self.last: dict[str, float] = {}

    def read(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit(f"{self.label} stopped")
        return json.loads(line)

    def ask(self, line: str) -> dict[str, Any]:
        assert self.process.stdin is not None
        print(line, file=self.process.stdin, flush=True)
        return self.read()

    def measure(self, seconds: float) -> None:
        self.last = self.ask(f"time {seconds}")
        self.times.append(self.last["ms"])

    def close(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


def _variants(given: str | None, workload: str) -> list[str]:
    return given.split() if given is not None else ["eager", "fused", *(["packed"] if workload in ("W4", "W9") else [])]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="W1 W2 W3 W4 W5 W5b W6 W8 W9 TOWERS UNET")
    parser.add_argument("--variants", help="of torch: eager, fused, compile, and for texts packed; eager and fused where left out, for texts packed too")
    parser.add_argument("--bf16", action="store_true", help="products and convolutions in 16 bits; torch by autocast")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--describe", action=argparse.BooleanOptionalAction, default=True, help="also measure describing and inferring")
    parser.add_argument("--results", action="store_true", help="write the figures into results.json, which the tables of the pages are made of")
    chosen = parser.parse_args()
    rows: dict[str, dict[str, Any]] = {}
    console = Console() if sys.stdout.isatty() else Console(width=140)
    table = Table("workload", "framework", "ms per step", "spread", "torch eager / this", "faults per step", "peak MiB", "loss gap", title="training steps")
    met: list[str] = []
    for name in chosen.workloads.split():
        half = " bf16" if chosen.bf16 else ""
        others = [Peer(name, "with_torch", v + half) for v in _variants(chosen.variants, name)]
        if name == "W9" and not chosen.bf16 and find_spec("jax") is not None and find_spec("optax") is not None:
            others.append(Peer(name, "with_jax", "by mask"))
        peers = [Peer(name, "with_foreshape", half.strip()), *others]
        for _ in range(chosen.repeats):
            for peer in peers:
                peer.measure(chosen.seconds)
        eager = next((p for p in peers if p.label == f"torch eager{half}"), peers[-1])
        for peer in peers:
            ratios = [e / t for e, t in zip(eager.times, peer.times, strict=True)]
            gap = max(abs(peer.ready["losses"][k] - loss) for k, loss in workloads.REFERENCE[name].items())
            table.add_row(
                name, peer.label, f"{statistics.median(peer.times):.3f}", f"{min(peer.times):.3f} .. {max(peer.times):.3f}",
                f"{statistics.median(ratios):.2f}", f"{peer.last['faults']:.1f}", f"{peer.last['peak_mib']:.0f}", f"{gap:.1e}",
            )  # fmt: skip
            peer.close()
        table.add_section()
        ours, *others = peers
        best = statistics.median(min(p.times[k] for p in others) / ours.times[k] for k in range(chosen.repeats))
        middle = {p: statistics.median(p.times) for p in peers}
        fastest = min((p for p in others if p.label.startswith("torch")), key=lambda p: middle[p])
        rows[name] = {"ms": float(f"{middle[ours]:.3g}"), "torch_ms": float(f"{middle[fastest]:.3g}"), "faster": round(middle[fastest] / middle[ours], 2),
                      "faults": round(ours.last["faults"]), "torch_faults": round(fastest.last["faults"])}  # fmt: skip
        if name in workloads.GOALS:
            met.append(f"{name}: {best:.2f} times as fast as the best other one; required 1, goal {workloads.GOALS[name]}")
    console.print(table)
    for line in met:
        console.print(line)
    if chosen.results:
        results.write("training_steps", rows, results.provenance(os.cpu_count() or 1))
    if chosen.describe:
        subprocess.run([sys.executable, str(HERE / "describe.py")], check=True, cwd=HERE)


if __name__ == "__main__":
    main()
