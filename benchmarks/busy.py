"""Steps on a machine that others use too, under a quota, and alone: ratios, both sides in one run, taking turns.

    python benchmarks/busy.py [--workloads "W1 W2"] [--conditions "busy quota quiet"] [--repeats 5] [--seconds 1] [--processes 4]

- busy: beside so many processes that do nothing but run, as many times as fast as torch eager; 3 are wanted.
- quota: with one processor's time (a control group's quota where one can be made here, otherwise an affinity mask of one), as many times
  as fast as with ``OMP_NUM_THREADS=1``; 1 is wanted.
- quiet: on the machine as it is, as many times as fast as where OpenMP waits as long as it does by itself; 0.98 is wanted. This says
  something only where nothing else runs.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from run import Peer

from foreshape.core.values.processors import groups

BY_ITSELF = {"GOMP_SPINCOUNT": "300000"}
"""As libgomp waits where nobody says anything."""
WANTED = {"busy": 3.0, "quota": 1.0, "quiet": 0.98}


@contextmanager
def busy(processes: int) -> Iterator[None]:
    """Processes that take all the time that they get."""
    command = [sys.executable, "-c", f"import os\nwhile os.getppid() == {os.getpid()}:\n for _ in range(10**6): pass"]
    running = [subprocess.Popen(command) for _ in range(processes)]
    try:
        yield
    finally:
        for one in running:
            one.kill()
            one.wait()


@contextmanager
def one_processor() -> Iterator[tuple[Callable[[int], Any], str]]:
    """What gives a process, by its number, one processor's time, and how in words."""
    for controller, settings in (("cpu", {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "100000"}), ("", {"cpu.max": "100000 100000"})):
        folder = next(groups(controller), Path("/nowhere")) / f"foreshape-{os.getpid()}"
        try:
            folder.mkdir()
        except OSError:
            continue
        try:
            for name, value in settings.items():
                (folder / name).write_text(value, encoding="ascii")
        except OSError:
            folder.rmdir()
            continue
        try:
            yield lambda pid, folder=folder: (folder / "cgroup.procs").write_text(str(pid), encoding="ascii"), "a quota"
        finally:
            with suppress(OSError):  # a process that is not gone yet
                folder.rmdir()
        return
    only = min(os.sched_getaffinity(0))
    yield lambda pid: os.sched_setaffinity(pid, {only}), f"processor {only} alone"


def take_turns(peers: list[Peer], repeats: int, seconds: float) -> None:
    for _ in range(repeats):
        for peer in peers:
            peer.measure(seconds)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default="W1 W2 W3 W4 W5 W6")
    parser.add_argument("--conditions", default="busy quota quiet")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=1.0)
    parser.add_argument("--processes", type=int, default=4)
    chosen = parser.parse_args()
    console = Console() if sys.stdout.isatty() else Console(width=140)
    table = Table("condition", "workload", "against", "ms per step", "spread", "the other's", "spread", "the other's / ours", "wanted")
    for condition in chosen.conditions.split():
        for name in chosen.workloads.split():
            with ExitStack() as stack:
                if condition == "busy":
                    ours, other, against = Peer(name, "with_foreshape", ""), Peer(name, "with_torch", "eager"), "torch eager"
                    stack.enter_context(busy(chosen.processes))
                elif condition == "quota":
                    place, how = stack.enter_context(one_processor())
                    against = f"one thread, {how}"
                    ours, other = (Peer(name, "with_foreshape", "", environment=e, place=place) for e in ({}, {"OMP_NUM_THREADS": "1"}))
                else:
                    against = "waiting long"
                    ours, other = (Peer(name, "with_foreshape", "", environment=e) for e in ({}, BY_ITSELF))
                take_turns([ours, other], chosen.repeats, chosen.seconds)
                for peer in (ours, other):
                    peer.close()
            ratio = statistics.median(b / a for a, b in zip(ours.times, other.times, strict=True))
            row = [condition, name, against]
            for peer in (ours, other):
                row += [f"{statistics.median(peer.times):.3f}", f"{min(peer.times):.3f} .. {max(peer.times):.3f}"]
            table.add_row(*row, f"{ratio:.2f}", f"{WANTED[condition]}")
            print(f"{condition} {name} {ratio:.3f}", file=sys.stderr, flush=True)
        table.add_section()
    console.print(table)


if __name__ == "__main__":
    main()
