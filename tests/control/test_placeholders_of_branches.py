"""Constants that stand for a variable until a branch gives it a value of another rank, as PaddlePaddle begins what Python code assigns in an ``if``."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.described import X, count, expect, forms_of, less, looped, trained
from support.some import each_of_product

import foreshape as fs
from foreshape import layer

WAYS = ("a loop", "a branch", "a branch, read after the loop", "a branch by itself")
PLACEHOLDERS = {
    "a number": lambda: layer.fill_constant([], "fp32", 0.0),
    "of another rank": lambda: layer.fill_constant([1], "fp32", 0.0),
    "of the same form": lambda: layer.fill_constant([5, 3], "fp32", 0.0),
}


def _nothing() -> None:
    return None


@pytest.mark.quick_cases("a number-a branch by itself")
@pytest.mark.parametrize(("placeholder", "way"), each_of_product(3, PLACEHOLDERS, WAYS))
def test_what_a_block_has_written_is_read_after_it_and_in_later_rounds(way: str, placeholder: str) -> None:
    def describe(x: Any) -> Any:
        u = PLACEHOLDERS[placeholder]()

        def write(s: Any) -> None:
            layer.assign(s * 1.5, u)

        def body(i: Any, s: Any) -> Any:
            if way == "a loop":
                looped(lambda j, t: [layer.assign(t * 1.5, u)], [s], 2)
            else:
                layer.cond(less(i, 1), lambda: write(s), _nothing)
            return [s * 1.1 if way == "a branch, read after the loop" else s + layer.square(u) * 0.1]

        if way == "a branch by itself":
            s = x * 1.0
            layer.cond(layer.less_than(count(0), count(1)), lambda: write(s), _nothing)
        else:
            (s,) = looped(body, [x], 3)
        return layer.reduce_sum(s) + layer.reduce_sum(u * u * u)

    def eager(x: Any) -> Any:
        s, u = x, torch.zeros(1)
        for i in range(3 if way != "a branch by itself" else 0):
            u = s * 2.25 if way == "a loop" else s * 1.5 if i < 1 else u
            s = s * 1.1 if way == "a branch, read after the loop" else s + u * u * 0.1
        return s.sum() + ((u if way != "a branch by itself" else x * 1.5) ** 3).sum()

    main, fetch = trained(describe)
    expect(main, fetch, eager)
    assert fs.plan(main, fetch).peak_formula().symbols >= {"batch"}


def _assigned_in_an_if(x: Any, skip: Any) -> tuple[Any, Any]:
    """What PaddlePaddle makes of ``for i in range(3): if i != skip: u = s * 2 (in its place); s = u``, and of reading ``u`` after it."""
    u = layer.fill_constant([], "fp32", 0.0)

    def body(i: Any, s: Any) -> Any:
        def write() -> Any:
            layer.assign(s * 2.0, u)
            return layer.assign(u)

        return [layer.cond(layer.logical_not(layer.equal(i, skip)), write, lambda: layer.assign(u)) + 1.0]

    return looped(body, [x], 3)[0], u


@pytest.mark.long
def test_one_branch_writes_what_the_other_reads() -> None:
    main = fs.default_main_program()
    s, u = _assigned_in_an_if(layer.data("x", shape=["batch", 3]), layer.data("skip", shape=[1], dtype="int64"))
    after = layer.reshape(u, [-1])
    assert [str(d) for d in u.packed_shape] == [str(d) for d in s.packed_shape] == ["batch", "3"]
    for program in forms_of(main):
        for options in ({}, {"check": True}, {"frozen": True}):
            run = fs.Executor(**options).run
            for skip in (-1, 1, 2):
                wanted, kept = X, X
                for i in range(3):
                    kept = kept if i == skip else wanted * 2
                    wanted = kept + 1
                got = run(program, {"x": X, "skip": np.array([skip])}, [s.name, u.name, after.name], fs.Scope())
                for found, value in zip(got, (wanted, kept, kept.reshape(-1)), strict=True):
                    np.testing.assert_allclose(found, value, rtol=1e-6)
            with pytest.raises(fs.ExecutionError, match=f"assign: {u.name} has no value: the block that makes it did not run"):
                run(program, {"x": X, "skip": np.array([0])}, [s.name], fs.Scope())


def test_a_branch_that_does_not_run_leaves_nothing_that_another_shape_was_promised_for() -> None:
    x, n = layer.data("x", shape=["batch", 3]), layer.data("n", shape=[1], dtype="int64")
    u = layer.fill_constant([], "fp32", 0.0)
    layer.cond(layer.less_than(count(0), n), lambda: (layer.assign(x * 2.0, u), None)[1], _nothing)
    out = layer.softmax(u)
    main = fs.default_main_program()
    for program in forms_of(main):
        for check in (False, True):
            run = fs.Executor(check=check).run
            found = run(program, {"x": X, "n": np.array([1])}, [u.name, out.name], fs.Scope())
            np.testing.assert_allclose(found[0], X * 2.0)
            assert found[1].shape == X.shape
            for fetched in (u, out):
                with pytest.raises(fs.ExecutionError, match="did not run"):
                    run(program, {"x": X, "n": np.array([0])}, [fetched.name], fs.Scope())


def test_sizes_that_differ_from_round_to_round_are_not_those_of_the_last_one() -> None:
    x = layer.data("x", shape=["batch", 3])
    u = layer.fill_constant([], "fp32", 0.0)

    def body(i: Any, s: Any) -> Any:
        layer.cond(less(i, 1), lambda: (layer.assign(s * 2.0, u), None)[1], _nothing)
        layer.assign(u)
        return [layer.concat([s, x], 0)]

    (s,) = looped(body, [x], 3)
    assert u.packed_shape[0] is not s.packed_shape[0]
    (found,) = fs.Executor(check=True).run(fs.default_main_program(), {"x": X}, [u], fs.Scope())
    np.testing.assert_array_equal(found, X * 2.0)
    with pytest.raises(fs.GuardError, match="the dims of X and Y must be equal or 1"):
        fs.Executor().run(fs.default_main_program(), {"x": X}, [u + s], fs.Scope())


def test_what_was_computed_is_no_placeholder() -> None:
    x = layer.data("x", shape=["batch", 3])
    u = layer.reduce_sum(x)
    with pytest.raises(fs.ShapeError, match="must keep its number of dims"):
        layer.cond(layer.less_than(count(0), count(1)), lambda: (layer.assign(x, u), None)[1], _nothing)


def test_a_branch_that_reads_the_placeholder_first_keeps_its_rank() -> None:
    x = layer.data("x", shape=["batch", 3])
    u = layer.fill_constant([], "fp32", 0.0)
    with pytest.raises(fs.ShapeError, match="must keep its number of dims"):
        layer.cond(layer.less_than(count(0), count(1)), lambda: (layer.assign(x + u, u), None)[1], _nothing)


def test_a_condition_is_no_placeholder() -> None:
    """It is asked before the first round, whatever the block makes of it: one truth value of either rank."""
    block = fs.default_main_program().global_block
    i, limit = count(0), count(2)
    running = layer.fill_constant([], "bool", True)
    inner = fs.default_main_program().create_block(block)
    inner.append_op("increment", {"X": i}, {"Out": i}, {"step": 1.0})
    inner.append_op("less_than", {"X": i, "Y": limit}, {"Out": running})
    block.append_op("while", {"X": [i, limit], "Condition": running}, {"Out": [i, running]}, {"sub_block": inner.idx})
    fs.default_main_program().forget()
    assert fs.default_main_program().infer() == []
    assert running.packed_shape == [1]
    found = fs.Executor(check=True).run(fs.default_main_program(), {}, [i, running], fs.Scope())
    assert [v.tolist() for v in found] == [[2], [False]]
