"""Draws whole programs and checks each in several ways against torch: `python tests/fuzz/programs.py --count 1000 [--seed 1]`.

Ends with status 1 where one fails; it is made smaller then (by hypothesis) and written to `tests/fuzz/found/`, where a test runs it from then on.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
import traceback
from collections import Counter
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import torch  # noqa: E402
from drawn.chance import Chance, Seeded  # noqa: E402
from drawn.check import Failed, check, ways  # noqa: E402
from drawn.generator import draw  # noqa: E402
from drawn.shrink import shrunk  # noqa: E402

FOUND = HERE / "found"


def run(seconds: float, seed: int, count: int | None = None, keep: Path | None = None, failures: int = 5) -> Counter[str]:
    """Check programs of the seeds from ``seed`` on, for some seconds or until ``count``; what they had, counted."""
    counts: Counter[str] = Counter()
    until = time.monotonic() + seconds
    torch.set_num_threads(1)
    while time.monotonic() < until and (count is None or counts["programs"] < count):
        number = seed + counts["programs"]
        counts["programs"] += 1
        program = draw(Chance(Seeded(number)))
        try:
            compared = check(program, ways(number))
        except Failed as failure:
            counts["FAILED"] += 1
            print(f"seed {number}: {failure}\n{''.join(traceback.format_exception(failure.__cause__)[-4:])}", file=sys.stderr, flush=True)
            if keep is not None:
                small = shrunk(program, failure)
                place = keep / f"program_{number}.json"
                place.write_text(small.text())
                print(f"seed {number}: made smaller, in {place}", file=sys.stderr, flush=True)
            if counts["FAILED"] >= failures:
                break
            continue
        counts["steps"] += len(program.steps)
        if counts["programs"] % 500 == 0:
            print(f"seeds {seed} to {number}: {counts['FAILED']} failed", file=sys.stderr, flush=True)
        counts["compared" if compared else "too wild to be compared"] += 1
        counts.update(f"  {f}" for f in program.features())
        counts.update(f"  run {w}" for w in ways(number))
    return counts


def main() -> int:
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--seconds", type=float, default=1e9)
    arguments.add_argument("--count", type=int)
    arguments.add_argument("--seed", type=int, default=0)
    arguments.add_argument("--failures", type=int, default=5, help="stop after so many")
    arguments.add_argument("--keep", action=argparse.BooleanOptionalAction, default=True, help="make failures smaller, and write them down")
    given = arguments.parse_args()
    if given.count is None and given.seconds == 1e9:
        given.seconds = 60.0
    counts = run(given.seconds, given.seed, given.count, FOUND if given.keep else None, given.failures)
    print(f"seeds {given.seed} to {given.seed + counts['programs'] - 1}")
    for what, n in sorted(counts.items()):
        print(f"{n:9,} {what}")
    return 1 if counts["FAILED"] else 0


if __name__ == "__main__":
    sys.exit(main())
