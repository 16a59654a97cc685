"""Runs each collective between processes, one per rank: ``each_collective.py OUT``. What each rank makes goes into ``OUT.RANK.npz``."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).parents[1]))

import foreshape as fs
from foreshape import layer
from foreshape.core.values.torch_proxy import torch
from foreshape.machine.communication.join import join
from foreshape.machine.communication.process_group import WHOLE, ProcessGroup

ROWS, WIDTH = 12, 6
REDUCED = ("sum", "max", "min", "prod")
TYPES = {"f32": (fs.FP32, np.float32), "i64": (fs.INT64, np.int64)}


def given(rank: int, of: str) -> np.ndarray:
    """What a rank feeds."""
    made = np.random.RandomState(7 + rank).randint(-4, 5, (ROWS, WIDTH))
    return made.astype(TYPES[of][1])


def calls(ranks: int) -> dict[str, tuple[str, dict[str, Any]]]:
    """A name -> the collective and its attributes. Some start and are waited for, others wait by themselves."""
    last = ranks - 1
    waits = {"use_calc_stream": True}
    return {
        **{f"allreduce {how}": (f"c_allreduce_{how}", waits) for how in REDUCED},
        **{f"reduce {how} to {root}": (f"c_reduce_{how}", {"root_id": root, **waits}) for how in REDUCED for root in (0, last)},
        **{f"broadcast from {root}": ("c_broadcast", {"root": root, **waits}) for root in (0, last)},
        **{f"scatter from {root}": ("c_scatter", {"root": root, "nranks": ranks, **waits}) for root in (0, last)},
        **{f"concat {axis}": ("c_concat", {"axis": axis, "nranks": ranks, **waits}) for axis in (0, 1, -1)},
        **{f"split {axis}": ("c_split", {"axis": axis, "nranks": ranks, **waits}) for axis in (0, -1)},
        "allgather": ("c_allgather", {"nranks": ranks, **waits}),
        "reducescatter": ("c_reducescatter", {"nranks": ranks, **waits}),
        "alltoall": ("alltoall", {"nranks": ranks, **waits}),
        "identity": ("c_identity", waits),
        "mp allreduce": ("mp_allreduce_sum", waits),
        "barrier": ("barrier", {}),
        "started sum": ("c_allreduce_sum", {}),
        "started gather": ("c_allgather", {"nranks": ranks}),
        "started parts": ("c_reducescatter", {"nranks": ranks}),
    }


DIFFERENTIATED = ("concat 1", "split -1", "allgather", "reducescatter", "alltoall", "identity", "mp allreduce", "allreduce sum")


def described(ranks: int, of: str) -> tuple[fs.Program, dict[str, str]]:
    """One program of all, on what is fed and on its transpose, which lies in memory otherwise; and for some their gradients."""
    main = fs.Program()
    out: dict[str, str] = {}
    with fs.program_guard(main, fs.Program()):
        block = main.global_block
        x = layer.data("x", shape=[ROWS, WIDTH], dtype=TYPES[of][0])
        turned = layer.transpose(layer.data("turned", shape=[WIDTH, ROWS], dtype=TYPES[of][0]), [1, 0])
        for name, (type, attributes) in calls(ranks).items():
            for source, read in (("", x), (" turned", turned)):
                made = block.apply(type, {"X": read}, attributes)
                if name.startswith("started"):
                    made = block.apply("c_sync_comm_stream", {"X": [made]}, {})
                    made = made[0] if isinstance(made, (list, tuple)) else made
                out[name + source] = made.name
        for name in DIFFERENTIATED if of == "f32" else ():
            own = layer.data(f"x {name}", shape=[ROWS, WIDTH], stop_gradient=False)
            type, attributes = calls(ranks)[name]
            made = block.apply(type, {"X": own}, attributes)
            ((_, gradient),) = fs.append_backward(made, [own], loss_gradient=layer.data(f"d {name}", shape=list(made.dims)))
            out[f"{name}@GRAD"] = gradient.name
    return main, out


def factor(name: str, dims: Any, rank: int) -> np.ndarray:
    """What the gradient of a result is on a rank."""
    return np.random.RandomState(len(name) + 31 * rank).randint(-3, 4, dims).astype(np.float32)


UNDER_WAY = {"whole": 700, "whole, behind another": 700, "round": WHOLE // 4 + 1, "whole, behind two": 1}
"""Sums that are all under way at once: how many elements each has."""


def under_way(rank: int, name: str) -> np.ndarray:
    """What a rank gives to such a sum."""
    return np.random.RandomState(len(name) + 17 * rank).randint(-9, 10, UNDER_WAY[name]).astype(np.float32)


def summed_at_once(team: ProcessGroup, rank: int) -> dict[str, Any]:
    """Sums of which the last that was begun is waited for first."""
    given = {name: torch.from_numpy(under_way(rank, name)) for name in UNDER_WAY}
    for tensor in given.values():
        team.start_sum(tensor, "sum")
    for tensor in reversed(given.values()):
        team.wait(tensor)
    return {f"at once {name}": tensor.numpy() for name, tensor in given.items()}


def main() -> None:
    found: dict[str, Any] = {}
    with join(60.0) as ranks:
        assert ranks.team is not None
        np.savez(f"{sys.argv[1]}.at_once.{os.environ['RANK']}", **summed_at_once(ranks.team, ranks.rank))
        for of in TYPES:
            program, names = described(ranks.count, of)
            x = given(ranks.rank, of)
            feeds: dict[str, Any] = {"x": x, "turned": np.ascontiguousarray(x.T)}
            for v in program.global_block.vars.values():
                if v.name.startswith("d "):
                    feeds |= {v.name: factor(v.name[2:], [int(d) for d in v.dims], ranks.rank), f"x {v.name[2:]}": x}
            values = fs.Executor().run(program, feeds, list(names.values()), fs.Scope())
            found |= {f"{of} {name}": value for name, value in zip(names, values, strict=True)}
    np.savez(f"{sys.argv[1]}.{os.environ['RANK']}", **found)


if __name__ == "__main__":
    main()
