"""Variables that a loop writes before it reads them: what they were before it does not matter, whatever it was."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.described import X, count, expect, looped, trained

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.kernel_calls import region_of

PLACEHOLDERS = {
    "of another rank": lambda: layer.fill_constant([1], "fp32", 1.77e12),
    "of another size": lambda: layer.fill_constant([4, 3], "fp32", 0.0),
    "a number": lambda: layer.fill_constant([], "fp32", 0.0),
    "of the same form": lambda: layer.fill_constant([5, 3], "fp32", 0.5),
}


@pytest.mark.quick_cases("of another size-3")
@pytest.mark.parametrize("rounds", [pytest.param(1, marks=pytest.mark.long), 3])
@pytest.mark.parametrize("placeholder", PLACEHOLDERS)
def test_a_placeholder_becomes_what_the_loop_makes(placeholder: str, rounds: int) -> None:
    def describe(x: Any) -> Any:
        u = PLACEHOLDERS[placeholder]()

        def body(i: Any, s: Any) -> Any:
            layer.assign(layer.tanh(s), u)
            return [s + layer.square(u)]

        (s,) = looped(body, [x], rounds)
        return layer.reduce_sum(s) + layer.reduce_sum(u * u * u), u

    def eager(x: Any) -> Any:
        s = u = x
        for _ in range(rounds):
            u = torch.tanh(s)
            s = s + u * u
        return s.sum() + (u**3).sum()

    main, fetch = trained(describe)
    if placeholder in ("of another rank", "a number"):
        assert [str(d) for d in fetch[2].packed_shape] == ["batch", "3"]
    assert expect(main, fetch, eager)[0].shape == (5, 3)
    assert fs.plan(main, fetch).peak_formula().symbols >= {"batch"}
    assert fetch[2].name in str(main) and fetch[2].name in main.explain(fetch[2])


def test_what_stands_for_a_variable_that_nobody_has_set_is_no_value_of_another_size() -> None:
    """As PaddlePaddle begins variables of Python that only a loop sets: one number, 1.77113e27."""
    with fs.program() as main:
        x = layer.data("x", shape=["batch", 3])
        many = layer.data("many", shape=[1], dtype="int64")
        u = layer.assign(np.array([1.77113e27], "float32"))

        def body(i: Any, s: Any) -> Any:
            layer.assign(layer.reduce_mean(s, 0), u)
            return [s + 1.0]

        (s,) = looped(body, [x], many)
        assert u.spec.dims == (3,)
    scope, feed = fs.Scope(), {"x": np.zeros((2, 3), "float32"), "many": np.array([2])}
    for loaded in (main, fs.load_program(main.to_bytes())):
        assert fs.Executor().run(loaded, feed, [u.name], scope)[0].tolist() == [1.0, 1.0, 1.0]
        with pytest.raises(fs.ExecutionError, match="no value"):
            fs.Executor().run(loaded, {**feed, "many": np.array([0])}, [u.name, s.name], scope)


@pytest.mark.long
@pytest.mark.parametrize("limit", ["always two", "as many as there were", "ever fewer"])
def test_loops_in_loops_hand_it_on(limit: str) -> None:
    """A round in which the inner loop has none leaves what an earlier one has made."""
    inner = {"always two": lambda i: 2, "as many as there were": lambda i: i, "ever fewer": lambda i: 2 - i}[limit]

    def describe(x: Any) -> Any:
        u = layer.fill_constant([1], "fp32", 0.0)

        def body(i: Any, s: Any) -> Any:
            def within(j: Any, t: Any) -> Any:
                layer.assign(t * 1.5, u)
                return [t + layer.square(u) * 0.1]

            given = inner(i)
            return [layer.tanh(looped(within, [s], given)[0])]

        (s,) = looped(body, [x], 3)
        return layer.reduce_sum(s) + layer.reduce_sum(u * u * u)

    def eager(x: Any) -> Any:
        s, u = x, torch.zeros(1)
        for i in range(3):
            t = s
            for _ in range(inner(i)):
                u = t * 1.5
                t = t + u * u * 0.1
            s = torch.tanh(t)
        return s.sum() + (u**3).sum()

    expect(*trained(describe), eager)


def test_a_loop_without_a_round_leaves_nothing_that_another_shape_was_promised_for() -> None:
    def describe(x: Any) -> Any:
        u = layer.fill_constant([1], "fp32", 0.0)
        n = layer.data("n", shape=[1], dtype="int64")

        def body(i: Any, s: Any) -> Any:
            layer.assign(s * 2.0, u)
            return [s + u]

        return layer.reduce_sum(looped(body, [x], n)[0]), u

    main, fetch = trained(describe)
    for check in (False, True):
        run = fs.Executor(check=check).run
        loss, gradient = run(main, {"x": X, "n": np.array([0])}, fetch[:2], fs.Scope())
        np.testing.assert_allclose(loss, X.sum(), rtol=1e-5)
        np.testing.assert_array_equal(gradient, np.ones_like(X))
        with pytest.raises(fs.ExecutionError, match="did not run"):
            run(main, {"x": X, "n": np.array([0])}, [fetch[2]], fs.Scope())
        assert run(main, {"x": X, "n": np.array([2])}, [fetch[2]], fs.Scope())[0].shape == (5, 3)


def test_a_loop_without_a_round_leaves_what_was_there_where_one_spec_says_both() -> None:
    def describe(x: Any) -> Any:
        u = layer.fill_constant([2, 3], "fp32", 0.25)
        n = layer.data("n", shape=[1], dtype="int64")

        def body(i: Any, s: Any) -> Any:
            layer.assign(s * 2.0, u)
            return [s + 1.0]

        return layer.reduce_sum(looped(body, [x], n)[0]), u

    main, fetch = trained(describe)
    assert not isinstance(fetch[2].packed_shape[0], int)
    for n, shape in ((0, (2, 3)), (1, (5, 3))):
        assert fs.Executor(check=True).run(main, {"x": X, "n": np.array([n])}, [fetch[2]], fs.Scope())[0].shape == shape


def test_the_placeholder_is_not_computed_where_nobody_reads_it() -> None:
    main, fetch = trained(lambda x: _with_placeholder(x))
    step = fs.Executor().step(main, fetch[:1])
    placeholder = main.var("placeholder")
    assert not [i for i in step.plain.calls if any(v.variable is placeholder for v in i.writes()) and region_of(i) is None]


def _with_placeholder(x: Any) -> Any:
    block = fs.default_main_program().global_block
    u = block.create_variable("placeholder", layer.fill_constant([1], "fp32", 0.0).spec.like())
    block.append_op("fill_constant", {}, {"Out": u}, {"shape": [1], "dtype": 5, "value": 0.0})

    def body(i: Any, s: Any) -> Any:
        layer.assign(s * 2.0, u)
        return [s + u]

    return layer.reduce_sum(looped(body, [x], 2)[0])


@pytest.mark.parametrize("way", ["read before", "read in a branch before", "read by a loop before"])
def test_what_a_round_reads_before_anything_may_have_written_it_keeps_its_rank(way: str) -> None:
    def describe(x: Any) -> Any:
        u = layer.fill_constant([1], "fp32", 0.0)

        def body(i: Any, s: Any) -> Any:
            if way == "read before":
                s = s + layer.reduce_sum(u)
            elif way == "read in a branch before":
                s = layer.cond(layer.less_than(count(0), i), lambda: s + layer.reduce_sum(u), lambda: s * 1.0)
            else:
                (s,) = looped(lambda j, t: [t + layer.reduce_sum(u)], [s], 2)
            layer.assign(s, u)
            return [s]

        return layer.reduce_sum(looped(body, [x], 2)[0])

    with pytest.raises(fs.ShapeError, match="must keep its number of dims"):
        trained(describe)


def test_a_value_of_an_earlier_round_is_not_taken_for_what_this_one_began_with() -> None:
    def describe(x: Any) -> Any:
        u = layer.fill_constant([1], "fp32", 0.0)

        def body(i: Any, s: Any) -> Any:
            layer.assign(layer.fill_constant([1], "fp32", 0.0), u)
            looped(lambda j, t: [layer.assign(t * 2.0, u)], [s], 1 - i)
            return [s + layer.reduce_sum(u)]

        return layer.reduce_sum(looped(body, [x], 2)[0])

    main, fetch = trained(describe)
    for check in (False, True):
        with pytest.raises(fs.ExecutionError, match="has no value: the block that makes it did not run"):
            fs.Executor(check=check).run(main, {"x": X}, fetch, fs.Scope())


@pytest.mark.parametrize("begins", ["as a placeholder", "as nothing"])
def test_the_sizes_of_a_round_are_not_taken_for_those_after_it(begins: str) -> None:
    """What the last round has made of the rows that it began with has not as many as there are in the end."""
    x = layer.data("x", shape=["batch", 3])
    block = fs.default_main_program().global_block
    spec = layer.fill_constant([1], "fp32", 0.0).spec.like()
    u = layer.fill_constant([1], "fp32", 0.0) if begins == "as a placeholder" else block.create_variable("u", spec)

    def body(i: Any, s: Any) -> Any:
        layer.assign(s * 2.0, u)
        return [layer.concat([s, x], 0)]

    (s,) = looped(body, [x], 3)
    assert u.packed_shape[0] is not s.packed_shape[0]
    both = u + s
    (found,) = fs.Executor(check=True).run(fs.default_main_program(), {"x": X}, [u], fs.Scope())
    np.testing.assert_array_equal(found, np.concatenate([X] * 3) * 2)
    with pytest.raises(fs.GuardError, match="the dims of X and Y must be equal or 1"):
        fs.Executor().run(fs.default_main_program(), {"x": X}, [both], fs.Scope())
