"""``make bench-ray``: `fs.train` over two ranks on a Ray cluster of this machine beside the same over two processes as torchrun starts them, taking turns.

    python benchmarks/on_ray.py [--workloads "W2 W6"] [--repeats 3] [--seconds 3]

Both run the same steps on one thread each, and give the same losses. The time of a step is the shortest epoch's; ratios count, not seconds. The start is
from the call of `fs.train` in a new process, which makes the cluster, until the first step can begin: all of the call but its epochs.
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
from pathlib import Path
from typing import Any

RANKS = 2


def one(workload: str, epochs: int, on_ray: bool) -> dict[str, Any]:
    """Train in this process: as one of the ranks, or as the client of them."""
    import with_foreshape
    import workloads

    import foreshape as fs
    from foreshape.runtime.engine import LoDTensor

    training = with_foreshape.Training(workloads.load(workload))
    feeds = [training.feed(i) for i in range(len(training.w.data))]
    if any(isinstance(value, LoDTensor) for value in feeds[0].values()):
        raise SystemExit(f"{workload} is ragged: take a dense one")
    import numpy as np

    data = {name: np.concatenate([np.asarray(feed[name]) for feed in feeds]) for name in feeds[0]}
    batch = len(next(iter(data.values()))) // len(feeds)
    where: dict[str, Any] = {"on": fs.ray_cluster(RANKS)} if on_ray else {"ranks": fs.data_parallel(patience=120.0)}
    began = time.perf_counter()
    history = fs.train(training.loss, data, startup=training.startup, epochs=epochs, batch_size=batch, scope=fs.Scope(), progress=False, **where)
    seconds = history.column("seconds")
    start = time.perf_counter() - began - sum(seconds)
    return {"ms": 1e3 * min(seconds[1:]) / len(feeds), "start": start, "losses": history.losses}


def measured(workload: str, epochs: int, on_ray: bool) -> dict[str, Any]:
    """The figures of a training in processes of its own."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = str(s.getsockname()[1])
    each = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, __file__, "--one", workload, "--epochs", str(epochs), *(["--on-ray"] if on_ray else [])]
    ranks: list[dict[str, str]] = [{}] if on_ray else [{**each, "RANK": str(rank)} for rank in range(RANKS)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parent, env={**os.environ, **rank}) for rank in ranks]
    lines = [process.communicate()[0] for process in processes]
    if any(process.returncode for process in processes):
        raise SystemExit(f"{workload} stopped")
    return json.loads(lines[0].splitlines()[-1])


def main() -> None:
    """Print a line for each workload."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workloads", default="W2 W6")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--seconds", type=float, default=3.0, help="of steps, about, in each training")
    parser.add_argument("--one")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--on-ray", action="store_true")
    args = parser.parse_args()
    if args.one:
        print(json.dumps(one(args.one, args.epochs, args.on_ray)))
        return
    for workload in args.workloads.split():
        first = measured(workload, 3, False)
        epochs = 2 + int(args.seconds * 1e3 / first["ms"] / (len(first["losses"]) / 3))
        pairs = [(measured(workload, epochs, False), measured(workload, epochs, True)) for _ in range(args.repeats)]
        if any(plain["losses"] != ray["losses"] for plain, ray in pairs):
            raise SystemExit(f"{workload}: the losses differ")
        ratio = statistics.median(ray["ms"] / plain["ms"] for plain, ray in pairs)
        plain_ms, ray_ms = (min(pair[side]["ms"] for pair in pairs) for side in (0, 1))
        start = statistics.median(ray["start"] for _, ray in pairs)
        print(f"{workload}: {plain_ms:.2f} ms a step by processes, {ray_ms:.2f} on Ray, median ratio {ratio:.3f}; {start:.1f} s before the first step")


if __name__ == "__main__":
    main()
