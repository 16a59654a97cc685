"""Torch code of single operators where torch alone computes something else: the engine's values, or an error in words."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer

INF, NAN = np.inf, np.nan


def f32(*dims: int) -> np.ndarray:
    return np.random.default_rng(7).standard_normal(dims).astype("float32")


def i64(*numbers: Any) -> np.ndarray:
    return np.array(numbers, "int64")


def i32(*numbers: Any) -> np.ndarray:
    return np.array(numbers, "int32")


def floats(numbers: Any) -> np.ndarray:
    return np.array(numbers, "float32")


def module_and_run(operator: str, results: str, attributes: dict[str, Any], feed: dict[str, Any]) -> tuple[Any, Any, list[str]]:
    """Return the exported module, the engine's run, and the operands. All dims are open but those in ``_static``."""
    static = attributes.pop("_static", {})
    with fs.program_guard(fs.Program(), fs.Program()):
        slots: dict[str, Any] = {}
        names: list[str] = []
        for slot, values in feed.items():
            arrays = values if isinstance(values, list) else [values]
            variables = []
            for number, array in enumerate(arrays):
                name = f"{slot}{number}"
                dims = [array.shape[a] if a in static.get(slot, ()) else f"{name}_{a}" for a in range(array.ndim)]
                variable = layer.data(name, shape=dims, dtype=str(array.dtype))
                variable.stop_gradient = array.dtype.kind != "f"
                variables.append(variable)
                names.append(name)
            slots[slot] = variables if isinstance(values, list) else variables[0]
        block = fs.default_main_program().global_block
        outs = {slot: f"out.{slot}" for slot in results.split()}
        block.append_op(operator, slots, outs, attributes)
        fetches = [*outs.values()]
        module = fs.to_torch(fs.default_main_program(), fs.Scope(), feeds=names, fetches=fetches, plain=True)
        program = fs.default_main_program()
    return module, lambda arrays: fs.Executor("cpu").run(program, dict(zip(names, arrays, strict=True)), fetches, fs.Scope()), names


def flat(feed: dict[str, Any]) -> list[np.ndarray]:
    return [array for values in feed.values() for array in (values if isinstance(values, list) else [values])]


REFUSED = [
    (
        "scatter_nd_add",
        "Out",
        {"_static": {"Index": (1,)}},
        {"X": f32(5, 3), "Index": i64([-1], [2]), "Updates": f32(2, 3)},
        r"an index into axis 0 must be in \[0, 5\)",
    ),
    (
        "shard_index",
        "Out",
        {"index_num": 20, "nshards": 2, "shard_id": 0, "ignore_value": -1, "_static": {"X": (1,)}},
        {"X": i64([25])},
        r"a number in X must be in \[0, 20\)",
    ),
    (
        "shard_index",
        "Out",
        {"index_num": 20, "nshards": 2, "shard_id": 0, "ignore_value": -1, "_static": {"X": (1,)}},
        {"X": i64([-1])},
        r"a number in X must be in \[0, 20\)",
    ),
    ("segment_pool", "Out", {"pooltype": "SUM"}, {"X": f32(3, 3), "SegmentIds": i64(1, 0, 1)}, "SegmentIds must be at least 0, and rise"),
    ("segment_pool", "Out", {"pooltype": "SUM"}, {"X": f32(3, 3), "SegmentIds": i64(2, 0, 2)}, "SegmentIds must be at least 0, and rise"),
    ("segment_pool", "Out", {"pooltype": "SUM"}, {"X": f32(0, 3), "SegmentIds": i64()}, "SegmentIds"),
    ("nll_loss", "Out Total_weight", {"reduction": "none"}, {"X": f32(4, 3), "Label": i64(0, 1)}, "Label"),
    ("nll_loss", "Out Total_weight", {"reduction": "none"}, {"X": f32(2, 3), "Label": i64(0, 3)}, r"Label must be in \[0, 3\)"),
    ("repeat_interleave", "Out", {"dim": 0}, {"X": f32(2, 3), "RepeatsTensor": i64(2)}, "RepeatsTensor"),
    (
        "sigmoid_focal_loss",
        "Out",
        {"gamma": 2.0, "alpha": 0.25, "_static": {"Label": (1,), "FgNum": (0,)}},
        {"X": f32(2, 3), "Label": i32([1]), "FgNum": i32(1)},
        "Label",
    ),
    ("teacher_student_sigmoid_loss", "Y", {"_static": {"X": (1,), "Label": (1,)}}, {"X": f32(2, 1), "Label": f32(1, 1)}, "Label"),
    ("partial_sum", "Out", {"start_index": 1, "length": 2}, {"X": [f32(2, 2), f32(2, 2)]}, "columns of X must be at least 3"),
    ("partial_sum", "Out", {"start_index": 1, "length": 2}, {"X": [f32(2, 4), f32(1, 4)]}, "all of X must have the same dims"),
    ("take_along_axis", "Result", {"Axis": 0}, {"Input": f32(3, 2), "Index": i64([3, 0])}, r"a number in Index must be in \[-3, 3\)"),
    (
        "put_along_axis",
        "Result",
        {"Axis": 0, "Reduce": "add"},
        {"Input": f32(3, 2), "Index": i64([3, 0]), "Value": f32(1, 2)},
        r"a number in Index must be in \[-3, 3\)",
    ),
]
EQUAL = [
    ("pixel_unshuffle", "Out", {"downscale_factor": 2}, {"X": f32(0, 2, 4, 4)}),
    ("pixel_unshuffle", "Out", {"downscale_factor": 2, "data_format": "NHWC"}, {"X": f32(0, 4, 4, 2)}),
    ("pixel_unshuffle", "Out", {"downscale_factor": 2}, {"X": f32(1, 2, 4, 4)}),
    ("pixel_shuffle", "Out", {"upscale_factor": 2}, {"X": f32(0, 4, 2, 2)}),
    ("space_to_depth", "Out", {"blocksize": 2}, {"X": f32(0, 4, 4, 4)}),
    ("sigmoid_focal_loss", "Out", {"gamma": 2.0, "alpha": 0.25, "_static": {"Label": (1,), "FgNum": (0,)}},
     {"X": floats([[-INF, 1], [-INF, 2]]), "Label": i32([1], [0]), "FgNum": i32(1)}),
    ("roi_pool", "Out Argmax", {"pooled_height": 2, "pooled_width": 2, "spatial_scale": 1.0, "_static": {"X": (1,), "ROIs": (1,)}},
     {"X": np.full((1, 2, 4, 4), -INF, "float32"), "ROIs": floats([[0, 0, 3, 3]]), "RoisNum": i32(1)}),
    ("logit", "Out", {"eps": 0.0}, {"X": floats([100, -3, 0.5, 0, 1])}),
]  # fmt: skip


@pytest.mark.parametrize(("operator", "results", "attributes", "feed", "words"), REFUSED)
def test_a_refusal_is_in_words(operator: str, results: str, attributes: dict[str, Any], feed: dict[str, Any], words: str) -> None:
    module, run, _ = module_and_run(operator, results, dict(attributes), feed)
    arrays = flat(feed)
    with pytest.raises((ValueError, IndexError), match=words):
        module(*map(torch.from_numpy, arrays))
    with pytest.raises(fs.ForeshapeError):
        run(arrays)


@pytest.mark.parametrize(("operator", "results", "attributes", "feed"), EQUAL)
def test_values_are_the_engines(operator: str, results: str, attributes: dict[str, Any], feed: dict[str, Any]) -> None:
    module, run, _ = module_and_run(operator, results, dict(attributes), feed)
    arrays = flat(feed)
    values = module(*map(torch.from_numpy, arrays))
    for value, expected in zip(values if isinstance(values, tuple) else (values,), run(arrays), strict=True):
        assert tuple(value.shape) == np.shape(expected)
        np.testing.assert_allclose(value.detach().numpy(), expected, 1e-5, 1e-6)
