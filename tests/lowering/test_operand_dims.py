"""A product with what learns nothing does not keep its operand for the gradient, and gives the same gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.lowering import lower
from foreshape.lowering.fusion import apply_all

RNG = np.random.RandomState(0)
FEED = {"x": RNG.standard_normal((3, 4)).astype("float32"), "y": RNG.standard_normal((3, 4)).astype("float32"), "row": np.arange(4, dtype="float32")}


def compared(net: Callable[..., Any], learning: str) -> int:
    """How often an operand is left out of a step that gives what the ops give one by one."""
    inputs = [layer.data(n, [*FEED[n].shape], stop_gradient=n not in learning.split()) for n in FEED]
    loss = layer.reduce_sum(layer.square(net(*inputs)))
    fetch = [loss, *(g for _, g in fs.append_backward(loss, [x for x in inputs if x.name in learning.split()]))]
    main = fs.default_main_program()
    for a, b in zip(fs.Executor(check="fused").run(main, FEED, fetch), fs.Executor(check=True).run(main, FEED, fetch), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    return apply_all(lower(main.global_block, [v.name for v in fetch]))["operand_dims"]


@pytest.mark.parametrize(
    ("net", "learning", "count"),
    [
        (lambda x, y, row: x * y, "x", 1),
        (lambda x, y, row: x * y, "y", 1),
        (lambda x, y, row: x * y, "x y", 0),
        (lambda x, y, row: x * row, "x", 1),
        (lambda x, y, row: x * row, "row", 0),  # of other dims than the gradient that comes
        (lambda x, y, row: x * x, "x", 0),
        (lambda x, y, row: layer.tanh(x * 2.0) * y, "x", 1),
    ],
)
def test_an_operand_whose_numbers_no_gradient_reads(net: Any, learning: str, count: int) -> None:
    assert compared(net, learning) == count


def test_what_is_not_kept_takes_no_memory() -> None:
    x, fixed = layer.data("x", ["batch", 64], stop_gradient=False), layer.data("fixed", [1, 64])
    h = x
    for _ in range(4):
        h = layer.tanh(h) * fixed
    fetch = [g for _, g in fs.append_backward(layer.mean(h), [x])]
    plan = fs.plan(fs.default_main_program(), fetch)
    assert plan.peak(batch=1000) <= 4 * 64 * 1000 * 8  # what comes in, the four of tanh, and what comes back: no product
