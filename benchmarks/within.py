"""What a step of a workload holds in memory, in Foreshape and in torch alike: the commands of `worker.py` about memory.

In both: the bytes of parameters, buffers and optimizer state, those of the batch, and the most that torch's CPU allocator has handed out
within a steady step above what was there before it.
"""

from __future__ import annotations

import copy
import statistics
import sys
import time
from pathlib import Path
from typing import Any

import foreshape as fs
from foreshape.errors import MemoryPlanError

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.measured import allocated, held_bytes, measure, sizes_of, storage_bytes


def memory(step: Any) -> dict[str, Any]:
    """The peak, in parts; in Foreshape beside the plan's."""
    if hasattr(step, "module"):
        step(0)
        step.optimizer.zero_grad()  # gradients of the step before are not there at the peak, and must not be taken for memory that was there all along
        held, fed = storage_bytes(step.held()), sum(a.nbytes for a in step.data[0])
        most = allocated(lambda: step(0))
        return {"held": held, "fed": fed, "most": most, "peak": held + fed + most}
    at = time.perf_counter()
    plan = fs.plan(step.main, step.fetch)
    seconds = time.perf_counter() - at
    values = sizes_of(plan, step.executor, step.feed(0))
    seen = measure(step.executor, step.main, step.feed(0), step.fetch, step.scope)
    return {
        "held": seen.held, "fed": seen.fed, "most": seen.most, "left": seen.after, "peak": seen.peak, "predicted": plan.peak(**values),
        "bound": plan.held(**values) + plan.lower_bound(**values), "arena": plan.arena(**values), "parts": plan.breakdown(**values),
        "values": values, "plan_ms": seconds * 1e3,
    }  # fmt: skip


def recompute(step: Any, part: float, seconds: float) -> dict[str, Any]:
    """The same step with no more than ``part`` of the activation memory: its peak, and what it costs, step by step in turns."""
    if not hasattr(fs, "recompute"):
        return {"skipped": "fs.recompute does not exist"}
    plan = fs.plan(step.main, step.fetch)
    values = sizes_of(plan, step.executor, step.feed(0))
    peak, kept = plan.peak(**values), plan.breakdown(**values)["kept for backward"]
    budget = peak - int(kept * (1 - part))
    out: dict[str, Any] = {"keeping": peak, "kept": kept, "budget": budget}
    other = copy.copy(step)
    try:
        at = time.perf_counter()
        found = fs.recompute(step.main, budget, step.fetch, **values)
        out |= {"pass_ms": (time.perf_counter() - at) * 1e3, "dropped": len(found.dropped), "extra_work": found.extra_work}
        other.main = found.program
    except MemoryPlanError as error:
        return {**out, "refused": str(error)}
    for one in (step, other):
        one.start()
    out["predicted"] = fs.plan(other.main, step.fetch).peak(**values)
    out["peak"] = measure(other.executor, other.main, other.feed(0), other.fetch, other.scope).peak
    measure(step.executor, step.main, step.feed(0), step.fetch, step.scope)  # as many steps as the other had
    until = time.perf_counter() + seconds
    times: list[tuple[float, float]] = []
    gap = 0.0
    while time.perf_counter() < until or len(times) < 5:
        took: list[float] = []
        losses: list[float] = []
        for one in (step, other):
            at = time.perf_counter()
            losses.append(one(len(times)))
            took.append(time.perf_counter() - at)
        gap = max(gap, abs(losses[0] - losses[1]))
        times.append((took[0], took[1]))
    if held_bytes(step.scope) != held_bytes(other.scope):
        raise AssertionError("recomputation has changed what is kept from step to step")
    out["ms"] = [statistics.median(t[k] for t in times) * 1e3 for k in (0, 1)]
    return {**out, "slowdown": statistics.median(b / a for a, b in times), "steps": len(times), "gap": gap}
