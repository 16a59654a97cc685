"""Cuts and assignments downwards in PaddlePaddle 3's programs, whose bounds mean what they mean in Python: each start and end, for axes of an open size."""

from __future__ import annotations

from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from support.pir_files import Json, attribute, feed, fetch, file, op, tensor

import foreshape as fs

X, ROW, ONE = tensor([-1]), tensor([1], "i64"), tensor([1])
BOUNDS = (-7, -4, -2, -1, 0, 2, 5)
FAR = 2**31 - 1
CUTS = [*product(BOUNDS, BOUNDS, (-1, -2)), (FAR, -FAR - 1, -1), (-1, -(2**40), -2), (1, 3, 1)]


def _bounds(number: int, *numbers: int) -> Json:
    return op("full_int_array", (), [(number, ROW)], value=list(numbers), dtype={"#": "1.a_dtype", "D": "int64"})


def _opened(folder: Path, ops: list[Json]) -> fs.InferenceModel:
    (folder / "inference.json").write_bytes(file(*ops))
    return fs.load_inference_model(folder, scope=fs.Scope())


def _program(name: str, more: dict[str, Any]) -> list[Json]:
    ops = [feed(1, "x", X)]
    for k, cut in enumerate(CUTS):
        at = 10 + 10 * k
        ops += [_bounds(at + n, bound) for n, bound in enumerate(cut)]
        ops += [op(name, [1, at, at + 1, at + 2], [(at + 3, X)], **{key: attribute(value) for key, value in more.items()})]
        ops += [fetch(at + 4, at + 3, f"out{k}", X, k)]
    return ops


@pytest.mark.quick_cases("1", "3")
@pytest.mark.parametrize("size", [1, 3, 4])
def test_a_cut_downwards_is_pythons(size: int, tmp_path: Path) -> None:
    network = _opened(tmp_path, _program("strided_slice", {"axes": [0]}))
    x = np.arange(size, dtype="float32")
    found = network.run({"x": x})
    wrong = {cut: found[f"out{k}"].tolist() for k, cut in enumerate(CUTS) if found[f"out{k}"].tolist() != x[cut[0] : cut[1] : cut[2]].tolist()}
    assert wrong == {}


@pytest.mark.quick_cases("1", "3")
@pytest.mark.parametrize("size", [1, 3, 4])
def test_an_assignment_downwards_is_pythons(size: int, tmp_path: Path) -> None:
    more: dict[str, Any] = {"axes": [0], "decrease_axes": [], "none_axes": [], "shape": [1], "values": [-1.0]}
    network = _opened(tmp_path, _program("set_value", more))
    x = np.arange(size, dtype="float32")
    found, wrong = network.run({"x": x}), {}
    for k, (start, end, step) in enumerate(CUTS):
        want = x.copy()
        want[start:end:step] = -1
        if found[f"out{k}"].tolist() != want.tolist():
            wrong[start, end, step] = found[f"out{k}"].tolist()
    assert wrong == {}


def test_a_cut_downwards_takes_computed_bounds(tmp_path: Path) -> None:
    ops = [feed(1, "x", X), feed(2, "start", ROW), feed(3, "end", ROW), _bounds(4, -1)]
    ops += [op("strided_slice", [1, 2, 3, 4], [(5, X)], axes=attribute([0])), fetch(6, 5, "out", X)]
    network, x = _opened(tmp_path, ops), np.arange(4, dtype="float32")
    for start, end in product(BOUNDS, BOUNDS):
        got = network.run({"x": x, "start": np.array([start]), "end": np.array([end])})["out"]
        assert got.tolist() == x[start:end:-1].tolist(), (start, end)
