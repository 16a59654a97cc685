"""Small models of one node, with their inputs, wanted results and tolerances: from ONNX's own tests, and as onnxruntime computes them.

Onnxruntime's are of its own operators, and models by chance of windows, regions, grids and resizing, with open sizes.
"""

from __future__ import annotations

import io
import lzma
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np

import foreshape as fs
from foreshape.core.dims import Ratio, evaluate, symbols_of
from foreshape.core.spec import LOD_TENSOR
from foreshape.interop.onnx import open_model
from foreshape.language.wire.onnx_model import read_model
from foreshape.language.wire.onnx_records import NodeRecord

FOLDER = Path(__file__).parent.parent / "interop" / "onnx"


@cache
def cases() -> dict[str, dict[str, Any]]:
    """By name: ``model`` (bytes as uint8), ``in0`` and so on, ``out0`` and so on, ``tolerance`` (relative, absolute)."""
    out: dict[str, dict[str, Any]] = {}
    for path in ("node_cases.npz.xz", "contrib_cases.npz.xz", "random_cases.npz.xz"):
        with np.load(io.BytesIO(lzma.decompress((FOLDER / path).read_bytes()))) as file:
            for key in file.files:
                name, _, what = key.partition("/")
                out.setdefault(name, {})[what] = file[key]
    return out


def node_of(case: dict[str, Any]) -> NodeRecord:
    """The node of a case."""
    return read_model(case["model"].tobytes()).graph.nodes[0]


def results(case: dict[str, Any]) -> list[np.ndarray]:
    """The results of a case, here: of each value on the way, its dims and what is known of it are as was said, and the program's text says the same.

    Raises `ForeshapeError` where it is refused.
    """
    program, parameters = open_model(case["model"].tobytes())
    scope = fs.Scope()
    parameters.put_into(scope)
    block = program.global_block
    feeds, fetches = ([op.output("Out") for op in block.ops if op.type == "feed"], [op.input("X") for op in block.ops if op.type == "fetch"])
    fed = {name: case[f"in{at}"] for at, name in enumerate(feeds)}
    others = [v for v in block.vars.values() if v.op is not None and v.op.type != "feed" and not v.op.sub_block_indices() and v.kind is LOD_TENSOR]
    assert str(fs.Program.parse(str(program))) == str(program)
    made = fs.Executor("cpu").run(program, feed=fed, fetch=[*fetches, *others], scope=scope)
    sizes = {str(d): n for name in feeds for d, n in zip(block.vars[name].spec.known_dims, np.shape(fed[name]), strict=True)}
    for variable, value in zip(others, made[len(fetches) :], strict=True):
        check_made(variable, np.asarray(value), sizes)
    return [np.asarray(one) for one in made[: len(fetches)]]


def check_made(variable: Any, value: np.ndarray, sizes: dict[str, int]) -> None:
    """Compare what was said of a value with it, where it depends on the fed sizes alone."""
    for said, seen in ((variable.spec.dims, value.shape), (variable.spec.value, value.reshape(-1).tolist())):
        assert said is None or len(said) == len(seen), variable
        for a, b in zip(said or (), seen, strict=False):
            if isinstance(a, float) or (not isinstance(a, Ratio) and symbols_of(a) <= sizes.keys()):
                assert (a if isinstance(a, float) else evaluate(a, sizes)) == b, (variable, said, seen)


def is_wanted(case: dict[str, Any], at: int, got: np.ndarray) -> bool:
    """Whether a result has the wanted element type and dims, and its numbers within the tolerance."""
    want, (relative, absolute) = case[f"out{at}"], case["tolerance"]
    return got.dtype == want.dtype and got.shape == want.shape and np.allclose(got, want, rtol=relative, atol=max(absolute, 1e-6), equal_nan=True)
