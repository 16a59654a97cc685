"""Networks of packages that stand on PaddlePaddle, saved there, and opened, checked, inferred and run here: ``networks.py KIND [--paddle PYTHON] [NAMES]``.

KIND: see `paddle_networks`.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import shutil
import subprocess
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from opened import inference_differences, of_training, stored, values_differences
from results import by_program, keep
from sides import Outcome, attended, paddle_python

import foreshape as fs
from foreshape.apps.cli.commands import app
from foreshape.core.dims.symbols import substitute
from foreshape.language.program import Program

BUILDER = Path(__file__).with_name("paddle_networks.py")
LACKING: dict[str, str] = {}
"""Networks that do not run here, and the operator that they would need."""
_MUCH_OF_ROUNDINGS = "what is fed and the parameters, moved by one rounding, change as much here: the network makes much of roundings"
APART = {
    **dict.fromkeys(("MPR", "MPR_any", "UGATITP2C", "UGATITP2C_any", "SVTR_STN"), _MUCH_OF_ROUNDINGS),
    "FairMOT_HRNet": "all scores are 1.0 with drawn parameters, so that the last rounding decides which boxes are kept",
    "PicoDet_LCNet": "two scores of boxes that overlap are one rounding apart; of equal scores and boxes the operator keeps the same ones there",
    "PPYOLO_ResNet_dcn": "PaddlePaddle describes one row for each box, of which its run keeps some; here their number is a symbol",
    "SegNeXt_fixed": "it draws the bases of its matrices in each run",
    "TableMaster": "PaddlePaddle describes the words after the first round of its loop; here their number is a symbol",
}
"""Networks that differ, and why they must."""
PATIENCE = 300.0
"""Seconds that a network may take on the other side."""


def left_open(program: Program) -> list[str]:
    """The variables with a dim that the file has as a number other than 1 (the rule of expand_v2 takes an open size for 1), and that is not known here."""
    theirs = stored(program)
    program.forget()
    program.infer()
    out: list[str] = []
    for name, there in theirs.items():
        here = program.global_block.var(name).spec.dims
        if here is not None and len(here) == len(there["dims"]) and any(b > 1 and not isinstance(a, int) for a, b in zip(here, there["dims"], strict=True)):
            out.append(f"{name} is inferred as {list(here)}, in PaddlePaddle as {there['dims']}")
    return out


def bound(program: Program, feed: dict[str, np.ndarray], names: list[str]) -> list[list[Any]]:
    """The inferred dims of variables, with the sizes of what is fed in the place of its symbols; what only the run tells stays."""
    sizes: dict[str, int] = {}
    for name, value in feed.items():
        sizes |= {str(d): n for d, n in zip(program.global_block.var(name).spec.known_dims, value.shape, strict=True) if not isinstance(d, int)}
    return [[substitute(d, sizes) for d in program.global_block.var(n).spec.known_dims] for n in names]


ALIKE = 1e-5
"""Scores that differ by less, of the largest, may come in either order."""


def in_their_order(here: list[Any], there: list[np.ndarray]) -> list[Any]:
    """Results whose first are boxes (class, score, corners), with boxes of one score put as they come there, and so the rows of all that have as many."""
    a, b = np.asarray(here[0]), there[0]
    if b.ndim != 2 or b.shape[1] < 6 or a.shape != b.shape or not b.size:
        return here
    near, left, order = ALIKE * float(np.abs(b[:, 1]).max()), set(range(len(a))), list(range(len(a)))
    for at, row in enumerate(b):
        alike = [k for k in left if abs(a[k, 1] - row[1]) <= near]
        if not alike:
            return here
        order[at] = min(alike, key=lambda k: float(np.abs(a[k] - row).max()))
        left.remove(order[at])
    return [v[order] if (v := np.asarray(x)).ndim and len(v) == len(order) else v for x in here]


def of_network(name: str, folder: Path, built: dict[str, Any]) -> Outcome:
    """Open a pair, compare the specs of all its variables, and its results of each size with each way to run it, and check it by command."""
    words: list[str] = []
    worst = 0.0
    for frozen in (False, True):
        scope, executor = fs.Scope(), fs.Executor(frozen=frozen)
        program, feeds, fetches = fs.load_inference_model(folder / name, executor, scope)
        names = [v.name for v in fetches]
        if not frozen:
            words += inference_differences(program)
            words += left_open(fs.load_program(folder / f"{name}.pdmodel"))
        for at in range(built["sizes"]):
            with np.load(folder / f"{name}.{at}.in.npz", allow_pickle=False) as file:
                feed = {n: file[n] for n in feeds}
            with np.load(folder / f"{name}.{at}.out.npz", allow_pickle=False) as file:
                expected = [file[str(k)] for k in range(len(names))]
            found, error = values_differences(names, in_their_order(executor.run(program, feed, names, scope), expected), expected, network=True)
            worst = max(worst, error)
            words += [f"size {at}{', frozen' if frozen else ''}: {w}" for w in found]
            for n, dims, value in zip(names, bound(program, feed, names), expected, strict=True):
                if not frozen and (len(dims) != value.ndim or any(isinstance(d, int) and d != size for d, size in zip(dims, value.shape, strict=True))):
                    words.append(f"size {at}: {n} is described as {dims}, and is {list(value.shape)}")
    if check(folder / f"{name}.pdmodel"):
        words.append("foreshape check finds errors")
    return Outcome(name, " ".join(built["types"]), "differs" if words else "equal", worst, "; ".join(words)[:600])


def check(path: Path) -> int:
    """What ``foreshape check`` ends with."""
    with contextlib.redirect_stdout(io.StringIO()):
        try:
            app(["check", str(path)])
        except SystemExit as end:
            return int(end.code or 0)
    return 0


def judged(name: str, folder: Path, built: dict[str, Any]) -> Outcome:
    for key in ("absent", "crashed", "refused"):
        if key in built:
            return Outcome(name, "", "absent" if key == "absent" else "refused", words=built[key])
    try:
        found = of_training(name, folder, built) if "loss" in built else of_network(name, folder, built)
        return replace(found, state="known", words=APART[name]) if found.state == "differs" and name in APART else found
    except LookupError as error:
        return Outcome(name, " ".join(built["types"]), "missing", words=str(error.args[0]))
    except Exception as error:
        if name in LACKING:
            return Outcome(name, " ".join(built["types"]), "missing", words=f"no operator here: {LACKING[name]}")
        return Outcome(name, " ".join(built["types"]), "failed", words=f"{type(error).__name__}: {error}"[:500])


def all_names(python: str) -> dict[str, list[str]]:
    """The names of each kind."""
    done = subprocess.run([python, str(BUILDER), "-", "names"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def compare(python: str, kind: str, names: list[str] | None = None, folder: Path | None = None) -> list[Outcome]:
    """What came of the networks of a kind, or of those named; of those that are in a folder already, without building them again."""
    chosen = names or all_names(python)[kind]
    place = Path(tempfile.mkdtemp()) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    try:
        built = attended([python, str(BUILDER), str(place), kind, *chosen], place / "built.jsonl", len(chosen), PATIENCE)
        return [judged(name, place, built[name]) for name in chosen]
    finally:
        if folder is None:
            shutil.rmtree(place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["classification", "detection", "generators", "language", "ocr", "segmentation", "training"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--paddle", help="a Python that has PaddlePaddle 2.6.2 and the packages; else PADDLE_PYTHON")
    parser.add_argument("--keep", type=Path, help="a folder in which programs and arrays are left")
    parser.add_argument("--update", action="store_true", help="keep what came of it for docs/compatibility.md")
    given = parser.parse_args()
    found = compare(paddle_python(given.paddle), given.kind, given.names, given.keep)
    for one in found:
        print(f"{one.name:36} {one.state:8} {one.error:7.0e}  {one.words}")
    if given.update:
        keep(f"networks: {given.kind}", by_program(found), not given.names)
    print({s: sum(o.state == s for o in found) for s in ("equal", "differs", "failed", "known", "missing", "refused", "absent")})
    return int(any(o.state in ("differs", "failed", "missing") for o in found))


if __name__ == "__main__":
    sys.exit(main())
