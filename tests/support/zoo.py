"""The networks of public model zoos: how they are fed and what PaddlePaddle 2.6.2 computed (see tests/zoo/README.md)."""

from __future__ import annotations

import json
import zlib
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape.language.wire import framework_pb2 as pb
from support.corpus import as_fine, described

FOLDER = Path(__file__).parents[1] / "zoo"
NAMES = tuple(sorted(p.parent.name for p in FOLDER.glob("*/case.json")))
OVERFLOWS = ("clas_RedNet26",)
"""Their activations grow past what fp32 holds under these parameters. PaddlePaddle's rectifier makes 0 of what is no number, so that its results
are the bias of the last layer; here what is no number stays so."""
TOLERANCE = 1e-3
"""Of the largest magnitude in a result."""
BOX, SCORE = 6, 1
"""A detected box is class, score, left, top, right, bottom."""
KEPT = 4096
"""So many elements of a result are kept at most."""


def _generator(text: str) -> np.random.RandomState:
    return np.random.RandomState(zlib.crc32(text.encode()) % 2**31)


def parameter_value(name: str, dims: Sequence[int], dtype: str) -> np.ndarray:
    """Weights are normal and scaled by their fan; vectors lie around one half, since they may be variances; integers are 0 or 1."""
    rng = _generator(name)
    if np.dtype(dtype).kind != "f":
        return rng.randint(0, 2, dims).astype(dtype)
    drawn = rng.standard_normal(dims)
    if len(dims) < 2:
        return (0.5 + 0.1 * np.clip(drawn, -3, 3)).astype(dtype)
    fan = max(1, int(np.prod(dims[1:])), dims[0] if len(dims) == 2 else 1)
    return (drawn / np.sqrt(fan)).astype(dtype)


def feed_value(name: str, dims: Sequence[int], dtype: str) -> np.ndarray:
    """Normal numbers; integers from 1 to 29."""
    rng = _generator(f"feed {name}")
    return (rng.randint(1, 30, dims) if np.dtype(dtype).kind in "iu" else rng.standard_normal(dims)).astype(dtype)


def kept(result: Any) -> np.ndarray:
    """The elements of a result that a case keeps: evenly spaced ones of the whole in a row."""
    row = np.asarray(result).reshape(-1)
    return row[:: max(1, -(-row.size // KEPT))]


@dataclass(frozen=True)
class Network:
    """One case: its program's bytes, what it is fed, and what PaddlePaddle gave."""

    name: str
    data: bytes
    about: dict[str, Any]
    want: tuple[np.ndarray, ...]

    @property
    def feed(self) -> dict[str, np.ndarray]:
        return {n: feed_value(n, given["dims"], given["dtype"]) for n, given in self.about["feeds"].items()}

    @property
    def fetches(self) -> list[str]:
        return [f["name"] for f in self.about["fetches"]]

    def scope(self) -> fs.Scope:
        """The parameters, by formula."""
        scope = fs.Scope()
        for name, given in self.about["parameters"].items():
            scope.set(name, parameter_value(name, given["dims"], given["dtype"]))
        return scope

    def operations(self) -> int:
        """How many operators are in its blocks."""
        return sum(len(b.ops) for b in pb.ProgramDesc.FromString(self.data).blocks)

    def unknown(self) -> Counter[str]:
        """The types of its operators that are not there, and how often each is used."""
        return Counter(op.type for op in fs.load_program(self.data).all_ops() if op.operator is None)

    def inferred_otherwise(self) -> list[str]:
        """What is said of each variable that is inferred otherwise than the file has it."""
        program = fs.load_program(self.data)
        program.forget()
        program.infer()
        wrong: list[str] = []
        for block, theirs in zip(program.blocks, pb.ProgramDesc.FromString(self.data).blocks, strict=True):
            for variable in theirs.vars:
                kind, dtype, dims, level = described(variable)
                seen = block.vars[variable.name]
                spec = (seen.kind.name, seen.dtype.name if seen.dtype is not None and dims is not None else None, seen.lod_level)
                if spec != (kind, dtype, level) or (dims is not None and not as_fine(seen.packed_dims, dims)) or not seen.known:
                    maker = seen.op.type if seen.op is not None else "no op"
                    wrong.append(f"{variable.name} of {maker}: {seen.spec.text()}, and PaddlePaddle says {kind} {dtype}{dims} level {level}")
        return wrong

    def run(self) -> list[np.ndarray]:
        return [np.asarray(v) for v in fs.Executor().run(fs.load_program(self.data), feed=self.feed, fetch=self.fetches, scope=self.scope())]

    def error(self, results: Sequence[np.ndarray]) -> float:
        """The largest distance of an element from PaddlePaddle's, as a part of the largest magnitude in its result.

        Raises:
            AssertionError: another shape or element type, or an element that is no number on one side alone.
        """
        worst = 0.0
        for about, seen, want in zip(self.about["fetches"], results, self.want, strict=True):
            name, dims = about["name"], about["dims"]
            assert list(seen.shape) == dims, f"{name}: shape {list(seen.shape)}, and PaddlePaddle's is {dims}"
            assert str(seen.dtype) == about["dtype"], f"{name}: {seen.dtype}, and PaddlePaddle's is {about['dtype']}"
            a, b = kept(seen).astype(np.float64), want.astype(np.float64)
            assert np.array_equal(np.isnan(a), np.isnan(b)), f"{name}: other elements are no numbers"
            if b.size and not np.isnan(b).all():
                far = _apart(a, b) if self.name.startswith("det_") and dims[1:] == [BOX] and b.size == dims[0] * BOX else np.abs(a - b)
                worst = max(worst, float(np.nanmax(far) / max(float(np.nanmax(np.abs(b))), 1e-30)))
        return worst


def _apart(a: np.ndarray, b: np.ndarray) -> np.ndarray:
    """The distances of detected boxes: of scores one by one, and of each box from the nearest one of the other side, since boxes whose scores
    are as good as equal come in any order."""
    a, b = a.reshape(-1, BOX), b.reshape(-1, BOX)
    boxes = np.abs(a[:, None] - b[None]).max(2)
    return np.concatenate([np.abs(a[:, SCORE] - b[:, SCORE]), boxes.min(0), boxes.min(1)])


@cache
def network(name: str) -> Network:
    about = json.loads((FOLDER / name / "case.json").read_text())
    with np.load(FOLDER / name / "want.npz", allow_pickle=False) as file:
        return Network(name, (FOLDER / name / "main.pdmodel").read_bytes(), about, tuple(file[k] for k in file.files))
