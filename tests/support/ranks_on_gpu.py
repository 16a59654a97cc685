"""Trains cases on a device with several strategies; run as a process, one per rank: ``ranks_on_gpu.py OUT DEVICE HOW STRATEGY=CASE,CASE ...``.

``HOW`` is ``train``: by `fs.train` with the ranks that the environment names, and a checkpoint. Or it is a backend of torch's: one process, which is
the only one of a group of that backend, takes some steps of the program that the strategy writes for one rank, so that each of its messages goes
through that backend. Losses and values go into ``OUT.RANK.npz``; names begin with ``STRATEGY/CASE/``.
"""

from __future__ import annotations

import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))
import foreshape as fs
from foreshape.apps.training.checkpoint.divided import NOTHING
from foreshape.apps.training.training_programs import training_program
from foreshape.machine.communication.process_group import ProcessGroup, set_team
from foreshape.transforms.passes.data_parallelism import COUNTS
from support import rank_cases as cases

STEPS = 4


def batches(data: Any) -> list[Any]:
    """Some batches of a case, as `fs.train` makes them."""
    from foreshape.apps.training.data.batches import as_data

    made = as_data(data, 5, False, 0, fs.default_main_program())
    return [batch for _, batch in zip(range(STEPS), made.epoch(1), strict=False)]


def by_hand(name: str, strategy: str, device: str, team: ProcessGroup | None) -> dict[str, Any]:
    """Losses and sent bytes of some steps; without a team of the program that no strategy has changed."""
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    startup.random_seed = 7
    with fs.program_guard(main, startup):
        cost, data, optimizer, _ = cases.EVERY[name](np.random.RandomState(5), "fp32")
        made = training_program(cost, optimizer, startup=startup)
        fed = batches({n: cases.cast(v, "fp32") for n, v in data.items()})
    executor = fs.Executor(device, seed=1)
    fs.Executor(seed=1).run(made.startup, scope=scope)
    program, loss = made.program, made.loss.name
    if team is not None:
        found = cases.STRATEGIES[strategy](**cases.SETTINGS.get(name, {})).apply(made.program, made.loss, 1, made.startup)
        program, loss = found.program, found.loss
        own = fs.Scope()
        fs.Executor(seed=1).run(found.startup or made.startup, scope=own)
        whole = {n: scope.tensor(n) for n in scope.names()}
        for part in found.parts:
            held = NOTHING.own(part, 0, 1, whole)
            if held is not None:
                own.set(part.name, held)
        for n in own.names():
            if n in whole:
                own.set(n, whole[n])
        scope = own
        for ring in range(3):
            set_team(ring, team)
    losses: list[float] = []
    for batch in fed:
        one = dict(batch)
        if team is not None:
            one[COUNTS] = np.array([1.0], np.float32)
        losses.append(float(executor.run(program, one, [loss], scope)[0]))
    for ring in range(3):
        set_team(ring, None)
    return {"losses": np.array(losses), "sent": np.array(sum(team.sent.values()) if team is not None else 0)}


def alone_in_a_group(backend: str, device: str, wanted: list[str]) -> dict[str, Any]:
    """What `by_hand` gives for each case, each in a group of this process alone, beside the same steps on the processor without a group."""
    import torch

    torch.distributed.init_process_group(f"cpu:gloo,cuda:{backend}" if device != "cpu" else backend, rank=0, world_size=1,
                                         store=torch.distributed.HashStore())  # fmt: skip
    out: dict[str, Any] = {}
    for one in wanted:
        strategy, _, names = one.partition("=")
        for name in names.split(","):
            team = ProcessGroup(0, 1, torch.distributed.group.WORLD)
            out |= {f"{strategy}/{name}/{key}": value for key, value in by_hand(name, strategy, device, team).items()}
            out[f"{strategy}/{name}/exact"] = by_hand(name, strategy, "cpu", None)["losses"]
    torch.distributed.destroy_process_group()
    return out


def main() -> None:
    out, device, how, *wanted = sys.argv[1:]
    rank = os.environ.get("RANK", "0")
    if how != "train":
        found = alone_in_a_group(how, device, wanted)
    else:
        found = {}
        for one in wanted:
            strategy, _, names = one.partition("=")
            for name in names.split(","):
                with tempfile.TemporaryDirectory() as folder:  # of one rank: what is divided is written by each
                    path = str(Path(out).parent / f"{strategy} {name}") if int(os.environ.get("WORLD_SIZE", "1")) > 1 else folder
                    found |= {f"{strategy}/{name}/{k}": v for k, v in cases.run(name, "fp32", strategy, checkpoint=path, device=device).items()}
    np.savez(f"{out}.{rank}", **found)


if __name__ == "__main__":
    main()
