"""Numbers as PaddlePaddle 3.3.1 computed them, of its own operators and attributes, where a definition alone leaves a choice."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest
from support.harness import build

from foreshape.language.operator.registry import get
from foreshape.language.operator.samples import f32, f64, i32
from foreshape.runtime.engine import Executor, Scope

NAN, INF = math.nan, math.inf
LEFT, RIGHT = "bitwise_left_shift", "bitwise_right_shift"
X = i32(9, data=[1, 3, 5, 100, -100, -1, 7, 7, -7])
HALVES = f32(8, data=[0.5, 1.5, 2.5, -0.5, -2.5, -200.0, 300.0, 63.5])
CASES: list[tuple[str, str, dict[str, Any], list[Any]]] = [
    ("bits shifted out", LEFT, {"x": X, "y": i32(9, data=[0, 1, 2, 1, 1, 31, 32, 35, 32])}, [[1, 6, 20, 200, -200, -(2**31), 0, 0, 0]]),
    ("the sign is kept", RIGHT, {"x": X, "y": i32(9, data=[0, 1, 2, 1, 1, 31, 32, 35, 32])}, [[1, 1, 1, 50, -50, -1, 0, 0, -1]]),
    ("zeros from above", RIGHT, {"x": X, "y": i32(9, data=[0, 1, 2, 1, 1, 31, 32, 35, 32]), "is_arithmetic": False}, [[1, 1, 1, 50, 2147483598, 1, 0, 0, 0]]),
    ("by less than 0, to the left", LEFT, {"x": X, "y": i32(9, data=[-1, -2, -32, -33, -1, -1, -3, 0, 0])}, [[0, 0, 0, 0, 0, 0, 0, 7, -7]]),
    ("by less than 0, to the right", RIGHT, {"x": X, "y": i32(9, data=[-1, -2, -32, -33, -1, -1, -3, 0, 0])}, [[0, 0, 0, 0, -1, -1, 0, 7, -7]]),
    ("by less than 0, without a sign", RIGHT, {"x": X, "y": i32(9, data=[-1, -2, -32, -33, -1, -1, -3, 0, 0]), "is_arithmetic": False},
     [[0, 0, 0, 0, 0, 0, 0, 7, -7]]),
    ("the mean of two, and their places", "median", {"x": f32(2, 4, data=[[3, 1, 2, 9], [5, 4, 8, 1]]), "axis": [1], "keepdim": False},
     [[2.5, 4.5], [[2, 0], [1, 0]]]),
    ("the lower of two", "median", {"x": f32(2, 4, data=[[3, 1, 2, 9], [5, 4, 8, 1]]), "axis": [1], "keepdim": False, "mode": "min"}, [[2.0, 4.0], [2, 1]]),
    ("a NaN is the median", "median", {"x": f32(2, 4, data=[[3, NAN, 2, 9], [1, 2, 3, 4]]), "axis": [1], "keepdim": False, "mode": "min"},
     [[NAN, 2.0], [1, 1]]),
    ("a NaN is left out", "nanmedian", {"X": f32(3, 4, data=[[3, NAN, 2, 9], [NAN] * 4, [NAN, 1, 4, NAN]]), "axis": [1], "keepdim": False, "mode": "min"},
     [[3.0, NAN, 1.0], [0, -1, 1]]),
    ("integers without their fraction", "median", {"x": i32(2, 4, data=[[3, 1, 2, 9], [5, 5, 8, 1]]), "axis": [1], "keepdim": False}, [[2, 5]]),
    ("halves to even", "round", {"X": f64(5, data=[0.5, 1.5, 2.5, -0.5, -1.5]), "round_type": 0}, [[0.0, 2.0, 2.0, -0.0, -2.0]]),
    ("halves of decimals", "round", {"X": f64(6, data=[0.15, 0.25, 0.35, 1.25, -2.675, INF]), "round_type": 0, "decimals": 1},
     [[0.2, 0.2, 0.4, 1.2, -2.7, INF]]),
    ("tens", "round", {"X": f64(6, data=[5.0, 15.0, 25.0, -5.0, -15.0, 12345.678]), "round_type": 0, "decimals": -1},
     [[0.0, 20.0, 20.0, -0.0, -20.0, 12350.0]]),
    ("from the end, without itself", "cumprod", {"X": f32(2, 4, data=[[1, 2, 3, 4], [5, 0, 6, 0]]), "dim": 1, "exclusive": True, "reverse": True},
     [[[24, 12, 4, 1], [0, 0, 0, 1]]]),
    ("without dims, without itself", "cumprod", {"X": f32(data=3), "dim": 0, "exclusive": True}, [3.0]),
    ("a value for what is not above", "thresholded_relu", {"X": f32(5, data=[0.5, 1.0, 1.5, -2.0, NAN]), "value": -3.5}, [[-3.5, -3.5, 1.5, -3.5, NAN]]),
    ("a scale of qmax, whatever the bits", "quantize_linear", {"X": HALVES, "Scale": f32(1, data=[127.0]), "quant_axis": -1, "bit_length": 4, "qmax": 127},
     [[0, 2, 2, 0, -2, -128, 127, 64]]),
    ("qmin is not read", "quantize_linear", {"X": HALVES, "Scale": f32(1, data=[127.0]), "quant_axis": -1, "qmin": -10, "qmax": 63},
     [[0, 1, 1, 0, -1, -64, 63, 32]]),
    ("halves to even on the grid", "fake_quantize_abs_max", {"X": f32(6, data=[0.5, 1.5, 2.5, -0.5, -2.5, 127.0]), "round_type": 0}, [[0, 2, 2, 0, -2, 127]]),
    ("densities", "histogram", {"X": f32(7, data=[0, 0.1, 0.25, 0.5, 0.75, 1, 2]), "bins": 4, "density": True},
     [[0.85714293, 0.5714286, 0.2857143, 0.2857143]]),
    ("integers between fractions", "histogram", {"X": i32(7, data=range(7)), "bins": 4, "low": 0.5, "high": 5.5}, [[2, 1, 1, 2]]),
    ("weights between fractions", "histogram", {"X": i32(7, data=range(7)), "Weight": i32(7, data=range(7)), "bins": 4}, [[1.0, 2.0, 7.0, 11.0]]),
    ("a sum of cubes below 0", "lp_pool2d", {"x": f32(1, 1, 1, 2, data=[[[[-1.0, -1.0]]]]), "kernel_size": [1, 2], "norm_type": 3.0}, [[[[[NAN]]]]]),
    ("a sum below 0", "lp_pool2d", {"x": f32(1, 1, 3, 2, data=[[[[-1.0] * 2] * 3]]), "kernel_size": [3, 2], "norm_type": 1.0}, [[[[[-6.0]]]]]),
]  # fmt: skip
"""What it is, the operator, its operands and attributes, and the results."""


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("of", "arguments", "wanted"), [pytest.param(*case[1:], id=case[0]) for case in CASES])
def test_numbers_of_paddlepaddle_3(of: str, arguments: dict[str, Any], wanted: list[Any]) -> None:
    case = build(get(of), arguments)
    names = [n for of in case.outputs.values() for n in of][: len(wanted)]
    for found, numbers in zip(Executor().run(case.program, case.feed, names, Scope()), wanted, strict=True):
        np.testing.assert_allclose(found, np.array(numbers), rtol=1e-6, atol=0)
