"""Draws the picture of docs/many-machines.md: the step of two ranks on this machine, planned and measured. python docs/make_timeline.py [CALIBRATION]

It calibrates the machine, where no file is given, and times gloo between the ranks first; other machines and other loads draw other pictures.
"""

from __future__ import annotations

import dataclasses
import json
import os
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.apps.training.training_programs import training_program
from foreshape.compiler.cost import Calibration
from foreshape.compiler.cost.device import Machine, Slower
from foreshape.compiler.cost.draw import draw_timeline
from foreshape.compiler.cost.link import measure_link
from foreshape.compiler.cost.measure import calibrate
from foreshape.compiler.cost.measured import Measured
from foreshape.machine.communication.join import join

PICTURE = Path(__file__).parent / "many-machines-step.png"
RANKS, BATCH, WIDTH = 2, 256, 1024


def described() -> tuple[Any, dict[str, Any]]:
    """Three wide layers, and examples."""
    x, y = layer.data("x", input_size=WIDTH), layer.data("y", dims=1, data_type=fs.INT64)
    hidden = x
    for _ in range(3):
        hidden = layer.fc(hidden, output_size=WIDTH, activation=layer.relu)
    cost = layer.softmax_with_cross_entropy(layer.fc(hidden, output_size=10), y)
    r = np.random.RandomState(0)
    return cost, {"x": r.rand(8 * BATCH, WIDTH).astype("float32"), "y": r.randint(0, 10, (8 * BATCH, 1))}


def rank(folder: Path) -> None:
    """One of the ranks: it measures what is between them, then trains."""
    with join(60.0) as ranks:
        assert ranks.team is not None
        found = measure_link(ranks.team)
        if ranks.first:
            (folder / "link.json").write_text(json.dumps([*dataclasses.astuple(found.network), [*found.slower]]))
    cost, data = described()
    fs.train(cost, data, optimizer=fs.optimizer.SGD(0.01), epochs=6, batch_size=BATCH, progress=False, ranks=fs.data_parallel())


def launched(folder: Path) -> None:
    """Both ranks to their end."""
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    each = {"OMP_NUM_THREADS": "1", "WORLD_SIZE": str(RANKS), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port),
            "FORESHAPE_TIMELINE": str(folder / "step.json")}  # fmt: skip
    running = [subprocess.Popen([sys.executable, __file__, str(folder)], env={**os.environ, **each, "RANK": str(r)}) for r in range(RANKS)]
    try:
        if any(one.wait(300) for one in running):
            raise SystemExit("a rank failed")
    finally:
        for one in running:
            one.kill()
            one.wait()


def main() -> None:
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        executor, scope = fs.Executor(), fs.Scope()
        if sys.argv[1:]:
            calibration = Calibration.load(sys.argv[1])
        else:
            calibration = calibrate(lambda program, feed, fetch: executor.run(program, feed, [fetch], scope), [1])
        launched(folder)
        *of_network, slower = json.loads((folder / "link.json").read_text())
        measured = Measured.load(folder / "step.json")
    with fs.program_guard(fs.Program(), fs.Program()):
        made = training_program(described()[0], fs.optimizer.SGD(0.01))
    network = fs.Network(*of_network)
    plan = fs.plan(made.program, ranks=RANKS, batch=BATCH, loss=made.loss, device=Machine(calibration, 1, Slower(*slower)), network=network)
    draw_timeline(plan, PICTURE, measured)
    planned = plan.timeline()
    print(f"a link of {network.bandwidth / 1e9:.2f} GB/s and {1e6 * network.latency:.0f} us; planned {1e3 * planned.seconds:.1f} ms, "
          f"{planned.hidden:.0%} hidden; measured {1e3 * measured.seconds:.1f} ms, "
          f"of which a rank waits {1e3 * max(r.exposed for r in measured.ranks):.1f} ms")  # fmt: skip


if __name__ == "__main__":
    if "RANK" in os.environ:
        rank(Path(sys.argv[1]))
    else:
        main()
