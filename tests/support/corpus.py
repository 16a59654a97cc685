"""The reference corpus: programs that PaddlePaddle 2.6.2 built, and what they computed (see tests/corpus/README.md)."""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape.language.wire import framework_pb2 as pb

FOLDER = Path(__file__).parents[1] / "corpus"
REPLAYED = ("lenet", "vgg11", "resnet50", "mobilenet_v2", "googlenet", "squeezenet1_1", "mlp_momentum", "lenet_bn_adam", "transformer_encoder",
            "transformer_adamw", "housing_clip_decay", "metrics", "tensor_surgery", "convolution_family", "sequence_ops", "bow_sparse_sgd",
            "bow_sparse_lazy_adam", "while_loop", "cond_branches", "lstm_bidirectional")  # fmt: skip
"""The cases that are computed; of the others only the programs are here."""
LARGE = ("vgg11", "resnet50", "mobilenet_v2", "googlenet", "squeezenet1_1")
"""Those that take more than a moment."""
CASES = tuple(sorted(p.name for p in FOLDER.iterdir() if (p / "case.json").exists()))
PROGRAMS = tuple(sorted(f"{p.parent.name}/{p.name}" for p in FOLDER.glob("*/*.pdmodel")))
SAVED = tuple(sorted(p.parent.name for p in FOLDER.glob("*/inference.pdiparams")))
RELATIVE = 1e-4
FLOOR = 1e-5
"""Of the largest magnitude in an array: below that, rounding in another order is all that there is to see."""


@dataclass(frozen=True)
class Case:
    """One case: how it is fed, what is fetched of it, and what PaddlePaddle gave."""

    name: str
    about: dict[str, Any]
    arrays: dict[str, np.ndarray]

    def path(self, file: str) -> Path:
        return FOLDER / self.name / file

    @property
    def feed(self) -> dict[str, Any]:
        """What is fed: an array, or a `LoDTensor` where the data are ragged."""
        out: dict[str, Any] = {}
        for name, given in self.about["feeds"].items():
            lengths, data = given.get("sequence_lengths"), self.arrays[f"feed/{name}"]
            out[name] = fs.LoDTensor(data, lengths) if lengths else data
        return out

    def assert_ragged_as(self, seen: Any, fetched: str) -> None:
        """What was fetched has PaddlePaddle's sequences; none where that has none."""
        expected = self.about.get("fetch_sequence_lengths", {}).get(fetched)
        lengths = seen.sequence_lengths if isinstance(seen, fs.LoDTensor) else None
        assert lengths == expected, f"{fetched}: sequences {lengths}, and PaddlePaddle's are {expected}"

    def start(self, executor: fs.Executor) -> fs.Scope:
        """The state before the first step: the startup program's, with the parameters set by formula."""
        scope = fs.Scope()
        startup = fs.load_program(self.path("startup.pdmodel"))
        executor.run(startup, scope=scope)
        for name, given in self.about["parameters"].items():
            scope.set(name, parameter_value(name, given["dims"], str(scope.get(name).dtype)))
        for op in startup.all_ops():
            if op.type == "coalesce_tensor":
                _share_memory(scope, op)
        return scope


def _share_memory(scope: fs.Scope, op: Any) -> None:
    """In PaddlePaddle the results of coalesce_tensor are parts of one memory, so that they were set when the whole was, which was last."""
    whole, at = np.asarray(scope.get(op.outputs["FusedOutput"][0])), 0
    for name in op.outputs["Output"]:
        part = np.asarray(scope.get(name))
        scope.set(name, whole[at : at + part.size].reshape(part.shape))
        at += part.size


@cache
def case(name: str) -> Case:
    about = json.loads((FOLDER / name / "case.json").read_text())
    with np.load(FOLDER / name / "io.npz", allow_pickle=False) as file:
        return Case(name, about, {k: file[k] for k in file.files})


def parameter_value(name: str, dims: list[int], dtype: str) -> np.ndarray:
    """Normal numbers seeded by the parameter's name, scaled by its fan; as the corpus's own maker has it."""
    value = np.random.RandomState(zlib.crc32(name.encode()) % 2**31).standard_normal(dims)
    if np.dtype(dtype).kind == "f":
        if len(dims) > 1:
            fan = max(1, int(np.prod(dims[1:])))
            value *= 1.0 / np.sqrt(max(fan, dims[0]) if len(dims) == 2 else fan)
        else:
            value *= 0.1
    return value.astype(dtype)


def assert_agrees(seen: Any, expected: np.ndarray, what: str) -> None:
    """Equal shape; integers equal; floating-point numbers within `RELATIVE`, or `FLOOR` of the largest magnitude."""
    seen = np.asarray(seen)
    assert seen.shape == expected.shape, f"{what}: shape {seen.shape}, and PaddlePaddle's is {expected.shape}"
    if expected.dtype.kind != "f":
        assert seen.dtype == expected.dtype and np.array_equal(seen, expected), f"{what}: {seen.ravel()[:8]}, and PaddlePaddle's is {expected.ravel()[:8]}"
        return
    wide = expected.astype(np.float64)
    bound = RELATIVE * np.abs(wide) + FLOOR * (np.abs(wide).max() if wide.size else 0.0)
    excess = np.abs(seen.astype(np.float64) - wide) - bound
    worst = int(np.argmax(np.nan_to_num(excess, nan=np.inf))) if excess.size else 0
    assert excess.size == 0 or excess.max() <= 0, f"{what}: {seen.ravel()[worst]!r} at {worst}, and PaddlePaddle's is {expected.ravel()[worst]!r}"


def described(variable: pb.VarDesc) -> tuple[str, str | None, list[int] | None, int]:
    """Kind, element type, dims and lod level of a variable, as its message says."""
    type = variable.type
    kind = pb.VarType.Type.Name(type.type)
    holder = {"LOD_TENSOR": type.lod_tensor, "LOD_TENSOR_ARRAY": type.tensor_array}.get(kind)
    tensor = holder.tensor if holder is not None else type.selected_rows if kind == "SELECTED_ROWS" else None
    if tensor is None:
        return kind, None, None, 0
    return kind, pb.VarType.Type.Name(tensor.data_type).lower(), list(tensor.dims), holder.lod_level if holder is not None else 0


def as_fine(seen: list[int], theirs: list[int]) -> bool:
    """Whether dims are PaddlePaddle's, or finer: a number where it has -1 (or a product with -1, such as -6)."""
    return len(seen) == len(theirs) and all(t < 0 or s == t for s, t in zip(seen, theirs, strict=True))
