"""Draws networks and runs each frozen beside its plain kernels, in processes of their own: ``python tests/fuzz/frozen.py --seconds 600 [--seed 1]``.

A case is a network of a few layers with any attributes, for some sizes one after the other. Its numbers are those of the same network in fp64, which
no kernel of oneDNN computes. Each way, with oneDNN's own library and by torch alone (``--way``), has a process, which may die: a crash, a hang and
a wrong number are findings. ``--keep`` writes each into ``found/frozen.jsonl``, with as few layers as fail, which a test runs from then on.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import select
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))
FOUND = HERE / "found" / "frozen.jsonl"
WAYS = ("library", "torch")
PATIENCE = 300.0
"""So many seconds without a word from a process mean that it hangs."""


@dataclass
class Outcome:
    """What came of some cases: of each a word, and the faults, each with its case."""

    said: list[str] = field(default_factory=list[str])
    faults: list[tuple[dict[str, Any], str]] = field(default_factory=list[tuple[dict[str, Any], str]])


def environment(way: str) -> dict[str, str]:
    """The variables of a process that computes in one of the ways."""
    out = {k: v for k, v in os.environ.items() if k != "FORESHAPE_ONEDNN"}
    return {**out, "FORESHAPE_ONEDNN": "torch"} if way == "torch" else out


def run_cases(cases: Sequence[dict[str, Any]], way: str, until: float = float("inf")) -> Outcome:
    """Run cases in processes of their own, a new one behind each that dies."""
    out = Outcome()
    while len(out.said) < len(cases) and time.monotonic() < until:
        process = subprocess.Popen(
            [sys.executable, str(HERE / "frozen_case.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment(way)
        )  # fmt: skip
        try:
            while len(out.said) < len(cases) and time.monotonic() < until:
                case = cases[len(out.said)]
                said = _ask(process, case)
                kind, _, words = (said or f"DEATH the process {_death(process)}").partition(" ")
                out.said.append(kind)
                if kind in ("FAULT", "DEATH"):
                    out.faults.append((case, words))
                if said is None:
                    break
        finally:
            process.kill()
            process.communicate()
    return out


def _ask(process: subprocess.Popen[str], case: dict[str, Any]) -> str | None:
    """What a process says of a case; None where it dies, or stays silent for too long."""
    assert process.stdin is not None and process.stdout is not None
    try:
        process.stdin.write(json.dumps(case) + "\n")
        process.stdin.flush()
        return process.stdout.readline().strip() or None if select.select([process.stdout], [], [], PATIENCE)[0] else None
    except BrokenPipeError:
        return None


def _death(process: subprocess.Popen[str]) -> str:
    try:
        code = process.wait(5)
    except subprocess.TimeoutExpired:
        return f"said nothing for {PATIENCE:g} s"
    return f"died of {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def smaller(case: dict[str, Any], way: str) -> dict[str, Any]:
    """A case with as few layers, sizes and results as still fail."""
    again = True
    while again:
        again = False
        for tried in _simpler(case):
            if run_cases([tried], way).faults:
                case, again = tried, True
                break
    return case


def _simpler(case: dict[str, Any]) -> list[dict[str, Any]]:
    out: list[dict[str, Any]] = [{**case, name: case[name][:k] + case[name][k + 1 :]} for name in ("sizes", "out") for k in range(len(case[name]))]
    out = [c for c in out if c["sizes"] and c["out"]]
    for at in range(len(case["steps"])):  # a step goes, and what reads it reads what it was of
        of = case["steps"][at][1][0]
        new = [of if v == at + 1 else v - (v > at + 1) for v in range(len(case["steps"]) + 1)]
        steps = [[kind, [new[v] for v in sources], attributes] for kind, sources, attributes in case["steps"][:at] + case["steps"][at + 1 :]]
        out.append({**case, "steps": steps, "out": sorted({new[v] for v in case["out"]})})
    return out + ([{**case, "threads": 1}] if case["threads"] > 1 else []) + ([{**case, "open": False}] if case["open"] else [])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=60)
    parser.add_argument("--count", type=int, default=1 << 40)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--way", choices=WAYS, default=None)
    parser.add_argument("--failures", type=int, default=5, help="stop after so many")
    parser.add_argument("--keep", action="store_true", help="write what fails down")
    given = parser.parse_args()
    from frozen_case import draw

    until, at, failed = time.monotonic() + given.seconds, given.seed, 0
    totals = {way: Counter[str]() for way in WAYS if given.way in (None, way)}
    while time.monotonic() < until and at - given.seed < given.count and failed < given.failures:
        cases = [draw(random.Random(number)) for number in range(at, min(at + 100, given.seed + given.count))]
        at += len(cases)
        print(f"to seed {at}", file=sys.stderr, flush=True)
        for way, total in totals.items():
            outcome = run_cases(cases, way, until)
            total.update(outcome.said)
            for case, words in outcome.faults:
                failed += 1
                case = smaller(case, way)
                print(f"{way}: {words}\n    {json.dumps(case)}", flush=True)
                if given.keep:
                    with FOUND.open("a") as file:
                        file.write(json.dumps(case) + "\n")
    for way, total in totals.items():
        print(f"{way}: {dict(total)}")
    print(f"seeds {given.seed} to {at - 1}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
