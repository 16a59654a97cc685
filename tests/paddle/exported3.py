"""What PaddlePaddle 3 exports (`paddle3_exports`), opened here and compared; and converted, run by PaddlePaddle 2.6.2 and compared."""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from sides import NETWORK_TOLERANCE, PATIENCE, SIDE, Outcome, array_differences, attended

import foreshape as fs
from foreshape.interop import convert_model

EXPORTS = Path(__file__).with_name("paddle3_exports.py")


def all_names(python: str) -> dict[str, list[str]]:
    """The names of each kind."""
    done = subprocess.run([python, str(EXPORTS), "-", "names"], capture_output=True, text=True, check=True)
    return json.loads(done.stdout.splitlines()[-1])


def arrays(path: Path) -> dict[str, np.ndarray]:
    with np.load(path, allow_pickle=False) as file:
        return {n: file[n] for n in file.files}


def judged(name: str, seen: Sequence[Any], want: dict[str, np.ndarray]) -> Outcome:
    """How results differ from what PaddlePaddle 3 computed."""
    if len(seen) != len(want):
        return Outcome(name, "", "differs", words=f"{len(seen)} results, in PaddlePaddle {len(want)}")
    words: list[str] = []
    worst = 0.0
    for at, value in enumerate(seen):
        found, error = array_differences(np.asarray(value), want[str(at)], tolerance=NETWORK_TOLERANCE if want[str(at)].dtype != np.float16 else 4e-3)
        words, worst = words + [f"result {at}: {w}" for w in found], max(worst, error)
    return Outcome(name, "", "differs" if words else "equal", worst, "; ".join(words)[:600])


def here(name: str, folder: Path) -> Outcome:
    """Open an exported program, and compare its results."""
    try:
        model = fs.load_inference_model(folder / name, scope=fs.Scope())
        return judged(name, list(model.run(arrays(folder / f"{name}.in.npz")).values()), arrays(folder / f"{name}.out.npz"))
    except Exception as error:
        return Outcome(name, "", "missing" if "is not known" in str(error) else "failed", words=f"{type(error).__name__}: {error}"[:500])


def there(names: Sequence[str], folder: Path, python: str) -> list[Outcome]:
    """Convert exported programs, and compare the results of PaddlePaddle 2.6.2."""
    out: list[Outcome] = []
    cases: list[dict[str, Any]] = []
    place = folder / "converted"
    place.mkdir()
    for name in names:
        try:
            convert_model(folder / name, place / f"{name}.pdmodel")
        except fs.ForeshapeError as error:
            lacks = "PaddlePaddle 2.6.2 lacks" in str(error)
            out.append(Outcome(name, "", "missing" if lacks else "failed", words=f"{type(error).__name__}: {error}"[:500]))
            continue
        (place / f"{name}.pdiparams").touch()  # of a network without parameters too
        fed = arrays(folder / f"{name}.in.npz")
        program = fs.load_program(place / f"{name}.pdmodel")
        kept = {op.output("Out") for op in program.global_block.ops if op.type == "feed"}
        shutil.copyfile(folder / f"{name}.in.npz", place / f"{name}.in.npz")
        feeds = {n: {"array": n, "lengths": [], "kept": False} for n in fed if n in kept}
        wanted = [str(at) for at in range(len(arrays(folder / f"{name}.out.npz")))]
        cases.append({"name": name, "models": [f"{name}.pdmodel"], "feeds": feeds, "arrays": f"{name}.in.npz", "way": "pair", "specs": [], "wanted": wanted})
    (place / "cases.jsonl").write_text("".join(json.dumps(case) + "\n" for case in cases))
    found = attended([python, str(SIDE), str(place)], place / "results.jsonl", len(cases), 3 * PATIENCE) if cases else {}
    for case in cases:
        name, result = case["name"], found[case["name"]]
        if "missing" in result:
            out.append(Outcome(name, "", "failed", words=f"PaddlePaddle 2.6.2 lacks {result['missing']}, and the conversion does not say so"))
        elif "crashed" in result or "run_error" in result:
            out.append(Outcome(name, "", "refused", words=result.get("crashed") or result["run_error"]))
        else:
            values = arrays(place / f"{name}.out.npz")
            out.append(judged(name, [values[n] for n in case["wanted"] if n in values], arrays(folder / f"{name}.out.npz")))
    return out


def compare(python3: str, kind: str, python: str | None = None, names: Sequence[str] = (), folder: Path | None = None) -> tuple[list[Outcome], list[Outcome]]:
    """What came of the exports of a kind here, and, with a Python of PaddlePaddle 2.6.2, there."""
    chosen = list(names) or all_names(python3)[kind]
    place = Path(tempfile.mkdtemp()) if folder is None else folder
    place.mkdir(parents=True, exist_ok=True)
    try:
        built = attended([python3, str(EXPORTS), str(place), kind, *names], place / "built.jsonl", len(chosen), 120.0)
        made = [n for n in chosen if "results" in built[n]]
        apart = [Outcome(n, "", "refused", words=built[n].get("crashed") or built[n]["refused"]) for n in chosen if n not in made]
        return [*(here(n, place) for n in made), *apart], there(made, place, python) if python else []
    finally:
        if folder is None:
            shutil.rmtree(place)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("kind", choices=["layers", "flow", "types", "models"])
    parser.add_argument("names", nargs="*")
    parser.add_argument("--paddle3", required=True, help="a Python that has PaddlePaddle 3.3.1")
    parser.add_argument("--paddle", help="a Python that has PaddlePaddle 2.6.2, which runs what is converted")
    parser.add_argument("--keep", type=Path, help="a folder in which programs and arrays are left")
    given = parser.parse_args()
    bad = 0
    for side, found in zip(("here", "in 2.6.2"), compare(given.paddle3, given.kind, given.paddle, given.names, given.keep), strict=True):
        for one in found:
            print(f"{side:9} {one.name:32} {one.state:8} {one.error:7.0e}  {one.words}")
        print(side, {s: sum(o.state == s for o in found) for s in ("equal", "differs", "failed", "missing", "refused")})
        bad += sum(o.state in ("differs", "failed") for o in found)
    return int(bad > 0)


if __name__ == "__main__":
    sys.exit(main())
