"""Loops: values, gradients, inference to a fixed point, errors, and what survives a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.described import X, assert_loss_and_gradients, build, count, differentiable, less, run_all, started

import foreshape as fs
from foreshape import layer


def test_a_loop_carries_values_and_leaves_what_it_was_given_alone() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        i, h = layer.while_loop(lambda i, h: less(i, 4), lambda i, h: [i + 1, h * 1.5], [count(0), x])
        return [i, h, x]

    main, _, (i, h, x) = build(describe)
    assert h.packed_shape == x.packed_shape and i.dims == [1]
    got = run_all(main, {"x": X}, [i, h, x])
    assert got[0].tolist() == [4]
    np.testing.assert_allclose(got[1], X * 1.5**4, rtol=1e-6)
    np.testing.assert_array_equal(got[2], X)


def test_a_loop_that_never_begins_gives_what_it_was_given() -> None:
    main, _, out = build(lambda: layer.while_loop(lambda i, h: less(i, 0), lambda i, h: [i + 1, h * 2.0], [count(0), layer.data("x", shape=["batch", 3])]))
    got = run_all(main, {"x": X}, out)
    assert got[0].tolist() == [0]
    np.testing.assert_array_equal(got[1], X)


@pytest.mark.quick_cases("0", "5")
@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_the_gradient_of_a_loop(rounds: int) -> None:
    def describe() -> Any:
        x = differentiable("x", ["batch", 3])
        limit = layer.data("limit", shape=[1], dtype="int64")

        def body(i: Any, h: Any, s: Any) -> Any:
            h = layer.fc(h, 3, activation="tanh", weight="w", bias="b")
            return i + 1, h, s + h * x

        _, h, s = layer.while_loop(lambda i, h, s: layer.less_than(i, limit), body, [count(0), x, x * 0.0])
        loss = layer.mean(h * s + s)
        return [loss, *(g for _, g in fs.append_backward(loss, ["w", "b", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    w, b, x = (torch.tensor(a, requires_grad=True) for a in (scope.get("w"), scope.get("b"), X))
    h, s = x, x * 0
    for _ in range(rounds):
        h = torch.tanh(h @ w + b)
        s = s + h * x
    loss = (h * s + s).mean()
    assert_loss_and_gradients(run_all(main, {"x": X, "limit": np.array([rounds])}, fetch, scope), loss, w, b, x)


def test_variables_that_change_places() -> None:
    def describe() -> Any:
        a, b = differentiable("a", [2]), differentiable("b", [2])
        _, p, q = layer.while_loop(lambda i, p, q: less(i, 3), lambda i, p, q: [i + 1, q, p * 2.0], [count(0), a, b])
        loss = layer.reduce_sum(p * p * q)
        return [p, q, *(g for _, g in fs.append_backward(loss, ["a", "b"]))]

    main, _, fetch = build(describe)
    a, b = torch.tensor([1.0, 2.0], requires_grad=True), torch.tensor([3.0, -4.0], requires_grad=True)
    p, q = a, b
    for _ in range(3):
        p, q = q, p * 2
    (p * p * q).sum().backward()
    got = run_all(main, {"a": a.detach().numpy(), "b": b.detach().numpy()}, fetch)
    for seen, wanted in zip(got, (p, q, a.grad, b.grad), strict=True):
        assert wanted is not None
        np.testing.assert_allclose(seen, wanted.detach().numpy(), rtol=1e-6)


def expect_of_state(make: Callable[[Any], Any], eager: Callable[[torch.Tensor, torch.Tensor], torch.Tensor]) -> None:
    """Compare the mean of the squares of what is made of x and the weight "w", and its gradients, with torch's."""

    def describe() -> Any:
        h = make(differentiable("x", ["batch", 3]))
        loss = layer.mean(h * h)
        return [loss, *(g for _, g in fs.append_backward(loss, ["w", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    w, x = torch.tensor(scope.get("w"), requires_grad=True), torch.tensor(X, requires_grad=True)
    assert_loss_and_gradients(run_all(main, {"x": X}, fetch, scope), eager(x, w).square().mean(), w, x)


def test_loops_in_loops_with_gradients() -> None:
    def make(x: Any) -> Any:
        def outer(i: Any, h: Any) -> Any:
            def inner(j: Any, g: Any) -> Any:
                return j + 1, layer.fc(g, 3, activation="tanh", weight="w", bias=False)

            _, g = layer.while_loop(lambda j, g: layer.less_than(j, i + 1), inner, [count(0), h])
            return i + 1, g + h * 0.5

        return layer.while_loop(lambda i, h: less(i, 3), outer, [count(0), x])[1]

    def eager(h: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        for i in range(3):
            g = h
            for _ in range(i + 1):
                g = torch.tanh(g @ w)
            h = g + h * 0.5
        return h

    expect_of_state(make, eager)


def test_a_branch_in_a_loop_with_gradients() -> None:
    def make(x: Any) -> Any:
        def body(i: Any, h: Any) -> Any:
            even = layer.equal(i % 2, count(0))
            return i + 1, layer.cond(even, lambda: layer.fc(h, 3, weight="w", bias=False), lambda: layer.tanh(h) * x)

        return layer.while_loop(lambda i, h: less(i, 5), body, [count(0), x])[1]

    def eager(x: torch.Tensor, w: torch.Tensor) -> torch.Tensor:
        h = x
        for i in range(5):
            h = h @ w if i % 2 == 0 else torch.tanh(h) * x
        return h

    expect_of_state(make, eager)


def test_a_size_that_changes_from_round_to_round_becomes_a_symbol() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        _, h = layer.while_loop(lambda i, h: less(i, 2), lambda i, h: [i + 1, layer.concat([h, x], axis=1)], [count(0), x])
        return h

    main, _, h = build(describe)
    assert h.packed_shape[0] == main.var("x").packed_shape[0]
    assert h.packed_dims == [-1, -1]
    assert list(main.guards) == [], "a size of the first round must not be required of all"
    got = run_all(main, {"x": X}, [h])
    np.testing.assert_array_equal(got[0], np.concatenate([X] * 3, 1))


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda h: layer.cast(h, "int64"), "element types"),
        (lambda h: layer.reshape(h, [-1]), "number of dims"),
        (lambda h: [h, h], "as many variables"),
        (lambda h: 3.0, "must give variables"),
    ],
)
def test_what_a_loop_may_not_change(change: Callable[[Any], Any], says: str) -> None:
    def body(i: Any, h: Any) -> Any:
        new = change(h)
        return [i + 1, *new] if isinstance(new, list) else [i + 1, new]

    with pytest.raises(fs.DescriptionError, match=says) as caught:
        build(lambda: layer.while_loop(lambda i, h: less(i, 2), body, [count(0), layer.data("x", shape=["batch", 3])]))
    assert "test_loops.py" in str(caught.value)


def test_a_mistake_in_a_loop_that_only_a_later_round_has() -> None:
    """In the first round both have 3 columns; later ``h`` does not."""

    def describe() -> Any:
        x = layer.data("x", shape=[5, 3])
        return layer.while_loop(lambda i, h: less(i, 2), lambda i, h: [i + 1, layer.concat([h * x, x], axis=1)], [count(0), x])

    with pytest.raises(fs.ShapeError, match=r"must be equal or 1 in every round.*makes dim 1 of .* 6"):
        build(describe)


def test_numbers_that_change_in_a_loop_are_not_known() -> None:
    def describe() -> Any:
        (i,) = layer.while_loop(lambda i: less(i, 4), lambda i: [i + 1], [count(0)])
        return layer.fill_constant([i], "fp32", 2.0)

    main, _, out = build(describe)
    assert out.dims == [-1]
    assert run_all(main, {}, [out])[0].tolist() == [2.0] * 4


def test_a_loop_without_end_can_be_bounded() -> None:
    def describe() -> Any:
        return layer.while_loop(lambda i: layer.greater_equal(i, count(0)), lambda i: [i + 1], [count(0)], max_iterations=7)

    main, _, out = build(describe)
    assert run_all(main, {}, out)[0].tolist() == [7]


def test_a_loop_without_end_can_be_interrupted() -> None:
    import signal

    main, _, out = build(lambda: layer.while_loop(lambda i: layer.greater_equal(i, count(0)), lambda i: [i + 1], [count(0)]))

    def stop(*_: Any) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, stop)
    try:
        signal.setitimer(signal.ITIMER_REAL, 0.3)
        with pytest.raises(KeyboardInterrupt):
            fs.Executor().run(main, {}, out, fs.Scope())
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    short, _, done = build(lambda: layer.fill_constant([2], "fp32", 1.0))
    assert fs.Executor().run(short, {}, [done], fs.Scope())[0].tolist() == [1.0, 1.0]


def test_a_condition_that_its_block_never_writes_is_refused() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        flag = layer.equal(count(0), count(0))
        block = main.create_block()
        with pytest.raises(fs.SchemaError, match="would never end"):
            main.global_block.append_op("while", {"X": [], "Condition": flag}, {"Out": []}, {"sub_block": block.idx})


def test_state_that_a_loop_changes_is_kept() -> None:
    def describe() -> Any:
        total = fs.default_main_program().global_block.create_variable("total", layer.fill_constant([1], "fp32", 0.0).spec.like(), persistable=True)

        def body(i: Any) -> Any:
            layer.assign(total + 2.0, total)
            return [i + 1]

        return layer.while_loop(lambda i: less(i, 3), body, [count(0)])

    main, _, out = build(describe)
    scope = fs.Scope()
    scope.set("total", np.array([1.0], "float32"))
    executor = fs.Executor()
    for k in range(1, 3):
        executor.run(main, {}, [out[0]], scope)
        assert scope.get("total").tolist() == [1.0 + 6.0 * k]


def test_rows_of_a_table_that_a_loop_looks_up_are_summed() -> None:
    def describe(is_sparse: bool) -> Any:
        ids = layer.data("ids", shape=["batch", 1], dtype="int64")

        def body(i: Any, s: Any) -> Any:
            return i + 1, s + layer.embedding(ids + i, [9, 2], weight="table", is_sparse=is_sparse) * 2.0

        start = layer.fill_constant([4, 1, 2], "fp32", 0.0)
        _, s = layer.while_loop(lambda i, s: less(i, 3), body, [count(0), start])
        loss = layer.reduce_sum(s * s)
        return fs.append_backward(loss, ["table"])[0][1]

    results = []
    for sparse in (False, True):
        main, startup, gradient = build(lambda sparse=sparse: describe(sparse))
        assert gradient.kind is (fs.SELECTED_ROWS if sparse else fs.LOD_TENSOR) if hasattr(fs, "SELECTED_ROWS") else True
        got = fs.Executor().run(main, {"ids": np.array([[0], [3], [3], [1]])}, [gradient], started(startup))[0]
        results.append(got.to_dense() if hasattr(got, "to_dense") else got)
    np.testing.assert_allclose(results[1], results[0], rtol=1e-6)
    assert np.abs(results[0]).max() > 0


def test_an_error_in_a_block_names_the_user_s_line() -> None:
    def describe() -> Any:
        table = layer.data("ids", shape=["batch"], dtype="int64")
        start = [count(0), layer.fill_constant([], "fp32", 0.0)]
        return layer.while_loop(lambda i, s: less(i, 3), lambda i, s: [i + 1, s + layer.reduce_sum(layer.embedding(table + i, [4, 2]))], start)[1]

    main, startup, out = build(describe)
    with pytest.raises(fs.ExecutionError, match=r"test_loops\.py"):
        fs.Executor().run(main, {"ids": np.array([2])}, [out], started(startup))
