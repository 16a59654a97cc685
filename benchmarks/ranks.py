"""``make bench-ranks``: training over ranks beside torch's `DistributedDataParallel`, in one run, taking turns. Ratios count, not seconds.

    python benchmarks/ranks.py [--workloads "W2 W4"] [--ranks 2] [--repeats 5] [--seconds 1]

Each rank is a process with one thread. The whole batch is the workload's, divided over the ranks. Ours also sums the loss over the ranks in
each step, which DDP's users do not.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
from pathlib import Path
from typing import Any

import workloads
from rich.console import Console
from rich.table import Table

HERE = Path(__file__).parent
VARIANTS = {"W4": ("fused", "packed")}
"""Of torch; fused elsewhere."""


class Group:
    """The ranks of one framework."""

    def __init__(self, workload: str, module: str, variant: str, ranks: int) -> None:
        self.label = f"{module} {variant}".strip()
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        each = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, str(HERE / "rank_worker.py"), workload, module, variant]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE, env={**os.environ, **each, "RANK": str(r)})
            for r in range(ranks)
        ]
        self.ready = self.read()
        self.times: list[float] = []
        self.busy: list[float] = []
        """Milliseconds of a processor that a step takes on a rank, waiting aside."""
        self.last: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        lines = [p.stdout.readline() for p in self.processes if p.stdout is not None]
        if not all(lines):
            self.close()
            raise SystemExit(f"{self.label} stopped")
        return [json.loads(line) for line in lines]

    def ask(self, passes: int) -> None:
        """So many passes over the batches, by all ranks."""
        for p in self.processes:
            assert p.stdin is not None
            print(f"time {passes}", file=p.stdin, flush=True)
        self.last = self.read()

    def measure(self, passes: int) -> None:
        self.ask(passes)
        self.times.append(max(one["ms"] for one in self.last))
        self.busy.append(statistics.fmean(one["busy"] for one in self.last))

    def passes(self, seconds: float) -> int:
        """How many take so long."""
        self.ask(1)
        return max(1, int(seconds * 1e3 / (max(one["ms"] for one in self.last) * self.last[0]["cycle"])))

    def close(self) -> None:
        for p in self.processes:
            p.kill()
            p.wait()


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="W2 W4 W5 W5b W6")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--bucket", default="", help="bytes of a bucket of ours; chosen by the strategy where it is left out")
    chosen = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=170)
    for name in chosen.workloads.split():
        groups: list[Group] = []
        table = Table(
            "framework", "ms per step", "spread", "torch / this", "processor ms", "torch / this", "KiB sent per step", "as described",
            "peak MiB per rank", "loss gap", title=f"training steps of {name} over {chosen.ranks} ranks",
        )  # fmt: skip
        try:
            groups.append(Group(name, "foreshape", chosen.bucket, chosen.ranks))
            groups += [Group(name, "torch", variant, chosen.ranks) for variant in VARIANTS.get(name, ("fused",))]
            passes = [g.passes(chosen.seconds) for g in groups]
            for _ in range(chosen.repeats):
                for group, count in zip(groups, passes, strict=True):
                    group.measure(count)
            best = [min(times) for times in zip(*(g.times for g in groups[1:]), strict=True)]
            least = [min(busy) for busy in zip(*(g.busy for g in groups[1:]), strict=True)]
            for group in groups:
                busy = statistics.median(b / t for b, t in zip(least, group.busy, strict=True))
                ratio = statistics.median(b / t for b, t in zip(best, group.times, strict=True))
                gap = max(abs(group.ready[0]["losses"][k] - loss) for k, loss in workloads.REFERENCE[name].items())
                last = group.last[0]
                told = last.get("described")
                words = "" if "sent" not in last else "rows of the batch" if told is None else "equal" if told == last["sent"] else f"{told / 1024:.1f}"
                table.add_row(
                    group.label, f"{statistics.median(group.times):.3f}", f"{min(group.times):.3f} .. {max(group.times):.3f}", f"{ratio:.2f}",
                    f"{statistics.median(group.busy):.3f}", f"{busy:.2f}", f"{last['sent'] / 1024:.1f}" if "sent" in last else "", words,
                    f"{max(one['peak_mib'] for one in group.last):.0f}", f"{gap:.1e}",
                )  # fmt: skip
        finally:
            for group in groups:
                group.close()
        console.print(table)


if __name__ == "__main__":
    main()
