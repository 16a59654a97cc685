"""Programs of PaddlePaddle 3 with what PaddlePaddle 3.3.1 computed (see tests/interop/pir/README.md)."""

from __future__ import annotations

import base64
import json
import lzma
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import torch

import foreshape as fs
from support.zoo import kept, parameter_value

FOLDER = Path(__file__).parents[1] / "interop" / "pir"
TOLERANCE = 1e-4
"""Of the largest magnitude in a result; of 16 bits a hundred times this."""


def array(given: Mapping[str, Any]) -> np.ndarray:
    return np.frombuffer(base64.b64decode(given["data"]), given["dtype"]).reshape(given["dims"]).copy()


def value(name: str, dims: Sequence[int], dtype: str) -> Any:
    """A parameter, by formula."""
    if dtype == "bfloat16":
        return torch.from_numpy(parameter_value(name, dims, "float32")).to(torch.bfloat16)
    return parameter_value(name, dims, dtype)


def numbers(result: Any) -> np.ndarray:
    return result.float().numpy() if isinstance(result, torch.Tensor) else np.asarray(result)


def apart(seen: np.ndarray, want: np.ndarray) -> float:
    """The largest distance of two elements, as a part of the largest magnitude wanted; infinite where one side alone is no number."""
    if want.dtype.kind == "c":
        return max(apart(seen.real, want.real), apart(seen.imag, want.imag))
    a, b = seen.astype(np.float64), want.astype(np.float64)
    with np.errstate(invalid="ignore"):
        far = np.where((a == b) | (np.isnan(a) & np.isnan(b)), 0.0, np.abs(a - b))
    finite = np.abs(b[np.isfinite(b)])
    worst = float(far.max(initial=0.0)) / max(1e-3, float(finite.max(initial=0.0)))
    return worst if worst == worst else float("inf")


@dataclass(frozen=True)
class Case:
    """A program's bytes, as its file has them, what it is fed, and what PaddlePaddle gave."""

    name: str
    data: bytes
    about: dict[str, Any]

    @property
    def document(self) -> dict[str, Any]:
        """The file's content, anew for each caller."""
        return json.loads(self.data)

    @property
    def feed(self) -> dict[str, np.ndarray]:
        return {n: array(given) for n, given in self.about["feeds"].items()}

    @property
    def want(self) -> list[np.ndarray]:
        return [array(given) for given in self.about["want"]]

    def parameters(self) -> dict[str, Any]:
        """The values of all parameters: as stored, or by formula."""
        given = self.about["parameters"]
        return {n: array(p) if "data" in p else value(n, p["dims"], p["dtype"]) for n, p in given.items()}

    def saved(self) -> dict[str, Any]:
        """The values of those that are in the parameter file."""
        return {n: v for n, v in self.parameters().items() if self.about["parameters"][n].get("saved", True)}

    def scope(self) -> fs.Scope:
        scope = fs.Scope()
        for name, held in self.parameters().items():
            scope.set(name, held)
        return scope

    def ends(self, kind: str) -> list[str]:
        """The names of the feeds or fetches, as the file has them."""
        ops = self.document["program"]["regions"][0]["blocks"][0]["ops"]
        found: list[tuple[int, str]] = []
        for op in ops:
            if op["#"] in (("1.fetch",) if kind == "fetch" else ("1.data", "1.feed")):
                attributes = {a["N"]: a["AT"]["D"] for a in op["A"]}
                found.append((attributes.get("col", len(found)), attributes["name"]))
        return [name for _, name in sorted(found)]

    def run(self, program: fs.Program | None = None, **executor: Any) -> list[Any]:
        program = fs.load_program(self.data) if program is None else program
        return fs.Executor("cpu", **executor).run(program, feed=self.feed, fetch=self.ends("fetch"), scope=self.scope())

    def differences(self, results: Sequence[Any]) -> dict[int, str]:
        """For each result that differs from PaddlePaddle's, in which way."""
        assert len(results) == len(self.want)
        about: Any = self.about.get("fetches")
        out: dict[int, str] = {}
        for at, (given, want) in enumerate(zip(results, self.want, strict=True)):
            seen = numbers(given)
            dims, dtype = (about[at]["dims"], about[at]["dtype"]) if about else (list(want.shape), str(want.dtype))
            if list(seen.shape) != dims or (dtype != "bfloat16" and str(seen.dtype) != dtype):
                out[at] = f"{seen.dtype}{list(seen.shape)}, and PaddlePaddle's is {dtype}{dims}"
                continue
            far = apart(kept(seen) if about else seen, want) / (100 if dtype in ("bfloat16", "float16") else 1)
            if far >= TOLERANCE:
                out[at] = f"{far:.1e} apart"
        return out


@cache
def cases(file: str) -> dict[str, Case]:
    """The cases of one of the files, by name."""
    rows = [json.loads(line) for line in lzma.decompress((FOLDER / f"{file}.jsonl.xz").read_bytes()).splitlines()]
    return {row["name"]: Case(row["name"], row.pop("model").encode(), row) for row in rows}
