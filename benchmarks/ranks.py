"""``make bench-ranks``: training over ranks beside torch's `DistributedDataParallel`, in one run, taking turns, and beside what is planned.

    python benchmarks/ranks.py [--workloads "W2 W4"] [--ranks "2 4"] [--strategies "data_parallel shard_optimizer"] [--repeats 5] [--seconds 0.5]
        [--calibration FILE] [--no-plan] [--within 440]

Each rank is a process with one thread. The whole batch is the workload's, divided over the ranks. Ours also sums the loss over the ranks in
each step, which DDP's users do not. Ratios count, not seconds: ``torch / ours`` is of the fastest of torch's ways.

The plan is made from a calibration of this machine's kernels on one thread, and from the time of sums between as many ranks, neither of which
knows anything of the workloads; each rank is planned with its own share of each batch, and the slowest of them is the step. It is compared with the
shortest of the measured steps, since a calibration too takes the shortest times of kernels. Bytes are what rank 0 gives to collectives in a step; of sparse
rows the plan supposes that no id comes twice, so that it is a bound.
"""

from __future__ import annotations

import argparse
import json
import os
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import workloads

import foreshape as fs
from foreshape.compiler.cost.device import Machine, Slower

HERE = Path(__file__).parent
VARIANTS = {"W4": ("fused", "packed")}
"""Of torch; fused elsewhere."""
STRATEGIES: dict[str, Callable[[], Any]] = {
    "data_parallel": fs.data_parallel,
    "shard_optimizer": fs.shard_optimizer,
    "shard_parameters": fs.shard_parameters,
    "split_tables": fs.split_tables,
}
OTHERS = {"W2": ("shard_optimizer", "shard_parameters"), "W5": ("split_tables",), "W5b": ("split_tables",), "W6": ("shard_optimizer", "shard_parameters")}
"""The strategies that a workload is trained by beside `data_parallel`."""
ZERO = ("W6",)
"""The workloads whose state torch divides too."""
COLUMNS = (("workload", 8), ("ranks", 5), ("by", 22), ("ms, median", 10), ("shortest", 9), ("torch / ours", 12), ("planned ms", 10), ("planned / measured", 18),
           ("KiB sent", 10), ("sent / planned", 14), ("held MiB", 9), ("peak MiB", 9), ("loss gap", 8))  # fmt: skip
Row = dict[str, Any]


class Group:
    """The ranks of one framework."""

    def __init__(self, workload: str, module: str, variant: str, ranks: int) -> None:
        self.module, self.variant = module, variant
        with socket.socket() as s:
            s.bind(("127.0.0.1", 0))
            port = s.getsockname()[1]
        each = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
        command = [sys.executable, str(HERE / "rank_worker.py"), workload, module, variant]
        self.processes = [
            subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=HERE, env={**os.environ, **each, "RANK": str(r)})
            for r in range(ranks)
        ]
        self.ready: list[dict[str, Any]] = []
        self.times: list[float] = []
        self.least = float("inf")
        self.last: list[dict[str, Any]] = []

    def read(self) -> list[dict[str, Any]]:
        lines = [p.stdout.readline() for p in self.processes if p.stdout is not None]
        if not all(lines):
            self.close()
            raise SystemExit(f"{self.module} {self.variant} stopped")
        return [json.loads(line) for line in lines]

    def begin(self) -> None:
        """Wait until it is ready."""
        self.ready = self.read()

    def ask(self, passes: int) -> None:
        """So many passes over the batches, by all ranks."""
        for p in self.processes:
            assert p.stdin is not None
            print(f"time {passes}", file=p.stdin, flush=True)
        self.last = self.read()

    def measure(self, passes: int) -> None:
        self.ask(passes)
        self.times.append(max(one["ms"] for one in self.last))
        self.least = min(self.least, max(one["least"] for one in self.last))

    def passes(self, seconds: float) -> int:
        """How many take so long."""
        self.ask(1)
        return max(1, int(seconds * 1e3 / (max(one["ms"] for one in self.last) * self.last[0]["cycle"])))

    def close(self) -> None:
        for p in self.processes:
            p.kill()
            p.wait()


def link_of(ranks: int) -> tuple[fs.Network, Slower]:
    """What is between so many ranks of this machine, and how many times as long kernels take where all of them compute."""
    group = Group("-", "link", "-", ranks)
    try:
        group.begin()
    finally:
        group.close()
    found = dict(group.ready[0])
    slower = Slower(*found.pop("slower"))
    return fs.Network(**found), slower


class Planned:
    """The plan of one strategy for one workload, which is described and not run."""

    def __init__(self, training: Any, strategy: str, ranks: int, calibration: Any, network: fs.Network, slower: Slower) -> None:
        batch = len(training.w.data[0][-1])
        self.machine = Machine(calibration, 1, slower)
        self.plan = fs.plan(training.main, ranks=ranks, batch=batch, network=network, device=self.machine,
                            strategies=[STRATEGIES[strategy]()], loss=training.loss)  # fmt: skip

    def milliseconds(self, own: Sequence[Sequence[dict[str, int]]]) -> float:
        """The mean over the batches of what the slowest rank takes. ``own``: for each rank its sizes of each batch."""
        return statistics.fmean(map(self._slowest, zip(*own, strict=True))) * 1e3

    def _slowest(self, of_ranks: Sequence[dict[str, int]]) -> float:
        """Ranks that have less to compute leave the processors to the others for the rest of the time."""
        self.plan.device = self.machine._replace(slower=Slower())
        computing = [self.plan.timeline(sizes).computing for sizes in of_ranks]
        part = statistics.fmean(computing) / max(computing)
        self.plan.device = self.machine._replace(slower=self.machine.slower.in_part(part))
        return max(self.plan.timeline(sizes).seconds for sizes in of_ranks)

    def sent(self, own: Sequence[dict[str, int]]) -> float:
        """The bytes that a rank gives in a step, the mean over its batches."""
        return statistics.fmean(sum(self.plan.sent(sizes).values()) for sizes in own)


def calibrated(path: Path | None) -> Any:
    """This machine's kernels on one thread: from a file, or measured now."""
    import torch

    from foreshape.compiler.cost import Calibration
    from foreshape.compiler.cost.measure import calibrate

    if path is not None and path.exists():
        return Calibration.load(path)
    torch.set_num_threads(1)
    executor, scope, at = fs.Executor(), fs.Scope(), time.perf_counter()
    made = calibrate(lambda program, feed, name: executor.run(program, feed, [name], scope), [1])
    print(f"calibrated in {time.perf_counter() - at:.0f} s: {made.machine}", flush=True)
    if path is not None:
        made.save(path)
    return made


def measured(name: str, ranks: int, chosen: argparse.Namespace, plans: dict[str, Planned]) -> list[Row]:
    """The rows of one workload on so many ranks: ours by each strategy, then torch's."""
    ours = [s for s in ("data_parallel", *OTHERS.get(name, ())) if s in chosen.strategies.split()]
    groups = [Group(name, "foreshape", s, ranks) for s in ours]
    try:
        groups += [Group(name, "torch", v, ranks) for v in (*VARIANTS.get(name, ("fused",)), *(("zero",) if name in ZERO else ()))]
        for group in groups:
            group.begin()
        passes = [g.passes(chosen.seconds) for g in groups]
        for _ in range(chosen.repeats):
            for group, count in zip(groups, passes, strict=True):
                group.measure(count)
    finally:
        for group in groups:
            group.close()
    best = [min(times) for times in zip(*(g.times for g in groups if g.module == "torch" and g.variant != "zero"), strict=True)]
    rows: list[Row] = []
    for group in groups:
        gaps = [abs(group.ready[0]["losses"][k] - loss) for k, loss in workloads.REFERENCE.get(name, {}).items()]
        row: Row = {
            "workload": name, "ranks": ranks, "by": group.variant if group.module == "foreshape" else "torch DDP" + (f" {group.variant}"),
            "ms, median": f"{statistics.median(group.times):.3f}", "shortest": f"{group.least:.3f}",
            "torch / ours": f"{statistics.median(b / t for b, t in zip(best, group.times, strict=True)):.2f}",
            "held MiB": f"{max(one['held'] for one in group.last) / 2**20:.1f}", "peak MiB": f"{max(one['peak_mib'] for one in group.last):.0f}",
            "loss gap": f"{max(gaps):.0e}" if gaps else "",
        }  # fmt: skip
        if group.module == "foreshape":
            sent = sum(group.last[0]["sent"].values())
            row["KiB sent"] = f"{sent / 1024:.1f}"
            if group.variant in plans:
                own = [one["own"] for one in group.ready]
                planned, bytes_planned = plans[group.variant].milliseconds(own), plans[group.variant].sent(own[0])
                row |= {"planned ms": f"{planned:.3f}", "planned / measured": f"{planned / group.least:.2f}",
                        "sent / planned": "equal" if sent == bytes_planned else f"{sent / bytes_planned:.3f}"}  # fmt: skip
        rows.append(row)
    return rows


def show(row: Row) -> None:
    print("  ".join(f"{row.get(name, '')!s:>{width}}" for name, width in COLUMNS), flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="W1 W2 W3 W4 W5 W5b W6")
    parser.add_argument("--ranks", default="2 4")
    parser.add_argument("--strategies", default=" ".join(STRATEGIES))
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--calibration", type=Path, help="a file of `foreshape calibrate`; it is written where there is none")
    parser.add_argument("--plan", action=argparse.BooleanOptionalAction, default=True, help="plan the steps too")
    parser.add_argument("--within", type=float, default=440.0, help="seconds after which no workload is begun any more")
    chosen = parser.parse_args()
    began = time.perf_counter()
    calibration = calibrated(chosen.calibration) if chosen.plan else None
    counts = [int(n) for n in chosen.ranks.split()]
    links = {n: link_of(n) for n in counts} if chosen.plan else {}
    for n, (network, slower) in links.items():
        busy = f"{network.meeting * 1e6:.0f} us to meet, {network.handling * 1e6:.0f} us of a processor for a message and {network.processor * 2**30:.2f} s"
        print(f"{n} ranks: a link of {network}, {busy} for each GiB; kernels take {slower}", flush=True)
    show({name: name for name, _ in COLUMNS})
    left: list[str] = []
    for ranks in counts:
        for name in chosen.workloads.split():
            if time.perf_counter() - began > chosen.within:
                left.append(f"{name} on {ranks} ranks")
                continue
            plans: dict[str, Planned] = {}
            if calibration is not None:
                import with_foreshape

                training = with_foreshape.Training(workloads.load(name))
                wanted = [s for s in ("data_parallel", *OTHERS.get(name, ())) if s in chosen.strategies.split()]
                plans = {s: Planned(training, s, ranks, calibration, *links[ranks]) for s in wanted}
            for row in measured(name, ranks, chosen, plans):
                show(row)
    if left:
        raise SystemExit(f"left out, since time was up: {', '.join(left)}")


if __name__ == "__main__":
    main()
