"""Branches: values and gradients of the one that ran, sizes and sequences that differ, errors, and what survives a file."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.described import Built, X, assert_loss_and_gradients, build, differentiable, less, run_all, started

import foreshape as fs
from foreshape import layer


@pytest.mark.quick_cases("-1.0")
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_only_the_branch_that_holds_runs_and_has_a_gradient(sign: float) -> None:
    def describe() -> Any:
        x = differentiable("x", ["batch", 3])
        holds = layer.greater_than(layer.mean(x), layer.fill_constant([], "fp32", 0.0))
        a, b = layer.cond(holds, lambda: (layer.fc(x, 3, weight="w", bias=False), x * 2.0), lambda: (layer.fc(x, 3, weight="v", bias=False), x * x))
        loss = layer.mean(a * b)
        return [loss, *(g for _, g in fs.append_backward(loss, ["w", "v", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    data = np.abs(X) * np.float32(sign)
    w, v, x = (torch.tensor(a, requires_grad=True) for a in (scope.get("w"), scope.get("v"), data))
    a, b = (x @ w, x * 2) if sign > 0 else (x @ v, x * x)
    loss = (a * b).mean()
    assert_loss_and_gradients(run_all(main, {"x": data}, fetch, scope), loss, w, v, x)


def test_branches_of_different_sizes() -> None:
    def describe() -> Any:
        x = differentiable("x", ["batch", 3])
        flag = layer.data("flag", shape=[1], dtype="bool")
        out = layer.cond(flag, lambda: layer.concat([x, x], axis=1), lambda: x * 1.0)
        return [out, fs.append_backward(layer.reduce_sum(out * out), ["x"])[0][1]]

    main, _, (out, gradient) = build(describe)
    assert out.packed_shape[0] == main.var("x").packed_shape[0] and out.packed_dims == [-1, -1]
    for flag in (True, False):
        seen, d_x = run_all(main, {"x": X, "flag": np.array([flag])}, [out, gradient])
        assert seen.shape == ((5, 6) if flag else (5, 3))
        np.testing.assert_allclose(d_x, X * (4 if flag else 2), rtol=1e-6)


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("flag", [True, False])
def test_branches_that_give_other_sequences(flag: bool) -> None:
    def describe() -> Any:
        x = differentiable("x", [-1, 2], lod_level=1)
        holds = layer.data("flag", shape=[1], dtype="bool")
        out = layer.cond(holds, lambda: layer.sequence_reverse(x), lambda: layer.sequence_concat([x, x * 2.0]))
        assert out.lod_level == 1 and out.shape[0] == x.shape[0]
        summed = layer.sequence_pool(out, "sum")
        loss = layer.reduce_sum(summed * summed)
        return [out, summed, fs.append_backward(loss, ["x"])[0][1]]

    main, _, fetch = build(describe)
    rows, lengths = np.arange(10, dtype="float32").reshape(5, 2), [2, 0, 3]
    out, summed, gradient = run_all(main, {"x": fs.LoDTensor(rows, [lengths]), "flag": np.array([flag])}, fetch)
    factor = 1 if flag else 3
    wanted = np.stack([rows[:2].sum(0), np.zeros(2), rows[2:].sum(0)]) * factor
    assert out.sequence_lengths == [[n * (1 if flag else 2) for n in lengths]]
    np.testing.assert_allclose(summed, wanted)
    np.testing.assert_allclose(np.asarray(gradient), 2 * factor * np.repeat(wanted, lengths, axis=0))


def test_branches_that_do_not_fit_each_other() -> None:
    def of(true: Any, false: Any) -> Built:
        def describe() -> Any:
            x = layer.data("x", shape=["batch", 3])
            return layer.cond(layer.data("flag", shape=[1], dtype="bool"), lambda: true(x), lambda: false(x))

        return build(describe)

    for true, false, says in (
        (lambda x: x, lambda x: layer.cast(x, "int64"), "one element type"),
        (lambda x: [x, x], lambda x: [x], "as many variables"),
        (lambda x: x, lambda x: None, "as many variables"),
        (lambda x: 3, lambda x: 4, "must give variables"),
    ):
        with pytest.raises(fs.DescriptionError, match=says):
            of(true, false)
    with pytest.raises(fs.DescriptionError, match="must be bool"):
        build(lambda: layer.cond(layer.data("x", shape=[1]), lambda: None, lambda: None))
    with pytest.raises(fs.DescriptionError, match="one truth value"):
        build(lambda: layer.cond(layer.data("x", shape=[2], dtype="bool"), lambda: None, lambda: None))


def test_switch_case_and_case() -> None:
    def describe() -> Any:
        x, n = layer.data("x", shape=["batch", 3]), layer.data("n", shape=[1], dtype="int64")
        one = layer.switch_case(n, {1: lambda: x * 2.0, 3: lambda: x * 4.0}, default=lambda: x * 0.0)
        two = layer.switch_case(n, [lambda: x + 1.0, lambda: x + 2.0, lambda: x + 3.0])
        three = layer.case([(less(n, 1), lambda: x * -1.0), (less(n, 3), lambda: x * -2.0)], default=lambda: x * -3.0)
        return [one, two, three]

    main, _, fetch = build(describe)
    for n, factor, added, negative in ((0, 0, 1, 1), (1, 2, 2, 2), (2, 0, 3, 2), (3, 4, 3, 3)):
        got = run_all(main, {"x": X, "n": np.array([n])}, fetch)
        for seen, wanted in zip(got, (X * factor, X + added, X * -negative), strict=True):
            np.testing.assert_allclose(seen, wanted, rtol=1e-6)


def test_a_value_that_no_branch_made_is_an_error() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        flag = layer.data("flag", shape=[1], dtype="bool")
        layer.cond(flag, lambda: x * 2.0, lambda: x * 3.0)
        return [v for v in fs.default_main_program().global_block.vars if v.startswith("branch")]

    main, _, names = build(describe)
    with pytest.raises(fs.ExecutionError, match="did not run"):
        fs.Executor().run(main, {"x": X, "flag": np.array([True])}, names, fs.Scope())


def test_a_constant_that_lives_in_a_branch_alone() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 4])
        return layer.cond(layer.reduce_sum(x) > 0.0, lambda: x + fs.Variable("twos", fs.FP32, [4], value=2.0), lambda: x * 3.0)

    main, _, out = build(describe)
    assert "twos" not in main.global_block.vars
    for sign in (1.0, -1.0):
        x = np.full((2, 4), sign, "float32")
        (got,) = fs.Executor().run(main, {"x": x}, [out], fs.Scope())
        np.testing.assert_array_equal(got, x + 2.0 if sign > 0 else x * 3.0)


def test_branches_of_programs_for_inference_run_as_others_do() -> None:
    x = layer.data("x", shape=["n", 2])
    out = layer.cond(layer.reduce_sum(x) > 0, lambda: layer.scale(x, 2.0), lambda: layer.scale(x, 3.0))
    program = fs.default_main_program()
    named = fs.Program.parse(str(program).replace(" = conditional_block(", " = conditional_block_infer("))
    assert sum(op.type == "conditional_block_infer" for op in named.all_ops()) == 2
    for value in (np.ones((3, 2), "float32"), -np.ones((3, 2), "float32")):
        (seen,), (want,) = (fs.Executor().run(p, {"x": value}, [out.name], fs.Scope()) for p in (named, program))
        np.testing.assert_array_equal(seen, want)
        np.testing.assert_array_equal(seen, value * (2 if value.sum() > 0 else 3))


def test_what_a_branch_demands_of_sizes_is_demanded_only_where_it_runs() -> None:
    """A vision transformer adds its table of positions as it is to images of one size, and resized to all others."""

    def describe() -> Any:
        x = differentiable("x", ["batch", "rows", 4])
        table = layer.data("table", shape=[1, 5, 4])
        rows = layer.slice(layer.shape(x), [0], [1], [2])
        fits = layer.equal(rows, layer.fill_constant([1], "int32", 5))
        out = layer.cond(fits, lambda: x + table, lambda: x + layer.reduce_mean(table, axis=1, keepdim=True))
        loss = layer.mean(layer.square(out))
        return [out, *(g for _, g in fs.append_backward(loss, ["x"]))]

    main, _, fetch = build(describe)
    assert not main.guard_list() and [str(d) for d in main.var("x").shape] == ["batch", "rows", "4"]
    table = np.random.RandomState(1).standard_normal((1, 5, 4)).astype("float32")
    for rows in (5, 3, 5, 8):
        data = np.random.RandomState(rows).standard_normal((2, rows, 4)).astype("float32")
        want = data + (table if rows == 5 else table.mean(1, keepdims=True))
        for frozen in (False, True):
            out, grad = fs.Executor(frozen=frozen).run(main, {"x": data, "table": table}, fetch)
            np.testing.assert_allclose(out, want, rtol=1e-5, atol=1e-6)
            np.testing.assert_allclose(grad, want * 2 / want.size, rtol=1e-5, atol=1e-6)


def test_a_branch_that_runs_is_given_sizes_that_it_takes() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", "rows"])
        return [layer.cond(layer.data("flag", shape=[1], dtype="bool"), lambda: x + layer.data("y", shape=["batch", "columns"]), lambda: x * 1.0)]

    main, _, fetch = build(describe)
    x, y = np.ones((2, 3), "float32"), np.ones((2, 4), "float32")
    (out,) = fs.Executor().run(main, {"x": x, "y": y, "flag": np.array([False])}, fetch)
    np.testing.assert_array_equal(out, x)
    with pytest.raises(fs.GuardError, match=r"elementwise_add: the dims of X and Y must be equal or 1\n    seen: X f32.2, 3., Y f32.2, 4."):
        fs.Executor().run(main, {"x": x, "y": y, "flag": np.array([True])}, fetch)
