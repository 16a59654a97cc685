"""A training step of the networks of `make torch-families`: memory as planned and measured, beside eager torch's, and the time of a step.

    python benchmarks/torch_families.py [--only 'torchvision.*'] [--seconds 2] [--out FILE] [--parts] [--results]

Each family has a process of its own, and one thread. AdamW in both; the batch is open, and nothing is dropped at random. Of each family stand in a line:

- the plan of Foreshape's step, and what it was measured to take, in MiB, and their ratio;
- eager torch's, predicted by `fs.plan(network).eager()`, measured, and their ratio;
- Foreshape's measured by eager's, with torch's fused update, which makes no copies;
- for budgets of 0.8 and 0.6 of the plan: what a recomputed step takes of its budget, or "refused";
- the time of a step by eager's, in turns, where seconds are given.

With --parts the kernel calls follow at which plan and measurement differ most.
"""

from __future__ import annotations

import argparse
import copy
import fnmatch
import importlib
import json
import os
import statistics
import sys
import time
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[1] / "tests"), str(Path(__file__).parents[1] / "tests" / "families")]
PARTS = (0.8, 0.6)
RATE = 1e-3
MIB = 2**20
HEAD = f"{'family':34} {'planned':>9} {'measured':>9} {'ratio':>6} | {'predicted':>9} {'eager':>9} {'ratio':>6} | by eager |  to 0.8  to 0.6 |  time"


def measured(network: Any, inputs: tuple[Any, ...], dynamic: Any, seconds: float, parts: bool, budgets: Sequence[float]) -> dict[str, Any]:
    """Return the figures of a network that gives a loss."""
    from support.measured import compare, measure, show, sizes_of, step_peak
    from torch_networks import ImportedStep, TorchStep

    import foreshape as fs
    from foreshape.errors import MemoryPlanError

    out: dict[str, Any] = {"wrong": ""}
    plain = TorchStep(copy.deepcopy(network), inputs, fused=False)
    plain()
    out["eager"] = plain.peak()[0]
    eager = TorchStep(network, inputs)
    start = copy.deepcopy(network.state_dict())
    out["loss"] = [eager() for _ in range(3)]
    out["eager_fused"] = eager.peak()[0]
    again = copy.deepcopy(network)
    again.load_state_dict(start)
    model = fs.from_torch(again, inputs, dynamic)
    try:
        out["predicted"] = fs.plan(model, inputs, optimizer=fs.optimizer.AdamW(RATE)).eager().peak
    except MemoryPlanError as error:
        out["predicted"], out["unpredicted"] = 0, str(error)
    ours = ImportedStep(model, inputs)
    out["own_loss"] = [ours() for _ in range(3)]
    plan = fs.plan(ours.main, [ours.loss])
    sizes = sizes_of(plan, ours.executor, ours.feed)
    out["planned"], out["unknown"] = int(plan.peak(**sizes)), str(plan.unknown(**sizes) or "")
    out["measured"] = step_peak(ours.executor, ours.main, ours.feed, [ours.loss], ours.scope)
    if parts:
        seen = measure(ours.executor, ours.main, ours.feed, [ours.loss], ours.scope)
        show(compare(seen, plan, sizes), seen, 12)
        print({k: int(v) for k, v in plan.breakdown(**sizes).items()}, out["planned"], out["measured"], seen.held, seen.fed, seen.most)
        calls = sorted(seen.calls(), key=lambda call: -call.most)[:4]
        print(*[f"most within {call.most:,}: {call.op.type} {call.text[:150]}" for call in calls], sep="\n")
    for part in budgets:
        budget = int(part * out["planned"])
        try:
            found = fs.recompute(ours.main, within=budget, fetch=ours.loss.name, **sizes)
        except MemoryPlanError:
            out[f"to {part}"] = None
            continue
        out[f"to {part}"] = step_peak(fs.Executor(), found.program, ours.feed, [ours.loss.name], ours.scope) / budget
    if seconds:
        out["time"], out["ms"] = in_turns(ours, eager, seconds)
    return out


def in_turns(ours: Any, eager: Any, seconds: float) -> tuple[float, float]:
    """Return the median of the ratios of steps in turns, and eager's median in ms, in time of the processor."""
    times: list[tuple[float, float]] = []
    for _ in range(2):
        ours(), eager()
    until = time.perf_counter() + seconds
    while time.perf_counter() < until or len(times) < 5:
        began = time.thread_time()
        eager()
        between = time.thread_time()
        ours()
        times.append((between - began, time.thread_time() - between))
    return statistics.median(own / theirs for theirs, own in times), statistics.median(theirs for theirs, _ in times) * 1e3


def line(name: str, one: dict[str, Any]) -> str:
    if one["wrong"]:
        return f"{name:34} {one['wrong'][:200]}"
    budgets = " ".join(f"{'-' if (n := one.get(f'to {part}', 0)) == 0 else 'refused' if n is None else format(n, '.3f'):>7}" for part in PARTS)
    own = f"{one['planned'] / MIB:9.2f} {one['measured'] / MIB:9.2f} {one['planned'] / one['measured']:6.3f}"
    theirs = f"{one['predicted'] / MIB:9.2f} {one['eager'] / MIB:9.2f} {one['predicted'] / one['eager']:6.3f}"
    spent = f"{one['time']:5.2f}" if "time" in one else "    -"
    return f"{name:34} {own} | {theirs} | {one['measured'] / one['eager_fused']:8.3f} | {budgets} | {spent}"


def of_entry(entry: dict[str, Any], seconds: float, parts: bool, budgets: Sequence[float]) -> dict[str, Any]:
    """Return the figures of a family of `tests/families`."""
    import run
    import torch

    sizes = run.all_sizes(entry)
    net = run.network(entry)
    inputs = run.drawn_inputs(entry, {n: pair[0] for n, pair in sizes.items()}, 3)
    dynamic = tuple({at: d for at, d in enumerate(dims) if d == "batch"} or None for _, dims in run.parsed(entry))
    net = run.with_loss(run.without_dropout(net), inputs).train()
    with torch.no_grad():
        copy.deepcopy(net)(*inputs)
    return measured(net, inputs, dynamic, seconds, parts, budgets)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--only", default="*", help="names, as nn.LSTM, or patterns, as timm.*, divided by commas")
    parser.add_argument("--seconds", type=float, default=0.0, help="of steps in turns; no times without")
    parser.add_argument("--parts", action="store_true", help="show where plan and measurement differ")
    parser.add_argument("--budgets", action=argparse.BooleanOptionalAction, default=True, help="recompute steps to budgets; that takes the longest")
    parser.add_argument("--limit", type=int, default=400)
    parser.add_argument("--results", action="store_true", help="write the figures into results.json, which the tables of the pages are made of")
    parser.add_argument("--out", default="", help="a file for the figures, a line of JSON for each family")
    given = parser.parse_args()
    import run

    chosen = [(n, e) for n, e in run.entries() if any(fnmatch.fnmatchcase(n, one) for one in given.only.split(",")) and not e.keys() & {"skip", "refused"}]
    over(
        [(n, lambda e=e: of_entry(e, given.seconds, given.parts, PARTS if given.budgets else ())) for n, e in chosen],
        {e["library"].split(".")[0] for _, e in chosen},
        given,
    )


def over(families: list[tuple[str, Any]], libraries: set[str], given: Any) -> None:
    """Measure each family in a process of its own, and print a line for each."""
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    warnings.simplefilter("ignore")
    import torch
    import torch._dynamo
    import torch.export
    from run import alone

    torch.set_num_threads(1)
    for library in libraries:
        importlib.import_module(library)
    print(HEAD)
    every: list[dict[str, Any]] = []
    for name, function in families:
        one = alone(function, given.limit, given.parts) | {"name": name}
        every.append(one)
        print(line(name, one), flush=True)
        if given.out:
            with open(given.out, "a") as out:
                out.write(json.dumps(one) + "\n")
    whole = [one for one in every if not one["wrong"]]
    if given.results:
        import results

        rows = {one["name"]: {"planned": round(one["planned"] / one["measured"], 2), "predicted": round(one["predicted"] / one["eager"], 2),
                              "memory": round(one["measured"] / one["eager_fused"], 2), "time": round(one["time"], 2)}
                for one in whole if "time" in one}  # fmt: skip
        results.write("torch_families", rows, results.provenance(1))
    planned = sum(abs(one["planned"] / one["measured"] - 1) <= 0.05 for one in whole)
    predicted = sum(abs(one["predicted"] / one["eager"] - 1) <= 0.1 for one in whole)
    less = sum(one["measured"] <= one["eager_fused"] for one in whole)
    print(f"{len(whole)} of {len(every)} measured; planned within 5 %: {planned}; eager predicted within 10 %: {predicted}; at most eager's memory: {less}")


if __name__ == "__main__":
    main()
