"""Sizes that only the run tells: what an op demands of them is checked by its own rule, on numbers, before its kernel is called."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.sizes import chosen_blocks

CHECKS = [False, True, "fused"]


def counted() -> Any:
    """As many numbers from 0 to 1 as are asked for when it runs."""
    block = fs.default_main_program().global_block
    start, stop, number = layer.data("start", shape=[1]), layer.data("stop", shape=[1]), layer.data("number", shape=[1], dtype="int32")
    return block.apply("linspace", {"Start": start, "Stop": stop, "Num": number})


def feed(number: int) -> dict[str, np.ndarray]:
    return {"start": np.zeros(1, "float32"), "stop": np.ones(1, "float32"), "number": np.array([number], "int32")}


@pytest.mark.parametrize("check", CHECKS)
def test_a_size_that_a_kernel_finds_out_is_compared_before_the_next_one(check: Any) -> None:
    row, other = layer.unsqueeze(counted(), 0), layer.data("other", shape=[1, 5])
    out = layer.concat([row, other], axis=0)
    executor, given = fs.Executor(check=check), {"other": np.ones((1, 5), "float32")}
    assert executor.run(feed=feed(5) | given, fetch=out)[0].shape == (2, 5)
    with pytest.raises(fs.GuardError, match=r"concat: all X must have the same dims(.|\n)*seen: X f32\[1, 6\], X f32\[1, 5\](.|\n)*test_size_checks.py:"):
        executor.run(feed=feed(6) | given, fetch=out)


@pytest.mark.parametrize("check", CHECKS)
@pytest.mark.parametrize("number", [1, 2, 4, 100_000])
def test_statistics_of_other_channels_are_never_read(check: Any, number: int) -> None:
    """The kernel of batch norm reads as many statistics as there are channels. It changes two of them, which are fed here and copied first."""
    images = layer.reshape(counted(), [1, -1, 1, 1])
    block = fs.default_main_program().global_block
    statistics = {slot: layer.data(slot, shape=[3]) for slot in ("Scale", "Bias", "Mean", "Variance")}
    made = block.apply("batch_norm", {"X": images, **statistics}, {"is_test": True})
    (out,) = (v for v in made if v is not None and v.name in v.op.outputs["Y"])
    executor, given = fs.Executor(check=check), dict.fromkeys(statistics, np.ones(3, "float32"))
    assert executor.run(feed=feed(3) | given, fetch=out)[0].shape == (1, 3, 1, 1)
    with pytest.raises(fs.GuardError, match=rf"batch_norm: (.|\n)*f32\[1, {number}, 1, 1\]"):
        executor.run(feed=feed(number) | given, fetch=out)


@pytest.mark.parametrize("check", CHECKS)
def test_each_round_of_a_loop_is_checked(check: Any) -> None:
    """In the first round both have as many rows; in the second they have not."""
    x, rounds = layer.data("x", shape=["n", 3]), layer.data("rounds", shape=[1], dtype="int64")
    zero = layer.fill_constant([1], "int64", 0)
    more = layer.data("more", shape=["m", 3])

    def body(i: Any, h: Any) -> Any:
        layer.concat([h, x], axis=1)
        return i + 1, layer.concat([layer.concat([h, x], axis=1)[:, :3], more], axis=0)

    _, out = layer.while_loop(lambda i, h: layer.less_than(i, rounds), body, [zero, x])
    executor, a = fs.Executor(check=check), np.ones((2, 3), "float32")
    assert executor.run(feed={"x": a, "more": a, "rounds": np.array([1])}, fetch=out)[0].shape == (4, 3)
    assert executor.run(feed={"x": a, "more": a[:0], "rounds": np.array([3])}, fetch=out)[0].shape == (2, 3)
    with pytest.raises(fs.GuardError, match=r"concat: (.|\n)*seen: X f32\[4, 3\], X f32\[2, 3\]"):
        executor.run(feed={"x": a, "more": a, "rounds": np.array([2])}, fetch=out)


def test_a_network_whose_sizes_are_all_fed_has_no_such_checks() -> None:
    x, y = layer.data("x", shape=["n", 3]), layer.data("y", shape=["m", 3])
    out = layer.concat([x, y], axis=1)
    assert "check" not in fs.Executor().step(fs.default_main_program(), [out]).emitted.source


@pytest.mark.parametrize("check", CHECKS)
def test_what_a_branch_demands_is_asked_of_the_feeds_that_take_it(check: Any) -> None:
    """A file compares a size first, and takes the best hundred only where there are as many: a guard for every feed would refuse the others."""
    x, y, both = layer.data("x", shape=["n"]), layer.data("y", shape=["m"]), layer.data("both", shape=[1], dtype="bool")
    out = layer.cond(both, lambda: layer.reduce_sum(x + y), lambda: layer.reduce_sum(x))
    executor = fs.Executor(check=check)
    assert not fs.default_main_program().guard_list()

    def run(n: int, m: int, taken: bool) -> float:
        return float(executor.run(feed={"x": np.ones(n, "float32"), "y": np.ones(m, "float32"), "both": np.array([taken])}, fetch=out)[0])

    assert (run(3, 3, True), run(3, 4, False)) == (6.0, 3.0)
    with pytest.raises(fs.GuardError, match=r"elementwise_add: the dims of X and Y must be equal or 1(.|\n)*X f32\[3\], Y f32\[4\](.|\n)*test_size_checks.py:"):
        run(3, 4, True)


def test_a_loop_in_a_branch_that_a_file_gives_another_parent_is_checked_too() -> None:
    with fs.program() as main:
        x = layer.data("x", shape=["rows", 3])
        chosen, end = layer.data("chosen", shape=[1], dtype="bool"), layer.fill_constant([1], "int64", 1)

        def taken() -> Any:
            start = layer.fill_constant([1], "int64", 0)
            return layer.while_loop(lambda i, s: layer.less_than(i, end), lambda i, s: [i + 1, s + x], [start, x * 2.0])[1]

        layer.cond(chosen, taken, lambda: x * 1.0)
    loop = next(b for b in main.blocks if b.parent_idx > 0)
    loop.parent_idx = 0
    assert loop in chosen_blocks(main) and main.global_block not in chosen_blocks(main)
