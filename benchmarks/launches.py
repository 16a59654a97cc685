"""What a training step of each workload asks of a GPU, counted on a pretended one: kernels, waits, copies, and bytes beside the plan's.

    python benchmarks/launches.py [--workloads "W1 W2"] [--places] [--json FILE]

No GPU is needed, and no time is measured: `tests/support/pretended_device.py` says what counts.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path

import workloads
from rich.console import Console
from rich.table import Table
from with_foreshape import Training

import foreshape as fs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.pretended_device import Counts, pretended

HEIGHT = 40_960
"""Rows of the tables of W5 and W5b: as many as make it quick."""
NAMES = "W1 W2 W3 W4 W5 W5b W6 W8 W9 TOWERS UNET R50"


@dataclass(frozen=True)
class Counted:
    """A steady step on the device.

    Args:
        losses: of the steps until then.
        planned: the bytes at the peak by `fs.plan`, for the same batch.
        launches_by_name, syncs_by_place: see `PretendedDevice`.
    """

    losses: list[float]
    counts: Counts
    planned: int
    launches_by_name: Counter[str]
    syncs_by_place: Counter[str]


def counted(name: str, steps: int = 3) -> Counted:
    """Train a workload for some steps on a pretended device; count the last of them."""
    workload = workloads.load(name, HEIGHT)
    with pretended() as device:
        training = Training(workload, device.name)
        losses = [training(i) for i in range(steps - 1)]
        device.reset()
        losses.append(training(steps - 1))
        counts, launches, syncs = device.counts(), Counter(device.launches_by_name), Counter(device.syncs_by_place)
    plan = fs.plan(training.main, training.fetch, device=device.name)
    feeder = fs.Executor().step(training.main, training.fetch).feeder
    tensors, _ = feeder.tensors(training.feed(steps - 1))
    sizes = {**feeder.check_shapes(tensors), **feeder.longest(tensors, plan.symbols)}
    return Counted(losses, counts, plan.peak(**{n: sizes.get(n, 1) for n in plan.symbols}), launches, syncs)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--workloads", default=NAMES)
    parser.add_argument("--places", action="store_true", help="say which lines wait, and which kernels are launched")
    parser.add_argument("--json", type=Path, help="write the counts into a file")
    chosen = parser.parse_args()
    table = Table("workload", "launches", "syncs", "copies in", "that wait", "copies out", "bytes in", "bytes out", "peak MiB", "plan MiB", "plan / peak",
                  title="a training step on a pretended GPU")  # fmt: skip
    rows: dict[str, object] = {}
    places: list[str] = []
    for name in chosen.workloads.split():
        row = counted(name)
        c = row.counts
        rows[name] = {**asdict(c), "planned": row.planned}
        table.add_row(name, str(c.launches), str(c.syncs), str(c.copies_in), str(c.blocking), str(c.copies_out), str(c.bytes_in), str(c.bytes_out),
                      f"{c.peak / 2**20:.2f}", f"{row.planned / 2**20:.2f}", f"{row.planned / c.peak:.3f}")  # fmt: skip
        places += [f"{name}: {count} x {place}" for place, count in row.syncs_by_place.most_common()]
        places.append(f"{name}: " + ", ".join(f"{count} {kernel}" for kernel, count in row.launches_by_name.most_common(12)))
    (Console() if sys.stdout.isatty() else Console(width=150)).print(table)
    if chosen.places:
        print("\n".join(places))
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
