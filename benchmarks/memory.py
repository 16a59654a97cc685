"""``make bench-memory``: what a training step holds at most, as planned, as measured, and in torch eager; and what recomputation costs.

    python benchmarks/memory.py [--workloads "W2 R50"] [--seconds 5] [--quick] [--json FILE]

Every measurement is in a process of its own. In both frameworks the same is counted (see `within.py`).
"""

from __future__ import annotations

import argparse
import json
import math
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from describe import chain
from rich.console import Console
from rich.table import Table
from run import Peer

import foreshape as fs
from foreshape.errors import MemoryPlanError

BATCHES = {"W2": (32, 128, 512), "W3": (8, 32, 128), "W4": (16, 64, 256), "W6": (2, 8, 16), "R50": (4, 8, 16)}
QUICK = {"W2": (128,), "W3": (8,), "W4": (64,), "W6": (2,)}
PARTS = (0.5, 0.25)
"""Of the activation memory: what is kept for backward at the peak."""
Results = list[dict[str, Any]]


def asked(workload: str, batch: int, module: str, question: str) -> dict[str, Any]:
    """A question to a worker that is started for it, with the losses of its first steps."""
    peer = Peer(workload, module, "eager" if module == "with_torch" else "", batch)
    answer = {**peer.ask(question), "losses": peer.ready["losses"]}
    peer.close()
    return answer


def mib(size: float) -> str:
    return f"{size / 2**20:.2f}"


def peaks(chosen: dict[str, tuple[int, ...]], results: Results) -> tuple[Table, list[str]]:
    table = Table("workload", "batch", "predicted", "measured", "predicted / measured", "lower bound", "arena", "torch eager", "torch / measured",
                  "plan ms", title="MiB at the peak of a training step")  # fmt: skip
    off: list[str] = []
    for name, batches in chosen.items():
        for batch in batches:
            ours, theirs = (asked(name, batch, m, "memory") for m in ("with_foreshape", "with_torch"))
            gap = max(abs(a - b) / abs(b) for a, b in zip(ours.pop("losses"), theirs.pop("losses"), strict=True))
            ratio = ours["predicted"] / ours["peak"]
            results.append({"what": "peak", "workload": name, "batch": batch, "loss_gap": gap, "foreshape": ours, "torch": theirs})
            table.add_row(name, str(batch), mib(ours["predicted"]), mib(ours["peak"]), f"{ratio:.4f}", mib(ours["bound"]), mib(ours["arena"]),
                          mib(theirs["peak"]), f"{theirs['peak'] / ours['peak']:.2f}", f"{ours['plan_ms']:.1f}")  # fmt: skip
            if not 0.98 <= ratio <= 1.02:
                off.append(f"{name} at {batch}: predicted {ratio:.3f} times what was measured; required 0.95 to 1.05, goal 0.98 to 1.02")
            if theirs["peak"] <= ours["peak"]:
                off.append(f"{name} at {batch}: torch eager holds no more")
            if gap > 0.05:
                off.append(f"{name} at {batch}: the losses are {gap:.1e} apart")
        table.add_section()
    return table, off


def recomputation(chosen: dict[str, tuple[int, ...]], seconds: float, results: Results) -> tuple[Table, list[str]]:
    table = Table("workload", "batch", "of the activations", "peak keeping all", "budget", "predicted", "measured", "ms keeping all", "ms", "slowdown",
                  title="with recomputation (MiB)")  # fmt: skip
    said: list[str] = []
    for name, batches in chosen.items():
        for batch in batches:
            for part in PARTS:
                seen = asked(name, batch, "with_foreshape", f"recompute {part} {seconds}")
                results.append({"what": "recompute", "workload": name, "batch": batch, "part": part, **seen})
                if "skipped" in seen:
                    return table, [f"recomputation is not measured: {seen['skipped']}"]
                first = (name, str(batch), f"{part:g}", mib(seen["keeping"]), mib(seen["budget"]))
                if "refused" in seen:
                    table.add_row(*first, "refused", "", "", "", "")
                    said.append(f"{name} at {batch}, {part:g} of the activations: {seen['refused']}")
                    continue
                table.add_row(*first, mib(seen["predicted"]), mib(seen["peak"]), f"{seen['ms'][0]:.1f}", f"{seen['ms'][1]:.1f}", f"{seen['slowdown']:.2f}")
        table.add_section()
    return table, said


def least(action: Callable[[], object], repeats: int = 5) -> float:
    """The median milliseconds of an action."""
    times: list[float] = []
    for _ in range(repeats):
        at = time.perf_counter()
        action()
        times.append((time.perf_counter() - at) * 1e3)
    return statistics.median(times)


def questions(results: Results, ops: tuple[int, ...]) -> tuple[Table, list[str]]:
    """What planning and its questions cost; ``largest`` of a new plan makes the formula, too."""
    said: list[str] = []
    table = Table("ops", "ms to plan", "peak", "largest, first asked", "largest", "arena", title="questions to a plan (chains of fc and relu, trained; ms)")
    per_layer = len(chain(20).global_block.ops) - len(chain(19).global_block.ops)
    for count in ops:
        program = chain(count // per_layer)
        loss = next(v for v in reversed(program.global_block.vars.values()) if v.name.startswith("mean") and "@GRAD" not in v.name)
        plans: list[Any] = []
        made = least(lambda p=program, f=loss, k=plans: k.append(fs.plan(p, [f])))
        peak, arena = least(lambda p=plans[0]: p.peak(batch=64)), least(lambda p=plans[0]: p.arena(batch=64), 1)
        try:
            first = statistics.median(least(lambda p=p: p.largest("batch", within="1 GiB"), 1) for p in plans)
            again = least(lambda p=plans[0]: p.largest("batch", within="1 GiB"))
        except MemoryPlanError as error:
            first = again = math.nan
            said.append(f"the largest batch of a program of {count} ops: {str(error)[:200]}")
        seen = {"ops": len(program.global_block.ops), "plan_ms": made, "peak_ms": peak, "first_ms": first, "largest_ms": again, "arena_ms": arena}
        results.append({"what": "questions", **{k: None if v != v else v for k, v in seen.items()}})
        table.add_row(f"{seen['ops']:,}", *(f"{n:.1f}" for n in (made, peak, first, again, arena)))
        if first > 100 and count == 2000:
            said.append(f"the largest batch of a program of {count} ops: {first:.0f} ms; the goal is 100")
    return table, said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", help="W2, W3, W4, W6, R50; all where it is left out")
    parser.add_argument("--seconds", type=float, default=5.0, help="for each comparison of recomputation")
    parser.add_argument("--quick", action="store_true", help="one small batch each, without ResNet-50")
    parser.add_argument("--recompute", action=argparse.BooleanOptionalAction, default=True)
    parser.add_argument("--json", type=Path, help="write the figures into this file")
    asked_for = parser.parse_args()
    every: dict[str, tuple[int, ...]] = QUICK if asked_for.quick else BATCHES
    chosen = {n: BATCHES[n] if n not in every else every[n] for n in (asked_for.workloads or " ".join(every)).split()}
    console = Console() if sys.stdout.isatty() else Console(width=160)
    results: Results = []
    table, said = peaks(chosen, results)
    console.print(table)
    if asked_for.recompute:
        table, more = recomputation({n: b[-1:] for n, b in chosen.items()}, 1.0 if asked_for.quick else asked_for.seconds, results)
        if table.row_count:
            console.print(table)
        said += more
    table, more = questions(results, (2000,) if asked_for.quick else (500, 2000, 8000))
    console.print(table)
    said += more
    for line in said:
        console.print(line, markup=False)
    if asked_for.json is not None:
        asked_for.json.write_text(json.dumps(results, indent=1))


if __name__ == "__main__":
    main()
