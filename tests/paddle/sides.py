"""Programs that are run on both sides, here and in PaddlePaddle, and what is compared of them.

The two sides talk over files only: `paddle_side.py` runs in a process of PaddlePaddle's own Python.
"""

from __future__ import annotations

import json
import os
import subprocess
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape.core.spec import LOD_TENSOR_ARRAY, SELECTED_ROWS, Spec
from foreshape.language.program import Program

SIDE = Path(__file__).with_name("paddle_side.py")
PATIENCE = 20.0
"""Seconds in which a case of one op must end on the other side."""
STARTING = 300.0
"""Seconds in which the other side must have imported PaddlePaddle and begun with a case."""
DTYPE_NAMES = {"float16": "fp16", "float32": "fp32", "float64": "fp64"}
TOLERANCE = {"float16": 4e-3, "float32": 2e-5, "float64": 1e-6}
"""How far a number may be from PaddlePaddle's, relative to the largest magnitude of its tensor. Some of its fp64 kernels compute in fp32."""
NETWORK_TOLERANCE = 1e-4
"""The same for whole networks and for training them."""

WORKSPACE = {
    "batch_norm": ("ReserveSpace",),
    "rnn": ("Reserve", "DropoutState"),
    "lstm": ("BatchGate", "BatchCellPreAct"),
    "lstmp": ("BatchGate", "BatchCellPreAct", "BatchHidden"),
    "gru": ("BatchGate", "BatchResetHiddenPrev", "BatchHidden"),
    "einsum": ("InnerCache",),
}
"""Results that an operator keeps for its own gradient, in an order that is each side's own. (XShape, of several operators, has dims but no numbers.)"""


@dataclass
class TwoSided:
    """A program with what it is fed, and the variables that are compared.

    ``exact``: whether it computes the same each time. ``known``: why PaddlePaddle computes otherwise, where it may. ``way``: how the other
    side runs it, with ``others``, further programs, and what else it is ``told``. ``specs`` and ``values``: what is inferred and computed
    here, or the ``error``.
    """

    name: str
    of: str
    program: Program
    feed: dict[str, Any]
    wanted: list[str]
    exact: bool = True
    known: str = ""
    way: str = "ops"
    others: list[Program] = field(default_factory=list[Program])
    told: dict[str, Any] = field(default_factory=dict[str, Any])
    specs: dict[str, Spec] = field(default_factory=dict[str, Spec])
    values: dict[str, Any] = field(default_factory=dict[str, Any])
    error: str = ""

    def compares(self, name: str) -> bool:
        """Whether a variable means something on both sides; see `WORKSPACE`."""
        maker = self.program.global_block.find(name)
        op = None if maker is None else maker.op
        return op is None or not any(name in op.outputs.get(slot, ()) for slot in (*WORKSPACE.get(op.type, ()), "XShape"))


@dataclass
class Outcome:
    """What came of comparing one program.

    ``state``: "equal"; "differs"; "known" (differs, as `known` says); "refused" (by PaddlePaddle); "missing" (an operator of the other side);
    or "failed" (here). ``error``: the largest, relative to the largest magnitude of its tensor. ``words``: what differs, is refused or failed.
    """

    name: str
    of: str
    state: str
    error: float = 0.0
    words: str = ""


def paddle_python(given: str | None = None) -> str:
    """The Python that has PaddlePaddle.

    Raises:
        SystemExit: none is named.
    """
    found = given or os.environ.get("PADDLE_PYTHON")
    if not found:
        raise SystemExit("name a Python that has PaddlePaddle 2.6.2: --paddle PATH, or PADDLE_PYTHON in the environment")
    return found


def compute(program: Program, feed: Mapping[str, Any], wanted: Sequence[str]) -> dict[str, Any]:
    """What comes out here; what is fed to a persistable variable is put into the scope, and read from there afterwards."""
    scope, kept = fs.Scope(), persistable(program, feed)
    for name in kept:
        scope.set(name, feed[name])
    others = [n for n in wanted if n not in kept]
    values = fs.Executor(seed=3).run(program, {n: v for n, v in feed.items() if n not in kept}, others, scope)
    return dict(zip(others, values, strict=True)) | {n: scope.get(n) for n in wanted if n in kept}


def persistable(program: Program, feed: Mapping[str, Any]) -> set[str]:
    """The names among what is fed that are parameters or state."""
    return {n for n in feed if program.global_block.var(n).persistable}


def run_here(case: TwoSided) -> None:
    """Infer and compute the case on this side."""
    try:
        case.specs = {n: case.program.global_block.var(n).spec for n in case.wanted}
        case.values = compute(case.program, case.feed, case.wanted)
    except Exception as error:
        case.error = f"{type(error).__name__}: {error}"[:400]


def write(cases: Sequence[TwoSided], folder: Path) -> None:
    """Write what the other side needs."""
    lines: list[str] = []
    for case in cases:
        models = [f"{case.name}.pdmodel", *(f"{case.name}.{k}.pdmodel" for k in range(len(case.others)))]
        for model, program in zip(models, [case.program, *case.others], strict=True):
            (folder / model).write_bytes(program.to_bytes())
        arrays: dict[str, np.ndarray] = {}
        feeds: dict[str, Any] = {}
        kept = persistable(case.program, case.feed)
        for at, (name, value) in enumerate(case.feed.items()):
            arrays[f"a{at}"] = np.asarray(value)
            feeds[name] = {"array": f"a{at}", "lengths": value.sequence_lengths if isinstance(value, fs.LoDTensor) else [], "kept": name in kept}
        np.savez(folder / f"{case.name}.npz", **arrays)
        line = {"name": case.name, "models": models, "arrays": f"{case.name}.npz", "feeds": feeds, "way": case.way, "wanted": case.wanted}
        lines.append(json.dumps(line | {"specs": list(case.specs), **case.told}))
    (folder / "cases.jsonl").write_text("\n".join(lines) + "\n")


def run_there(python: str, folder: Path) -> dict[str, dict[str, Any]]:
    """What PaddlePaddle makes of the cases in a folder, by name; see `attended`."""
    count = len((folder / "cases.jsonl").read_text().splitlines())
    (folder / "results.jsonl").unlink(missing_ok=True)
    return attended([python, str(SIDE), str(folder)], folder / "results.jsonl", count)


def attended(command: list[str], results: Path, count: int, patience: float = PATIENCE) -> dict[str, dict[str, Any]]:
    """Run a command of the other side until it has dealt with ``count`` cases; it adds a line to a file when it begins one, and when it has its result.

    A case that ends its process, or that takes longer than ``patience``, has ``crashed``, and another process goes on with the others.
    """
    crashed: dict[str, str] = {}
    while True:
        ended, complaint = _attend(command, results, patience)
        lines = [json.loads(line) for line in results.read_text().splitlines()] if results.exists() else []
        found = {line["name"]: line["result"] for line in lines if "result" in line}
        if ended == 0 and len(found) + len(crashed) == count:
            return found | {n: {"crashed": words} for n, words in crashed.items()}
        unfinished = {line["name"] for line in lines} - found.keys() - crashed.keys()
        if not unfinished:
            raise RuntimeError(f"the side of PaddlePaddle ended with {ended} before any case:\n{complaint}")
        crashed |= dict.fromkeys(unfinished, "it did not end" if ended is None else f"the process ended with {ended}")


def _attend(command: list[str], results: Path, patience: float) -> tuple[int | None, str]:
    """Run the other side until it ends, or until nothing has come from it for so many seconds: how it ended, and the last that it said."""
    with results.with_suffix(".said").open("w+") as said:
        process = subprocess.Popen(command, stdout=said, stderr=said, env=_environment())
        begun = size = results.stat().st_size if results.exists() else 0
        since = time.monotonic()
        while (ended := _ended(process)) is None:
            now = results.stat().st_size if results.exists() else 0
            if now != size:
                size, since = now, time.monotonic()
            elif time.monotonic() - since > (patience if size != begun else STARTING):
                process.kill()
                process.wait()
                break
        said.seek(0)
        return ended, said.read()[-2000:]


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    try:
        return process.wait(0.2)
    except subprocess.TimeoutExpired:
        return None


def _environment() -> dict[str, str]:
    """The environment without what would lead the other Python to the modules of this side."""
    return {k: v for k, v in os.environ.items() if not k.startswith("PYTHON")} | {"OMP_NUM_THREADS": "1", "GLOG_minloglevel": "3"}


# --- comparing


def outcome(case: TwoSided, there: Mapping[str, Any], folder: Path) -> Outcome:
    """Compare what the two sides made of a case."""
    if "missing" in there:
        return Outcome(case.name, case.of, "missing", words=f"PaddlePaddle has no operator {', '.join(there['missing'])}")
    for key in ("crashed", "run_error"):
        if key in there:
            return Outcome(case.name, case.of, "refused", words=there[key] + (f"; and here: {case.error}" if case.error else ""))
    if case.error:
        return Outcome(case.name, case.of, "failed", words=case.error)
    differences: list[str] = []
    unwritten: list[str] = []
    worst, compared = 0.0, 0
    with np.load(folder / f"{case.name}.out.npz", allow_pickle=False) as arrays:
        for name, spec in case.specs.items():
            said = believed(name, there, arrays)
            differences += [f"{name}: {w}" for w in spec_differences(spec, said)] if case.compares(name) else []
        for name in case.wanted:
            seen = there["seen"].get(name)
            if not case.compares(name):
                continue
            if seen is None or seen.get("written") is False:
                unwritten.append(name)
                continue
            words, error = value_differences(name, case.values[name], seen, arrays, case.exact)
            differences += [f"{name}: {w}" for w in words]
            worst, compared = max(worst, error), compared + 1
    if differences:
        words = "; ".join(differences)[:600]
        return Outcome(case.name, case.of, "known", worst, f"{case.known} [{words}]") if case.known else Outcome(case.name, case.of, "differs", worst, words)
    if not compared:
        return Outcome(case.name, case.of, "refused", words="PaddlePaddle wrote nothing into any of the results")
    remarks = [f"not inferred there: {there['inference_error']}"] if "inference_error" in there else []
    remarks += [f"PaddlePaddle writes nothing into {', '.join(unwritten)}"] if unwritten else []
    return Outcome(case.name, case.of, "equal", worst, "; ".join(remarks))


def believed(name: str, there: Mapping[str, Any], arrays: Any) -> Mapping[str, Any] | None:
    """What PaddlePaddle infers for a variable, but what its own run contradicts. Of gradients no element type: its programs set that from the
    forward variable, whatever the rule says."""
    said = there.get("inferred", {}).get(name)
    if said is None:
        return None
    said = dict(said)
    if "@GRAD" in name:
        said["dtype"] = None
    seen = there["seen"].get(name)
    if seen is not None and seen["kind"] == said["kind"] == "LOD_TENSOR" and seen.get("written") is not False:
        value = arrays[name]
        dims = said["dims"]
        if dims is not None and (len(dims) != value.ndim or any(d >= 0 and d != size for d, size in zip(dims, value.shape, strict=False))):
            said["dims"] = None
        if said["dtype"] is not None and DTYPE_NAMES.get(str(value.dtype), str(value.dtype)) != said["dtype"]:
            said["dtype"] = None
        if len(seen["lengths"]) != said["lod_level"]:
            said["lod_level"] = None
    return said


def spec_differences(here: Spec, there: Mapping[str, Any] | None) -> list[str]:
    """How PaddlePaddle's inferred spec differs from ours, in words. What it leaves open may be anything."""
    if there is None:
        return []
    out: list[str] = []
    if here.kind.name != there["kind"]:
        return [f"is inferred as {here.kind.name}, in PaddlePaddle as {there['kind']}"]
    if here.kind is LOD_TENSOR_ARRAY:
        return out
    mine = [d if isinstance(d, int) else -1 for d in here.known_dims]
    theirs = there["dims"]
    if theirs is not None and (len(mine) != len(theirs) or any(a != b and a >= 0 and b >= 0 for a, b in zip(mine, theirs, strict=True))):
        out.append(f"is inferred as {mine}, in PaddlePaddle as {theirs}")
    if here.dtype is not None and there["dtype"] is not None and here.dtype.name.lower() != there["dtype"]:
        out.append(f"is inferred as {here.dtype.name}, in PaddlePaddle as {there['dtype']}")
    levels = 0 if here.lod is None else len(here.lod.counts)
    if here.kind is not SELECTED_ROWS and there["lod_level"] is not None and levels != there["lod_level"]:
        out.append(f"is inferred with {levels} levels of sequences, in PaddlePaddle with {there['lod_level']}")
    return out


def value_differences(name: str, here: Any, seen: Mapping[str, Any], arrays: Any, exact: bool) -> tuple[list[str], float]:
    """How the numbers differ, in words, and the largest error."""
    if seen["kind"] == "SELECTED_ROWS":
        if not isinstance(here, fs.SelectedRows):
            return [f"is {type(here).__name__}, in PaddlePaddle sparse rows"], 0.0
        there = fs.SelectedRows(arrays[f"{name}:rows"], arrays[name], seen["height"])
        return array_differences(here.to_dense(), there.to_dense(), exact)
    if seen["kind"] == "LOD_TENSOR_ARRAY":
        if not isinstance(here, list) or len(here) != seen["count"]:
            return [f"has {len(here) if isinstance(here, list) else 'no'} elements, in PaddlePaddle {seen['count']}"], 0.0
        words: list[str] = []
        worst = 0.0
        for at, (element, lengths) in enumerate(zip(here, seen["lengths"], strict=True)):
            key = f"{name}:{at}"
            if key in arrays.files and element is not None:
                found, error = _ragged_differences(element, arrays[key], lengths, exact)
                words, worst = words + [f"element {at} {w}" for w in found], max(worst, error)
            elif (key in arrays.files) != (element is not None) and not (element is not None and 0 in np.shape(element)):
                words.append(f"element {at} is written on one side only")
        return words, worst
    if "@GRAD" in name and not seen["lengths"]:  # its kernels leave the sequences of gradients to those of the operands
        return array_differences(np.asarray(here), arrays[name], exact)
    return _ragged_differences(here, arrays[name], seen["lengths"], exact)


def _ragged_differences(here: Any, there: np.ndarray, lengths: list[list[int]], exact: bool) -> tuple[list[str], float]:
    mine = here.sequence_lengths if isinstance(here, fs.LoDTensor) else []
    words = [f"has sequences of {mine}, in PaddlePaddle of {lengths}"] if mine != lengths else []
    more, error = array_differences(np.asarray(here), there, exact)
    return words + more, error


def array_differences(here: np.ndarray, there: np.ndarray, exact: bool = True, tolerance: float | None = None, least: float = 0.0) -> tuple[list[str], float]:
    """Dims, element types and numbers (only dims and element types of what is not ``exact``), relative to the largest magnitude, or to ``least``."""
    out: list[str] = []
    if here.shape != there.shape:
        return [f"comes out as {list(here.shape)}, in PaddlePaddle as {list(there.shape)}"], 0.0
    if here.dtype != there.dtype:
        out.append(f"comes out as {here.dtype}, in PaddlePaddle as {there.dtype}")
    if not exact or not here.size:
        return out, 0.0
    if there.dtype.kind == here.dtype.kind == "c":
        pairs = [np.stack([x.real, x.imag], -1) for x in (here, there)]
        return array_differences(pairs[0], pairs[1], exact, tolerance, least)
    if there.dtype.kind != "f" or here.dtype.kind != "f":
        unequal = np.argwhere(here != there)
        if len(unequal):
            at = tuple(unequal[0].tolist())
            out.append(f"{len(unequal)} of {here.size} numbers differ; at {list(at)} {here[at]}, in PaddlePaddle {there[at]}")
        return out, 0.0
    a, b = here.astype(np.float64), there.astype(np.float64)
    special = ~np.isfinite(a) | ~np.isfinite(b)
    unequal = np.argwhere(special & ~((a == b) | (np.isnan(a) & np.isnan(b))))
    if len(unequal):
        at = tuple(unequal[0].tolist())
        out.append(f"{len(unequal)} of {here.size} numbers differ; at {list(at)} {here[at]}, in PaddlePaddle {there[at]}")
    a, b = np.where(special, 0.0, a), np.where(special, 0.0, b)
    largest = max(float(np.abs(b).max()), least)
    distance = np.abs(a - b)
    error = float(distance.max()) / (largest or 1.0)
    if error > (tolerance or TOLERANCE[str(there.dtype)]):
        at = tuple(int(i) for i in np.unravel_index(int(distance.argmax()), distance.shape))
        out.append(f"{here[at]} at {list(at)}, in PaddlePaddle {there[at]}: {error:.1e} of the largest magnitude")
    return out, error
