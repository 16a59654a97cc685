"""A product with what learns nothing does not keep its operand for the gradient, and gives the same gradient."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.measured import measure

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering import lower
from foreshape.compiler.lowering.fusion import apply_all

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


# --- dims kept without the numbers


def part_and_mean(x: Any, y: Any, row: Any) -> Any:
    h = layer.tanh(layer.concat([layer.slice(x * y, [1], [1], [3]), y], 1))
    return layer.reduce_mean(layer.expand(layer.unsqueeze(layer.reduce_mean(layer.square(h), [1], keepdim=True) + 1.0, [0]), [2, -1, -1]), [2]) * 2.0


@pytest.mark.parametrize("net", [part_and_mean, lambda x, y, row: layer.gather(layer.tanh(x) * y, layer.fill_constant([2], "int64", 1)) * row])
def test_dims_in_the_place_of_values_give_the_same_gradients(net: Any) -> None:
    def wide(n: str) -> Any:
        return np.repeat(FEED[n][None], 200, 0).reshape(-1, 4) if n != "row" else FEED[n]

    inputs = [layer.data(n, ["batch", 4] if n != "row" else [4], stop_gradient=False) for n in FEED]
    loss = layer.reduce_sum(layer.square(net(*inputs)))
    fetch = [loss, *(g for _, g in fs.append_backward(loss, inputs) if g is not None)]
    main = fs.default_main_program()
    feed = {n: wide(n) for n in FEED if main.global_block.find(n) is not None}
    for a, b in zip(fs.Executor(check="fused").run(main, feed, fetch), fs.Executor(check=True).run(main, feed, fetch), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)
    assert apply_all(lower(main.global_block, [v.name for v in fetch]))["kept_dims"]


def test_a_value_kept_for_its_dims_takes_no_memory() -> None:
    x = layer.data("x", ["batch", 64], stop_gradient=False)
    h = x
    for _ in range(4):
        wide = layer.concat([h * 2.0, h * 3.0], 1)
        h = layer.slice(wide * 0.5, [1], [32], [96])
    fetch = [g for _, g in fs.append_backward(layer.reduce_sum(h), [x])]
    main = fs.default_main_program()
    plan = fs.plan(main, fetch)
    assert plan.peak(batch=1000) <= 6 * 64 * 1000 * 4  # nothing of the forward pass but what a layer of it holds at once
    assert measure(fs.Executor(), main, {"x": np.ones((1000, 64), "float32")}, fetch, fs.Scope()).peak <= plan.peak(batch=1000) + 256


def test_what_lies_in_a_value_kept_for_its_dims_is_not_looked_at() -> None:
    x = layer.data("x", ["batch", 64], stop_gradient=False)
    fetch = [g for _, g in fs.append_backward(layer.reduce_sum(layer.slice(x * 2.0, [1], [0], [32])), [x])]
    assert apply_all(lower(fs.default_main_program().global_block, [v.name for v in fetch]))["kept_dims"]
    torch.use_deterministic_algorithms(True, warn_only=True)  # fills new memory with NaN
    try:
        (found,) = fs.Executor(check="fused").run(feed={"x": np.ones((8, 64), "float32")}, fetch=fetch)
    finally:
        torch.use_deterministic_algorithms(False)
    assert found.sum() == 8 * 32 * 2


def test_a_copy_is_what_it_copies() -> None:
    x = layer.data("x", ["batch", 64], stop_gradient=False)
    h = layer.tanh(layer.assign(layer.tanh(x)))
    fetch = [layer.assign(h), *(g for _, g in fs.append_backward(layer.mean(h), [x]))]
    main = fs.default_main_program()
    assert apply_all(lower(main.global_block, [v.name for v in fetch]))["identity"]
    feed = {"x": RNG.standard_normal((3, 64)).astype("float32")}
    for a, b in zip(fs.Executor(check="fused").run(main, feed, fetch), fs.Executor(check=True).run(main, feed, fetch), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6)


def test_a_copy_of_what_changes_stays_a_copy() -> None:
    state = layer.create_parameter([2], "float32", "state", initializer=layer.Constant(1.0))
    before = layer.assign(state)
    layer.assign(state * 3.0, state)
    fs.Executor().run(fs.default_startup_program())
    told = fs.Executor().run(fs.default_main_program(), {}, [before])
    np.testing.assert_array_equal(told[0], [1.0, 1.0])
