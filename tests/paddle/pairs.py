"""The programs of `programs_here`, saved here and run in PaddlePaddle."""

from __future__ import annotations

import sys
import tempfile
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from programs_here import INFERENCE, TRAINING, described, feeds
from sides import Outcome, TwoSided, outcome, paddle_python, run_there, write

import foreshape as fs
from foreshape.core.spec import LOD_TENSOR, SELECTED_ROWS, Spec
from foreshape.language.program import Program

STEPS = 3


def specs(program: Program) -> dict[str, Spec]:
    """Of all that ops of the global block make."""
    found = {n: program.global_block.find(n) for op in program.global_block.ops for n in op.output_names() if op.type not in ("feed", "fetch")}
    return {n: v.spec for n, v in found.items() if v is not None and v.kind in (LOD_TENSOR, SELECTED_ROWS) and v.spec.dims is not None}


def for_use(name: str, folder: Path) -> TwoSided:
    """Save a network, open it again here, and compute its results."""
    main, startup, made = described(INFERENCE[name])
    executor, scope = fs.Executor(seed=5), fs.Scope()
    executor.run(startup, scope=scope)
    feed = feeds(main, 11)
    fs.save_inference_model(folder / name, [main.global_block.var(n) for n in feed], made, executor, main, scope)
    opened = fs.Scope()
    program, names, fetches = fs.load_inference_model(folder / name, executor, opened)
    assert names == list(feed)
    wanted = [v.name for v in fetches]
    values = executor.run(program, feed, fetches, opened)
    return TwoSided(name, name, program, feed, wanted, way="pair", specs=specs(program), values=dict(zip(wanted, values, strict=True)))


def for_training(name: str) -> TwoSided:
    """Train for some steps, from the numbers of a startup program that ran here."""
    main, startup, loss = described(TRAINING[name])
    executor, scope = fs.Executor(seed=5), fs.Scope()
    executor.run(startup, scope=scope)
    state = [v.name for v in startup.global_block.vars.values() if v.persistable and v.kind is LOD_TENSOR]
    feed: dict[str, Any] = {n: np.array(scope.get(n)) for n in state}
    case = TwoSided(name, name, main, feeds(main, 11) | feed, [], way="steps", others=[startup], specs=specs(main))
    case.told = {"steps": STEPS, "fetched": [loss.name]}
    constant = {n for op in startup.all_ops() if op.type == "fill_constant" for n in op.output_names()}
    case.values = {f"{n}:begun": feed[n] for n in state if n in constant}
    fed = {n: v for n, v in case.feed.items() if n not in feed}
    for step in range(STEPS):
        case.values[f"{loss.name}:{step}"] = executor.run(main, fed, [loss], scope)[0]
    case.values |= {n: scope.get(n) for n in state}
    case.wanted = list(case.values)
    return case


def compare(python: str, folder: Path | None = None) -> list[Outcome]:
    """What came of all of them."""
    with tempfile.TemporaryDirectory() as made:
        place = folder or Path(made)
        place.mkdir(parents=True, exist_ok=True)
        both = [for_use(n, place) for n in INFERENCE] + [for_training(n) for n in TRAINING]
        pairs = {n: (place / f"{n}.pdmodel").read_bytes() for n in INFERENCE}
        write(both, place)
        for name, data in pairs.items():  # as it was saved, not as it was opened and written again
            (place / f"{name}.pdmodel").write_bytes(data)
        there = run_there(python, place)
        return [outcome(case, there[case.name], place) for case in both]


if __name__ == "__main__":
    found = compare(paddle_python(sys.argv[1] if len(sys.argv) > 1 else None), Path(sys.argv[2]) if len(sys.argv) > 2 else None)
    for one in found:
        print(f"{one.name:36} {one.state:8} {one.error:7.0e}  {one.words}")
