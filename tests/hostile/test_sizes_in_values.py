"""Numbers in tensors that say how large a result is: 15 sums that pass 64 bits and begin again, 20 results that nobody has memory for.

The numbers are more than the rules of operators look at, or fed as floats, so that only the kernels see them.
"""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np
import pytest
from support.guarded import survivors

import foreshape as fs
from foreshape import layer

MOST = 2**63 - 1
MANY = 70
"""More numbers than a rule looks at."""
Feeds = dict[str, Any]
ROWS = fs.LoDTensor(np.arange(12, dtype="float32").reshape(6, 2), [[2, 2, 2]])


def outcome(type_: str, slots: Feeds, attributes: dict[str, Any], limit: str = "1 MiB") -> str:
    """What comes of an op whose operands are fed: the dims of its first result, or the error's type and first line."""
    program, feed = fs.Program(), {}
    with fs.program_guard(program, fs.Program()):
        inputs: dict[str, Any] = {}
        for slot, given in slots.items():
            many = given if isinstance(given, list) else [given]
            names = [f"{slot}{at}" for at in range(len(many))]
            feed |= dict(zip(names, many, strict=True))
            made = [
                layer.data(n, ["rows", *g.shape[1:]], g.dtype.name, lod_level=1) if isinstance(g, fs.LoDTensor)
                else layer.data(n, list(g.shape), g.dtype.name)
                for n, g in zip(names, many, strict=True)
            ]  # fmt: skip
            inputs[slot] = made if isinstance(given, list) else made[0]
        outputs = program.global_block.append_op(type_, inputs, None, attributes).output_names()
    try:
        return str(list(np.shape(fs.Executor(memory_limit=limit).run(program, feed, [next(iter(outputs))], fs.Scope())[0])))
    except fs.ForeshapeError as error:
        return f"{type(error).__name__}: {str(error).splitlines()[0]}"


def wrapping(total: int, count: int, dtype: str = "int64") -> Any:
    """Numbers of at least 0 whose sum in 64 bits is ``total``."""
    out = np.zeros(count, dtype)
    out[:3] = MOST, MOST, total + 2
    return out


def ones(*dims: int) -> Any:
    return np.ones(dims, "float32")


WRAPPING: dict[str, tuple[str, Feeds, dict[str, Any], str]] = {
    "repeat_interleave": ("repeat_interleave", {"X": ones(MANY, 2), "RepeatsTensor": wrapping(3, MANY)}, {"dim": 0}, "MemoryPlanError: repeat_interleave"),
    "sequence_slice": (
        "sequence_slice", {"X": ROWS, "Offset": np.full((3, 1), MOST), "Length": wrapping(2, 3).reshape(3, 1)}, {}, "Offset and Offset + Length"
    ),
    "roi_align": ("roi_align", {"X": ones(3, 1, 4, 4), "ROIs": ones(2, 4), "RoisNum": wrapping(2, 3)}, {}, "must be divided among the 3 images"),
    "roi_pool": ("roi_pool", {"X": ones(3, 1, 4, 4), "ROIs": ones(2, 4), "RoisNum": wrapping(2, 3)}, {}, "must be divided among the 3 images"),
    "distribute_fpn_proposals": (
        "distribute_fpn_proposals", {"FpnRois": ones(2, 4), "RoisNum": wrapping(2, 3)},
        {"min_level": 2, "max_level": 3, "refer_level": 2, "refer_scale": 40}, "RoisNum must say how many of 2 rows",
    ),
    "collect_fpn_proposals": (
        "collect_fpn_proposals", {"MultiLevelRois": [ones(2, 4)], "MultiLevelScores": [ones(2, 1)], "MultiLevelRoIsNum": [wrapping(2, 3)]},
        {"post_nms_topN": 5}, "MultiLevelRoIsNum must say how many of 2 rows",
    ),
}  # fmt: skip


def test_15_sums_that_begin_again_are_not_taken_for_small_ones() -> None:
    said = survivors([partial(outcome, *case[:3], "64 MiB") for case in WRAPPING.values()])
    wrong = [f"{name}: {words}" for (name, case), words in zip(WRAPPING.items(), said, strict=True) if case[3] not in words]
    assert not wrong, "\n".join(wrong)


BIG = 2**19
"""So many numbers are more than 1 MiB."""
LARGE: dict[str, tuple[str, Feeds, dict[str, Any]]] = {
    "bincount": ("bincount", {"X": np.array([1, BIG])}, {}),
    "bincount-least": ("bincount", {"X": np.array([1, 2])}, {"minlength": BIG}),
    "sequence_mask-columns": ("sequence_mask", {"X": np.array([[1], [BIG]])}, {"out_dtype": 3}),
    "sequence_mask-many": ("sequence_mask", {"X": np.full(MANY, BIG // MANY)}, {"out_dtype": 3}),
    "segment_pool": ("segment_pool", {"X": ones(2, 2), "SegmentIds": np.array([0, BIG])}, {"pooltype": "SUM"}),
    "repeat_interleave": ("repeat_interleave", {"X": ones(MANY, 2), "RepeatsTensor": np.full(MANY, BIG // MANY)}, {"dim": 0}),
    "range-of-floats": ("range", {"Start": np.zeros(1, "float32"), "End": ones(1), "Step": np.full(1, 1 / BIG, "float32")}, {}),
    **{
        f"{type_}-Scale": (type_, {"X": ones(1, 1, 2, 2), "Scale": np.full(1, 400.0, "float32")}, {})
        for type_ in ("nearest_interp_v2", "bilinear_interp_v2", "bicubic_interp_v2")
    },
}


@pytest.mark.parametrize("name", LARGE)
def test_20_results_that_numbers_make_large_are_refused_before_they_are_made(name: str) -> None:
    case = LARGE[name]
    said = outcome(*case)
    assert said.startswith(f"MemoryPlanError: {case[0]}: ") and "the executor's memory_limit" in said
    assert outcome(*case, limit="64 MiB").startswith("["), "there is room, and it is made"


@pytest.mark.parametrize("scale", [float("nan"), float("inf"), float("-inf"), -1.0, 0.0, 2.0**31])
def test_15_scales_that_no_image_has(scale: float) -> None:
    said = outcome("bilinear_interp_v2", {"X": ones(1, 1, 2, 2), "Scale": np.full(1, scale, "float32")}, {})
    assert said.startswith("ExecutionError: ") and ("Scale must be" in said or "the new size must be" in said)


@pytest.mark.parametrize(("start", "end", "step"), [
    (-(2**63), MOST, 2**62), (MOST, -(2**63), -(2**62)), (0, MOST, MOST), (0, 2**60 + 1, 2**58), (MOST, -(2**63), 5), (3, 9, MOST),
])  # fmt: skip
def test_15_ranges_between_numbers_that_are_far_apart(start: int, end: int, step: int) -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        variables = {n: layer.data(n, [1], "int64") for n in ("Start", "End", "Step")}
        out = program.global_block.apply("range", variables, {})
    feed = dict(zip(variables, (np.array([n]) for n in (start, end, step)), strict=True))
    (found,) = fs.Executor().run(program, feed, [out], fs.Scope())
    assert found.tolist() == list(range(start, end, step))
