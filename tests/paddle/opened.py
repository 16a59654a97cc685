"""Programs that PaddlePaddle built and saved, opened, inferred and run here: ``opened.py KIND [--paddle PYTHON] [NAMES] [--keep FOLDER]``.

KIND: see `paddle_programs`.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from known import KNOWN_PROGRAMS
from results import by_program, keep
from sides import NETWORK_TOLERANCE, Outcome, array_differences, attended, paddle_python, spec_differences

import foreshape as fs
from foreshape.core.spec import LOD_TENSOR, LOD_TENSOR_ARRAY, SELECTED_ROWS
from foreshape.language.program import Program

BUILDER = Path(__file__).with_name("paddle_programs.py")
ACCUMULATED = re.compile(r"_(moment\d?|velocity)_\d+$")
RANDOM = {"gaussian_random", "uniform_random", "truncated_gaussian_random"}
PATIENCE = {"functions": 20.0, "layers": 60.0, "training": 60.0, "models": 900.0}
"""Seconds that a program may take on the other side."""


AMPLIFIED = 4.0
ROUNDING = "what is fed and the parameters, moved by one rounding, change as much here: the network makes much of roundings"


def stored(program: Program) -> dict[str, dict[str, Any]]:
    """The specs that the file has of what ops of the global block make."""
    out: dict[str, dict[str, Any]] = {}
    for op in program.global_block.ops:
        for name in op.output_names():
            if op.type == "warpctc" and name in op.outputs.get("WarpCTCGrad", ()):
                continue  # its rule sets none, there
            v = program.global_block.find(name)
            if v is not None and v.kind in (LOD_TENSOR, SELECTED_ROWS, LOD_TENSOR_ARRAY) and v.dtype is not None and v.spec.dims is not None:
                dims = [d if isinstance(d, int) else -1 for d in v.spec.known_dims]
                out[name] = {"kind": v.kind.name, "dtype": v.dtype.name.lower(), "dims": dims, "lod_level": v.lod_level}
    return out


def inference_differences(program: Program) -> list[str]:
    """How what is inferred here differs from what the file says."""
    theirs = stored(program)
    program.forget()
    unknown = program.infer()
    if unknown:
        raise LookupError(f"no operator here: {', '.join(sorted({op.type for op in unknown if op.operator is None}))}")
    out: list[str] = []
    for name, there in theirs.items():
        out += [f"{name}: {w}" for w in spec_differences(program.global_block.var(name).spec, there)]
    return out


def values_differences(names: list[str], here: list[Any], there: list[np.ndarray], exact: bool = True, network: bool = False) -> tuple[list[str], float]:
    """How values differ, in words (of what is not ``exact`` dims and element types alone), and the largest error.

    Of a ``network``, what an optimizer keeps of gradients is measured by the largest of its sort: some gradients are nothing but rounding, as
    that of the bias of keys, or of a bias before a batch norm.
    """
    largest: dict[str, float] = {}
    for name, b in zip(names, there, strict=True):
        if network and (sort := ACCUMULATED.search(name)):
            largest[sort[0]] = max(largest.get(sort[0], 0.0), float(np.abs(b).max()))
    words: list[str] = []
    worst = 0.0
    for name, a, b in zip(names, here, there, strict=True):
        sort = ACCUMULATED.search(name)
        least = largest.get(sort[0], 0.0) if sort else 0.0
        found, error = array_differences(np.asarray(a), b, exact, NETWORK_TOLERANCE if network else None, least)
        words, worst = words + [f"{name}: {w}" for w in found], max(worst, error)
    return words, worst


def of_pair(name: str, folder: Path, types: list[str]) -> Outcome:
    """Open a pair, and compare the specs of all its variables and its results."""
    scope, executor = fs.Scope(), fs.Executor()
    program, feeds, fetches = fs.load_inference_model(folder / name, executor, scope)
    names = [v.name for v in fetches]
    differences = inference_differences(program)
    with np.load(folder / f"{name}.in.npz", allow_pickle=False) as file:
        feed = {n: file[n] for n in feeds}
    with np.load(folder / f"{name}.out.npz", allow_pickle=False) as file:
        expected = [file[str(at)] for at in range(len(names))]
    words, worst = values_differences(names, executor.run(program, feed, names, scope), expected)
    return Outcome(name, " ".join(types), "differs" if differences or words else "equal", worst, "; ".join(differences + words)[:600])


def rounded_otherwise(value: np.ndarray, rng: np.random.RandomState) -> np.ndarray:
    """Numbers of fp32 moved by up to one rounding."""
    return (value * (1 + rng.uniform(-1.2e-7, 1.2e-7, value.shape))).astype(np.float32) if value.dtype == np.float32 else value


def of_training(name: str, folder: Path, told: dict[str, Any]) -> Outcome:
    """Train for the same steps from the same state. What the startup program makes without chance is compared too; and where chance takes part (``exact``)
    dims and element types alone."""
    main, startup = fs.load_program(folder / f"{name}.pdmodel"), fs.load_program(folder / f"{name}.startup.pdmodel")
    differences = inference_differences(main) + inference_differences(startup)
    scope, executor = fs.Scope(), fs.Executor(seed=1)
    executor.run(startup, scope=scope)
    with np.load(folder / f"{name}.state.npz", allow_pickle=False) as file:
        state = {n: file[n] for n in file.files}
    draws = any(op.type in RANDOM for op in main.all_ops())  # SVTR's own initialization writes into the program that trains
    exact, network = told.get("exact", True) and not draws, told.get("network", False)
    drawn = {n for op in startup.all_ops() if op.type in RANDOM for n in op.output_names()} | set(told["parameters"])
    fixed = [n for n in state if n not in drawn]
    words, worst = values_differences([f"{n} of the startup program" for n in fixed], [scope.get(n) for n in fixed], [state[n] for n in fixed])
    whole = {n for op in startup.all_ops() if op.type == "coalesce_tensor" for n in op.outputs["FusedOutput"]}  # memory of others, which have it too
    with np.load(folder / f"{name}.in.npz", allow_pickle=False) as file:
        feed = {n: file[n] for n in file.files}
    with np.load(folder / f"{name}.out.npz", allow_pickle=False) as file:
        expected = {n: file[n] for n in file.files}
    kept = [n for n in state if n not in whole]

    def trained(move: Callable[[np.ndarray], np.ndarray]) -> list[Any]:
        for n, value in state.items():
            scope.set(n, move(value))
        fed = {n: move(v) for n, v in feed.items()}
        return [executor.run(main, fed, [told["loss"]], scope)[0] for _ in range(3)] + [np.array(scope.get(n)) for n in kept]

    names = [*[f"loss of step {k}" for k in range(3)], *kept]
    here = trained(lambda value: value)
    there = [*[expected[f"loss.{k}"] for k in range(3)], *[expected[f"state.{n}"] for n in kept]]
    more, error = values_differences(names, here, there, exact, network)
    found, state_of = differences + words + more, "differs"
    if network and more and not differences + words:
        rng = np.random.RandomState(1)
        _, own = values_differences(names, trained(lambda v: rounded_otherwise(v, rng)), here, exact, network)
        if error <= AMPLIFIED * own:
            state_of, found = "known", [f"{ROUNDING} [{own:.1e} here; {more[0]}"]
    return Outcome(name, " ".join(told["types"]), state_of if found else "equal", max(worst, error), "; ".join(found)[:600])


def judged(kind: str, name: str, folder: Path, built: dict[str, Any]) -> Outcome:
    if "crashed" in built or "refused" in built:
        return Outcome(name, "", "refused", words=built.get("crashed") or built["refused"])
    of = " ".join(built["types"])
    try:
        return of_training(name, folder, built) if kind == "training" else of_pair(name, folder, built["types"])
    except LookupError as error:
        return Outcome(name, of, "missing", words=str(error.args[0]))
    except Exception as error:
        if "no operator" in str(error) or "unknown operator" in str(error):
            return Outcome(name, of, "missing", words=str(error)[:300])
        return Outcome(name, of, "failed", words=f"{type(error).__name__}: {error}"[:500])


def all_names(python: str) -> dict[str, list[str]]:
    """The names of each kind."""
    done = subprocess.run([python, str(BUILDER), "-", "names"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(python: str, kind: str, names: list[str] | None = None, folder: Path | None = None) -> list[Outcome]:
    """What came of the programs of a kind, or of those named. Models are built and compared one after the other, since they are large."""
    chosen = names or all_names(python)[kind]
    out: list[Outcome] = []
    for group in [[n] for n in chosen] if kind == "models" else [chosen]:
        place = Path(tempfile.mkdtemp()) if folder is None else folder
        place.mkdir(parents=True, exist_ok=True)
        try:
            built = attended([python, str(BUILDER), str(place), kind, *group], place / "built.jsonl", len(group), PATIENCE[kind])
            for name in group:
                outcome = judged(kind, name, place, built[name])
                known = KNOWN_PROGRAMS.get(name.rsplit(".", 1)[0])
                if outcome.state == "differs" and known:
                    outcome = replace(outcome, state="known", words=f"{known} [{outcome.words}]")
                out.append(outcome)
        finally:
            if folder is None:
                shutil.rmtree(place)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["functions", "models", "layers", "training"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--paddle", help="a Python that has PaddlePaddle 2.6.2; else PADDLE_PYTHON")
    parser.add_argument("--keep", type=Path, help="a folder in which programs and arrays are left")
    parser.add_argument("--update", action="store_true", help="keep what came of it for docs/compatibility.md")
    given = parser.parse_args()
    found = compare(paddle_python(given.paddle), given.kind, given.names, given.keep)
    for one in found:
        print(f"{one.name:36} {one.state:8} {one.error:7.0e}  {one.words}")
    if given.update:
        keep(given.kind, by_program(found), not given.names)
    print({s: sum(o.state == s for o in found) for s in ("equal", "differs", "failed", "known", "missing", "refused")})
    return int(any(o.state in ("differs", "failed") for o in found))


if __name__ == "__main__":
    sys.exit(main())
