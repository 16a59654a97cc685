"""Operators' samples as models of ONNX of one op each, with what they give here."""

from __future__ import annotations

import json
import re
import warnings
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import FormatError
from foreshape.interop.onnx.write.models import model_of
from foreshape.interop.onnx.write.padded_rows import length_name
from foreshape.interop.onnx_session import with_padding
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample
from foreshape.language.program import Program, program_guard
from foreshape.language.wire.onnx_encode import encode_model
from foreshape.runtime.engine import Executor, Scope
from support.harness import build

REFUSED_EVERYWHERE = ("is ragged", "ONNX has no elements of complex", "is LOD_TENSOR_ARRAY", "in training")
"""Words of the refusals that meet samples of many operators."""


@cache
def known() -> dict[str, dict[str, str]]:
    """By kind: sample -> words. ``refused``: of the reason; ``here`` and ``onnxruntime``: why what is read back, or computed there, differs."""
    return json.loads((Path(__file__).parent.parent / "interop" / "onnx" / "written_samples.json").read_text())


@dataclass
class Written:
    """A written sample: the model's bytes, its inputs, and its results as computed here. ``left``: results that ONNX has not."""

    model: bytes
    feed: dict[str, np.ndarray]
    want: dict[str, np.ndarray]
    left: tuple[str, ...]
    exact: bool


def written(cls: type[Operator], sample: Sample, opset: int | None = None) -> Written:
    """Write a sample. Raises `FormatError` if it has no form in ONNX."""
    with program_guard(Program(), Program()):
        case = build(cls, sample.arguments)
        slots = {n: s.name for s in cls.schema.results for n in case.outputs.get(s.name, ())}
        fed = [n for n in case.feed if any(n in op.input_names() for op in case.block.ops)]
        left: list[str] = []
        while True:
            try:
                model = model_of(case.program, fed, {n: n for n in slots if n not in left}, {}, opset)
                break
            except FormatError as refused:
                absent = re.search(r"in ONNX: (\S+) has no value here", str(refused))
                if absent is None or absent[1] not in slots or len(left) + 1 == len(slots):
                    raise
                left.append(absent[1])
        asked = [n for n in slots if n not in left]
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            got = Executor("cpu").run(case.program, case.feed, asked, Scope())
        want = {name: array for n, v in zip(asked, got, strict=True) for name, array in padded(n, v, 1).items()}
        exact = sample.exact and not cls.random
        feed = {name: array for n in fed for name, array in padded(n, case.feed[n]).items()}
        return Written(b"".join(map(bytes, encode_model(model))), feed, want, tuple(slots[n] for n in left), exact)


def padded(name: str, value: Any, least: int = 0) -> dict[str, np.ndarray]:
    """Return a value by its name; a ragged one padded to a time of at least ``least``, with its lengths."""
    if not isinstance(value, LoDTensor):
        return {name: np.asarray(value)}
    levels = value.sequence_lengths
    made = [with_padding(value.data, levels), *[with_padding(np.asarray(level, "int64"), levels[:at]) for at, level in enumerate(levels)]]
    out: dict[str, np.ndarray] = {}
    for at, array in enumerate(made):
        inner = len(levels) if at == 0 else at - 1
        widths = [(0, max(0, least - size) if 1 <= axis <= inner else 0) for axis, size in enumerate(array.shape)]
        out[name if at == 0 else length_name(name, at - 1)] = np.pad(array, widths)
    return out


def refusal_is_known(name: str, reason: str) -> bool:
    return any(words in reason for words in REFUSED_EVERYWHERE) or known()["refused"].get(name, "\0") in reason


def differs(got: Any, want: np.ndarray, exact: bool = True) -> str:
    """Say how two results differ; empty if they don't."""
    got = np.asarray(got)
    if got.dtype != want.dtype or got.shape != want.shape:
        return f"{got.dtype}{list(got.shape)}, wanted {want.dtype}{list(want.shape)}"
    if not exact:
        return ""
    if want.dtype.kind in "fc":
        with np.errstate(all="ignore"):
            good = np.allclose(got, want, 2e-4, 2e-5, equal_nan=True)
    else:
        good = np.array_equal(got, want)
    return "" if good else f"{got.ravel()[:6]}, wanted {want.ravel()[:6]}"
