"""Loops, branches and recurrences: values, gradients, inference to a fixed point, errors, and what survives a file."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer

Built = tuple[fs.Program, fs.Program, Any]


def build(describe: Callable[[], Any]) -> Built:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        return main, startup, describe()


def forms_of(program: fs.Program) -> list[fs.Program]:
    """The program, and itself after it was written to bytes, to text, and inferred again: all must compute the same."""
    loaded = fs.Program.from_bytes(program.to_bytes())
    assert loaded.to_bytes() == program.to_bytes()
    assert str(loaded) == str(program)
    parsed = fs.Program.parse(str(program))
    assert str(parsed) == str(program)
    again = program.clone()
    again.forget()
    assert again.infer() == []
    assert str(again) == str(program)
    return [program, loaded, parsed, again]


def run_all(program: fs.Program, feed: dict[str, Any], fetch: list[Any], scope: fs.Scope | None = None) -> list[Any]:
    """The fetched values, which every form of the program, checked or not, must give."""
    names = [f.name if isinstance(f, fs.Variable) else f for f in fetch]
    first: list[Any] | None = None
    for form in forms_of(program):
        for check in (False, True):
            mine = fs.Scope()
            for name in scope.names() if scope is not None else ():
                mine.set(name, scope.get(name).copy())
            got = fs.Executor(seed=5, check=check).run(form, feed, names, mine)
            if first is None:
                first = got
            for a, b in zip(first, got, strict=True):
                np.testing.assert_allclose(np.asarray(a), np.asarray(b), rtol=1e-5, atol=1e-6)
    assert first is not None
    return first


def started(startup: fs.Program, seed: int = 3) -> fs.Scope:
    scope = fs.Scope()
    fs.Executor(seed=seed).run(startup, scope=scope)
    return scope


def less(i: fs.Variable, n: int) -> fs.Variable:
    return layer.less_than(i, layer.fill_constant([1], "int64", n))


def zero() -> fs.Variable:
    return layer.fill_constant([1], "int64", 0)


X = np.random.RandomState(0).randn(5, 3).astype("float32")

# --- while


def test_a_loop_carries_values_and_leaves_what_it_was_given_alone() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        i, h = layer.while_loop(lambda i, h: less(i, 4), lambda i, h: [i + 1, h * 1.5], [zero(), x])
        return [i, h, x]

    main, _, (i, h, x) = build(describe)
    assert h.packed_shape == x.packed_shape and i.dims == [1]
    got = run_all(main, {"x": X}, [i, h, x])
    assert got[0].tolist() == [4]
    np.testing.assert_allclose(got[1], X * 1.5**4, rtol=1e-6)
    np.testing.assert_array_equal(got[2], X)


def test_a_loop_that_never_begins_gives_what_it_was_given() -> None:
    main, _, out = build(lambda: layer.while_loop(lambda i, h: less(i, 0), lambda i, h: [i + 1, h * 2.0], [zero(), layer.data("x", shape=["batch", 3])]))
    got = run_all(main, {"x": X}, out)
    assert got[0].tolist() == [0]
    np.testing.assert_array_equal(got[1], X)


@pytest.mark.parametrize("rounds", [0, 1, 5])
def test_the_gradient_of_a_loop(rounds: int) -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        x.stop_gradient = False
        limit = layer.data("limit", shape=[1], dtype="int64")

        def body(i: Any, h: Any, s: Any) -> Any:
            h = layer.fc(h, 3, activation="tanh", weight="w", bias="b")
            return i + 1, h, s + h * x

        _, h, s = layer.while_loop(lambda i, h, s: layer.less_than(i, limit), body, [zero(), x, x * 0.0])
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
    loss.backward()
    got = run_all(main, {"x": X, "limit": np.array([rounds])}, fetch, scope)
    for seen, wanted in zip(got, [loss.detach(), *(torch.zeros_like(v) if v.grad is None else v.grad for v in (w, b, x))], strict=True):
        np.testing.assert_allclose(seen, wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_variables_that_change_places() -> None:
    def describe() -> Any:
        a, b = layer.data("a", shape=[2]), layer.data("b", shape=[2])
        a.stop_gradient = b.stop_gradient = False
        _, p, q = layer.while_loop(lambda i, p, q: less(i, 3), lambda i, p, q: [i + 1, q, p * 2.0], [zero(), a, b])
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


def test_loops_in_loops_with_gradients() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        x.stop_gradient = False

        def outer(i: Any, h: Any) -> Any:
            def inner(j: Any, g: Any) -> Any:
                return j + 1, layer.fc(g, 3, activation="tanh", weight="w", bias=False)

            _, g = layer.while_loop(lambda j, g: layer.less_than(j, i + 1), inner, [zero(), h])
            return i + 1, g + h * 0.5

        _, h = layer.while_loop(lambda i, h: less(i, 3), outer, [zero(), x])
        loss = layer.mean(h * h)
        return [loss, *(g for _, g in fs.append_backward(loss, ["w", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    w, x = torch.tensor(scope.get("w"), requires_grad=True), torch.tensor(X, requires_grad=True)
    h = x
    for i in range(3):
        g = h
        for _ in range(i + 1):
            g = torch.tanh(g @ w)
        h = g + h * 0.5
    loss = (h * h).mean()
    loss.backward()
    got = run_all(main, {"x": X}, fetch, scope)
    assert w.grad is not None and x.grad is not None
    for seen, wanted in zip(got, (loss.detach(), w.grad, x.grad), strict=True):
        np.testing.assert_allclose(seen, wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_a_branch_in_a_loop_with_gradients() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        x.stop_gradient = False

        def body(i: Any, h: Any) -> Any:
            even = layer.equal(i % 2, layer.fill_constant([1], "int64", 0))
            return i + 1, layer.cond(even, lambda: layer.fc(h, 3, weight="w", bias=False), lambda: layer.tanh(h) * x)

        _, h = layer.while_loop(lambda i, h: less(i, 5), body, [zero(), x])
        loss = layer.mean(h * h)
        return [loss, *(g for _, g in fs.append_backward(loss, ["w", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    w, x = torch.tensor(scope.get("w"), requires_grad=True), torch.tensor(X, requires_grad=True)
    h = x
    for i in range(5):
        h = h @ w if i % 2 == 0 else torch.tanh(h) * x
    loss = (h * h).mean()
    loss.backward()
    got = run_all(main, {"x": X}, fetch, scope)
    assert w.grad is not None and x.grad is not None
    for seen, wanted in zip(got, (loss.detach(), w.grad, x.grad), strict=True):
        np.testing.assert_allclose(seen, wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_a_size_that_changes_from_round_to_round_becomes_a_symbol() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        _, h = layer.while_loop(lambda i, h: less(i, 2), lambda i, h: [i + 1, layer.concat([h, x], axis=1)], [zero(), x])
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
        build(lambda: layer.while_loop(lambda i, h: less(i, 2), body, [zero(), layer.data("x", shape=["batch", 3])]))
    assert "test_loops_and_branches.py" in str(caught.value)


def test_a_mistake_in_a_loop_that_only_a_later_round_has() -> None:
    """In the first round both have 3 columns; later ``h`` does not."""

    def describe() -> Any:
        x = layer.data("x", shape=[5, 3])
        return layer.while_loop(lambda i, h: less(i, 2), lambda i, h: [i + 1, layer.concat([h * x, x], axis=1)], [zero(), x])

    with pytest.raises(fs.ShapeError, match=r"must be equal or 1 in every round.*makes dim 1 of .* 6"):
        build(describe)


def test_numbers_that_change_in_a_loop_are_not_known() -> None:
    def describe() -> Any:
        i, = layer.while_loop(lambda i: less(i, 4), lambda i: [i + 1], [zero()])
        return layer.fill_constant([i], "fp32", 2.0)

    main, _, out = build(describe)
    assert out.dims == [-1]
    assert run_all(main, {}, [out])[0].tolist() == [2.0] * 4


def test_a_loop_without_end_can_be_bounded() -> None:
    def describe() -> Any:
        return layer.while_loop(lambda i: layer.greater_equal(i, zero()), lambda i: [i + 1], [zero()], max_iterations=7)

    main, _, out = build(describe)
    assert run_all(main, {}, out)[0].tolist() == [7]


def test_a_loop_without_end_can_be_interrupted() -> None:
    import signal

    main, _, out = build(lambda: layer.while_loop(lambda i: layer.greater_equal(i, zero()), lambda i: [i + 1], [zero()]))

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
        flag = layer.equal(zero(), zero())
        block = main.create_block()
        with pytest.raises(fs.SchemaError, match="would never end"):
            main.global_block.append_op("while", {"X": [], "Condition": flag}, {"Out": []}, {"sub_block": block.idx})


def test_state_that_a_loop_changes_is_kept() -> None:
    def describe() -> Any:
        total = fs.default_main_program().global_block.create_variable("total", layer.fill_constant([1], "fp32", 0.0).spec.like(), persistable=True)

        def body(i: Any) -> Any:
            layer.assign(total + 2.0, total)
            return [i + 1]

        return layer.while_loop(lambda i: less(i, 3), body, [zero()])

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
        _, s = layer.while_loop(lambda i, s: less(i, 3), body, [zero(), start])
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


# --- cond


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_only_the_branch_that_holds_runs_and_has_a_gradient(sign: float) -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        x.stop_gradient = False
        holds = layer.greater_than(layer.mean(x), layer.fill_constant([], "fp32", 0.0))
        a, b = layer.cond(
            holds, lambda: (layer.fc(x, 3, weight="w", bias=False), x * 2.0), lambda: (layer.fc(x, 3, weight="v", bias=False), x * x)
        )
        loss = layer.mean(a * b)
        return [loss, *(g for _, g in fs.append_backward(loss, ["w", "v", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    data = np.abs(X) * np.float32(sign)
    w, v, x = (torch.tensor(a, requires_grad=True) for a in (scope.get("w"), scope.get("v"), data))
    a, b = (x @ w, x * 2) if sign > 0 else (x @ v, x * x)
    loss = (a * b).mean()
    loss.backward()
    got = run_all(main, {"x": data}, fetch, scope)
    for seen, wanted in zip(got, [loss.detach(), *(torch.zeros_like(t) if t.grad is None else t.grad for t in (w, v, x))], strict=True):
        np.testing.assert_allclose(seen, wanted.numpy(), rtol=1e-4, atol=1e-6)


def test_branches_of_different_sizes() -> None:
    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        x.stop_gradient = False
        flag = layer.data("flag", shape=[1], dtype="bool")
        out = layer.cond(flag, lambda: layer.concat([x, x], axis=1), lambda: x * 1.0)
        return [out, fs.append_backward(layer.reduce_sum(out * out), ["x"])[0][1]]

    main, _, (out, gradient) = build(describe)
    assert out.packed_shape[0] == main.var("x").packed_shape[0] and out.packed_dims == [-1, -1]
    for flag in (True, False):
        seen, d_x = run_all(main, {"x": X, "flag": np.array([flag])}, [out, gradient])
        assert seen.shape == ((5, 6) if flag else (5, 3))
        np.testing.assert_allclose(d_x, X * (4 if flag else 2), rtol=1e-6)


@pytest.mark.parametrize("flag", [True, False])
def test_branches_that_give_other_sequences(flag: bool) -> None:
    def describe() -> Any:
        x = layer.data("x", shape=[-1, 2], lod_level=1)
        x.stop_gradient = False
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
        (lambda x: x, lambda x: layer.reshape(x, [-1]), "as many dims"),
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


def test_an_error_in_a_block_names_the_user_s_line() -> None:
    def describe() -> Any:
        table = layer.data("ids", shape=["batch"], dtype="int64")
        start = [zero(), layer.fill_constant([], "fp32", 0.0)]
        return layer.while_loop(lambda i, s: less(i, 3), lambda i, s: [i + 1, s + layer.reduce_sum(layer.embedding(table + i, [4, 2]))], start)[1]

    main, startup, out = build(describe)
    with pytest.raises(fs.ExecutionError, match=r"test_loops_and_branches\.py"):
        fs.Executor().run(main, {"ids": np.array([2])}, [out], started(startup))


# --- values that are overwritten


def test_the_gradient_uses_the_value_that_was_used() -> None:
    """``c`` is read, then overwritten, then read again; the gradient must not take the new value for the old one."""

    def describe() -> Any:
        x = layer.data("x", shape=["batch", 3])
        x.stop_gradient = False
        c = x * 1.0
        y = layer.square(c)
        layer.assign(c * 3.0, c)
        loss = layer.reduce_sum(y * c)
        return [loss, fs.append_backward(loss, ["x"])[0][1]]

    main, _, fetch = build(describe)
    x = torch.tensor(X, requires_grad=True)
    loss = (x * x * (x * 3)).sum()
    loss.backward()
    got = run_all(main, {"x": X}, fetch)
    assert x.grad is not None
    np.testing.assert_allclose(got[0], loss.item(), rtol=1e-5)
    np.testing.assert_allclose(got[1], x.grad.numpy(), rtol=1e-5)


# --- rnn


@pytest.mark.parametrize("reverse", [False, True])
@pytest.mark.parametrize("form", ["batch", "time", "ragged", "ragged2"])
def test_a_step_over_time(form: str, reverse: bool) -> None:
    ragged = form.startswith("ragged")

    def describe() -> Any:
        if ragged:
            x = layer.data("x", shape=[-1, 3], lod_level=2 if form == "ragged2" else 1)
            count = x.spec.lod.counts[-1]
        else:
            x = layer.data("x", shape=["batch", 4, 3] if form == "batch" else [4, "batch", 3])
            count = "batch"
        first, fixed = layer.data("first", shape=[count, 2]), layer.data("fixed", shape=[count, 2])
        for v in (x, first, fixed):
            v.stop_gradient = False

        def step(x: Any, h: Any, z: Any) -> Any:
            h = layer.tanh(layer.fc(x, 2, weight="w", bias="b") + layer.fc(h, 2, weight="u", bias=False) + z)
            return h * 2.0, h

        out, last = layer.rnn(step, x, first, fixed, time_major=form == "time", reverse=reverse)
        assert out.lod_level == x.lod_level and (not ragged or out.spec.lod is x.spec.lod)
        assert last.packed_shape == first.packed_shape
        loss = layer.reduce_sum(layer.square(out)) + layer.reduce_sum(last * last * last)
        return [loss, out, *(g for _, g in fs.append_backward(loss, ["w", "b", "u", "first", "fixed", "x"]))]

    main, startup, fetch = build(describe)
    scope = started(startup)
    rng = np.random.RandomState(1)
    lengths = [3, 0, 5, 2] if ragged else [4] * 4
    w, b, u = (torch.tensor(scope.get(n), requires_grad=True) for n in "wbu")
    first, fixed = (torch.tensor(rng.randn(4, 2).astype("float32"), requires_grad=True) for _ in range(2))
    x = torch.tensor(rng.randn(sum(lengths), 3).astype("float32"), requires_grad=True)
    rows: list[Any] = []
    loss: Any = 0.0
    for s, (n, begin) in enumerate(zip(lengths, np.cumsum([0, *lengths]).tolist(), strict=False)):
        h, mine = first[s], [None] * n
        for t in reversed(range(n)) if reverse else range(n):
            h = torch.tanh(x[begin + t] @ w + b + h @ u + fixed[s])
            mine[t] = h * 2
        rows += mine
        loss = loss + ((h**3).sum() if n else 0.0)
    whole = torch.stack(rows)
    loss = loss + (whole**2).sum()
    loss.backward()
    data = x.detach().numpy()
    wanted = [loss.detach(), whole.detach(), *(v.grad for v in (w, b, u, first, fixed, x))]
    if form == "ragged":
        data = fs.LoDTensor(data, [lengths])
    elif form == "ragged2":
        data = fs.LoDTensor(data, [[3, 1], lengths])
    else:
        data = data.reshape(4, 4, 3)
        if form == "time":
            data = data.transpose(1, 0, 2).copy()
            wanted[1], wanted[-1] = (v.reshape(4, 4, -1).transpose(0, 1).contiguous() for v in (wanted[1], wanted[-1]))
    got = run_all(main, {"x": data, "first": first.detach().numpy(), "fixed": fixed.detach().numpy()}, fetch, scope)
    for seen, want in zip(got, wanted, strict=True):
        np.testing.assert_allclose(np.asarray(seen).reshape(-1), want.numpy().reshape(-1), rtol=2e-4, atol=2e-6)


def test_a_recurrence_over_nothing() -> None:
    def describe() -> Any:
        x, first = layer.data("x", shape=[-1, 3], lod_level=1), layer.data("first", shape=["batch", 2])
        first.stop_gradient = False
        out, last = layer.rnn(lambda x, h: ((new := layer.fc(x, 2, weight="w", bias=False) + h), new), x, first)
        loss = layer.reduce_sum(out) + layer.reduce_sum(last)
        return [loss, out, *(g for _, g in fs.append_backward(loss, ["w", "first"]))]

    main, startup, fetch = build(describe)
    for lengths in ([], [0, 0]):
        data = {"x": fs.LoDTensor(np.zeros((0, 3), "float32"), [lengths]), "first": np.ones((len(lengths), 2), "float32")}
        loss, out, dw, first = run_all(main, data, fetch, started(startup))
        assert loss == 0 and np.asarray(out).shape == (0, 2) and not dw.any() and first.shape == (len(lengths), 2) and not first.any()


def test_steps_that_do_not_fit() -> None:
    def of(step: Any, **more: Any) -> None:
        build(lambda: layer.rnn(step, layer.data("x", shape=["batch", 4, 3]), layer.data("h", shape=["batch", 2]), **more))

    for step, says in (
        (lambda x, h: h, "outputs, new_memories"),
        (lambda x, h: (h, []), "as many new memories"),
        (lambda x, h: (h, x), "must keep its shape"),
        (lambda x, h: (h, layer.cast(h, "fp64")), "must keep its element type"),
        (lambda x, h: (3.0, h), "must be variables"),
    ):
        with pytest.raises(fs.DescriptionError, match=says):
            of(step)
    with pytest.raises(fs.DescriptionError, match="as many steps"):
        build(lambda: layer.rnn(lambda x, y, h: (h, h), [layer.data(n, shape=[-1, t, 3]) for n, t in (("x", 4), ("y", 5))], layer.data("h", shape=[-1, 2])))


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
