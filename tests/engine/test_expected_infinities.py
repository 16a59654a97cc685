"""Checked running: a -inf that the program writes as a constant, and what only moves it or adds to it, is no error; any other is."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer

X = np.arange(12, dtype="float32").reshape(3, 4) / 10


def mask() -> Any:
    return layer.fill_constant([3, 4], "float32", -math.inf)


def assigned() -> Any:
    block = fs.default_main_program().global_block
    return block.apply("assign_value", {}, {"shape": [4], "dtype": 5, "fp32_values": [0.0, -math.inf, 0.0, -math.inf]})


MEANT: dict[str, Callable[[Any], Any]] = {
    "added": lambda x: layer.softmax(x + assigned()),
    "moved and added": lambda x: layer.softmax(layer.slice(layer.transpose(layer.concat([assigned(), x[0]], axis=0), [0]), [0], [1], [7])),
    "chosen": lambda x: layer.softmax(layer.where(layer.greater_than(x, layer.fill_constant([1], "float32", 0.2)), x, mask()) + x),
    "in a branch": lambda x: layer.cond(layer.less_than(layer.reduce_sum(x), layer.fill_constant([1], "float32", 1e9)), lambda: x + mask(), lambda: x),
    "in a loop": lambda x: layer.while_loop(
        lambda i, h: layer.less_than(i, layer.fill_constant([1], "int64", 3)), lambda i, h: (i + 1, h + x), [layer.fill_constant([1], "int64", 0), mask()]
    )[1],
}
MISTAKES: dict[str, tuple[Callable[[Any], Any], str]] = {
    "turned": (lambda x: (x + mask()) * -1.0, "an infinity"),
    "multiplied by nothing": (lambda x: mask() * (x * 0.0), "a NaN"),
    "scaled": (lambda x: (x + mask()) * 2.0, "an infinity"),
    "a logarithm of zero": (lambda x: layer.log(x * 0.0), "an infinity"),
    "one from another": (lambda x: mask() - mask(), "a NaN"),
    "a whole row": (lambda x: layer.softmax(x + mask()), "a NaN"),
    "beside a logarithm": (lambda x: layer.concat([mask(), layer.log(x * 0.0)], axis=0), "log"),
}


@pytest.mark.parametrize("check", [True, "fused"])
@pytest.mark.parametrize("name", MEANT)
def test_what_is_meant_is_taken(name: str, check: Any) -> None:
    out = MEANT[name](layer.data("x", [3, 4]))
    want = fs.Executor().run(feed={"x": X}, fetch=out)[0]
    np.testing.assert_allclose(fs.Executor(check=check).run(feed={"x": X}, fetch=out)[0], want, rtol=1e-6)


@pytest.mark.parametrize("name", MISTAKES)
def test_what_is_made_of_it_otherwise_is_an_error(name: str) -> None:
    make, says = MISTAKES[name]
    out = make(layer.data("x", [3, 4]))
    with pytest.raises(fs.ExecutionError, match=says):
        fs.Executor(check=True).run(feed={"x": X}, fetch=out)


def test_a_fed_one_is_an_error() -> None:
    out = layer.data("x", [3, 4]) * 2.0
    with pytest.raises(fs.ExecutionError, match=r"x \(fed\) has an infinity"):
        fs.Executor(check=True).run(feed={"x": X - math.inf}, fetch=out)
