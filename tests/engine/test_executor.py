"""Running: steps are kept and renewed, feeds and fetches are what they seem, errors name the op, and fusing changes nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.program import Role


def network(optimizer: Any = None, classes: int = 5) -> tuple[fs.Program, fs.Program, fs.Variable]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x = layer.data("x", shape=["batch", 7])
        y = layer.data("y", shape=["batch", 1], dtype="int64")
        h = layer.fc(x, 11, activation="relu")
        loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, classes), y))
        (optimizer or fs.optimizer.SGD(0.1)).minimize(loss)
    return main, startup, loss


def feed(batch: int = 6, seed: int = 0) -> dict[str, np.ndarray]:
    rng = np.random.RandomState(seed)
    return {"x": rng.standard_normal((batch, 7)).astype("float32"), "y": rng.randint(0, 5, (batch, 1)).astype("int64")}


@pytest.fixture
def ready() -> tuple[fs.Program, fs.Executor, fs.Scope, fs.Variable]:
    main, startup, loss = network()
    executor, scope = fs.Executor(seed=3), fs.Scope()
    executor.run(startup, scope=scope)
    return main, executor, scope, loss


def test_it_learns_at_any_batch_size_without_being_compiled_again(ready: Any) -> None:
    main, executor, scope, loss = ready
    first = executor.run(main, feed(6), [loss], scope)[0]
    step = executor.step(main, [loss])
    for batch in (1, 6, 3, 0, 17):
        executor.run(main, feed(batch), [loss], scope)
    for _ in range(60):
        executor.run(main, feed(6), [loss], scope)
    assert executor.run(main, feed(6), [loss], scope)[0] < 0.5 * first
    assert executor.step(main, [loss]) is step


def test_a_changed_program_is_compiled_again(ready: Any) -> None:
    main, executor, scope, loss = ready
    executor.run(main, feed(), [loss], scope)
    with fs.program_guard(main):
        double = loss * 2.0
    a, b = executor.run(main, feed(), [loss, double], scope)
    np.testing.assert_allclose(b, 2 * a, rtol=1e-6)


def test_a_parameter_that_is_set_is_used(ready: Any) -> None:
    main, executor, scope, loss = ready
    executor.run(main, feed(), [loss], scope)
    for name in scope.names():
        if name.startswith("fc_1"):
            scope.set(name, np.zeros_like(scope.get(name)))
    np.testing.assert_allclose(executor.run(main, feed(), [loss], scope)[0], np.log(5), rtol=1e-6)


def test_two_scopes_do_not_touch_each_other(ready: Any) -> None:
    main, executor, scope, loss = ready
    other = fs.Scope()
    for name in scope.names():
        other.set(name, scope.get(name))
    a = [float(executor.run(main, feed(), [loss], scope)[0]) for _ in range(3)]
    b = [float(executor.run(main, feed(), [loss], other)[0]) for _ in range(3)]
    assert a == b


def test_what_was_fetched_and_fed_stays_as_it_was(ready: Any) -> None:
    main, executor, scope, loss = ready
    weight = main.parameters()[0]
    given = feed()
    kept = {k: v.copy() for k, v in given.items()}
    (before,) = executor.run(main, given, [weight.name], scope)
    copy = before.copy()
    executor.run(main, given, [loss], scope)
    np.testing.assert_array_equal(before, copy)
    for name, value in given.items():
        np.testing.assert_array_equal(value, kept[name])


def test_every_fetch_is_the_same_fused_and_op_by_op(ready: Any) -> None:
    main, executor, scope, _ = ready
    other = fs.Scope()
    for name in scope.names():
        other.set(name, scope.get(name))
    names = [v.name for v in main.all_variables() if v.kind.name == "LOD_TENSOR"]
    fused = executor.run(main, feed(), names, scope)
    plain = fs.Executor(check=True).run(main, feed(), names, other)
    for name, a, b in zip(names, fused, plain, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
    for name in names:  # one at a time, so that everything else may be fused away
        again = fs.Scope()
        for kept in scope.names():
            again.set(kept, other.get(kept))
        (a,) = executor.run(main, feed(seed=1), [name], again)
        again_plain = fs.Scope()
        for kept in scope.names():
            again_plain.set(kept, other.get(kept))
        (b,) = fs.Executor(check=True).run(main, feed(seed=1), [name], again_plain)
        np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6, err_msg=name)
        for kept in scope.names():
            np.testing.assert_allclose(again.get(kept), again_plain.get(kept), rtol=1e-5, atol=1e-6, err_msg=f"{kept} after fetching {name}")


@pytest.mark.parametrize("optimizer", [lambda: fs.optimizer.SGD(0.1), lambda: fs.optimizer.Momentum(0.1, 0.9), lambda: fs.optimizer.Adam(0.01)])
def test_large_products_are_fused_to_the_same_numbers(optimizer: Any) -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x = layer.data("x", shape=["batch", 9, 256])
        h = layer.fc(x, 192, activation="relu", flatten_last=1)
        h = layer.fc(h, 128, flatten_last=1)
        loss = layer.mean(h * h)
        optimizer().minimize(loss)
    start = fs.Scope()
    fs.Executor(seed=1).run(startup, scope=start)
    results = []
    for check in (False, True):
        scope, executor = fs.Scope(), fs.Executor(check=check)
        for name in start.names():
            scope.set(name, start.get(name))
        rng = np.random.RandomState(2)
        losses = [executor.run(main, {"x": rng.standard_normal((20, 9, 256)).astype("float32")}, [loss], scope)[0] for _ in range(3)]
        results.append((losses, {n: scope.get(n) for n in scope.names()}))
    np.testing.assert_allclose(results[0][0], results[1][0], rtol=1e-5)
    for name, value in results[0][1].items():
        # Adam divides by the gradient's own size, so that rounding shows where a gradient is nearly zero
        np.testing.assert_allclose(value, results[1][1][name], rtol=1e-3, atol=5e-4, err_msg=name)
        assert np.abs(value - results[1][1][name]).mean() < 1e-6


def test_ignored_rows_count_as_zeros_fused_too(ready: Any) -> None:
    main, executor, scope, loss = ready
    given = feed()
    given["y"][:4] = -100
    fused = executor.run(main, given, [loss], scope)[0]
    other_main, startup, other_loss = network()
    other = fs.Scope()
    plain = fs.Executor(check=True, seed=3)
    plain.run(startup, scope=other)
    np.testing.assert_allclose(fused, plain.run(other_main, given, [other_loss], other)[0], rtol=1e-6)
    for a, b in zip(scope.names(), other.names(), strict=True):
        np.testing.assert_allclose(scope.get(a), other.get(b), rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(
    ("change", "error", "says"),
    [
        (lambda f: f.pop("y"), fs.FeedError, "y (i64[batch, 1], described at test_executor.py"),
        (lambda f: f.update(z=f["x"]), fs.FeedError, "no such input"),
        (lambda f: f.update({"fc_0.w_0": f["x"]}), fs.FeedError, "a parameter or state"),
        (lambda f: f.update(x=f["x"][:, :5]), fs.FeedError, "dim 1 must be 7, not 5"),
        (lambda f: f.update(x=f["x"][0]), fs.FeedError, "2 dims"),
        (lambda f: f.update(x=f["x"][:3]), fs.FeedError, "batch, and another input or a parameter makes that 3"),
        (lambda f: f.update(x=f["x"].astype("float64") + 1e300), fs.FeedError, "must be fp32; fed is fp64 with 1e+300, which fp32 does not have"),
        (lambda f: f.update(x=f["x"].astype("int64")), fs.FeedError, "must be fp32; fed is int64: convert it with .astype('float32')"),
        (lambda f: f.update(y=f["y"].astype("float32")), fs.FeedError, "must be int64; fed is fp32"),
        (lambda f: f.update(x="words"), fs.FeedError, "x"),
        (lambda f: f.update(y=f["y"] + 50), fs.ExecutionError, "softmax_with_cross_entropy"),
    ],
)
def test_what_does_not_fit_is_refused_with_words(ready: Any, change: Any, error: Any, says: str) -> None:
    main, executor, scope, loss = ready
    before = {n: scope.get(n) for n in scope.names()}
    given = feed()
    change(given)
    with pytest.raises(error) as caught:
        executor.run(main, given, [loss], scope)
    assert says in str(caught.value)
    for name, value in before.items():
        np.testing.assert_array_equal(scope.get(name), value)


def test_a_guard_is_checked_when_values_are_fed() -> None:
    main = fs.Program()
    with fs.program_guard(main):
        x, y = layer.data("x", shape=["n", 3]), layer.data("y", shape=["m", 3])
        out = layer.concat([x, y], axis=1)
    assert [str(g.condition) for g in main.guards] == ["n == m"]
    a = np.ones((4, 3), "float32")
    assert fs.Executor().run(main, {"x": a, "y": a}, [out], fs.Scope())[0].shape == (4, 6)
    with pytest.raises(fs.GuardError, match="n = 4"):
        fs.Executor().run(main, {"x": a, "y": a[:2]}, [out], fs.Scope())


@pytest.mark.quick_cases("True", "fused")
@pytest.mark.parametrize("check", [False, True, "fused"])
def test_open_sizes_broadcast_forward_and_backward(check: Any) -> None:
    """Fed sizes of which one is 1 give what the same network gives that was described with these sizes."""

    def run(n: Any, m: Any, feed: dict[str, np.ndarray], scope: fs.Scope) -> list[Any]:
        main, startup = fs.Program(), fs.Program()
        with fs.program_guard(main, startup):
            x, y = layer.data("x", shape=[n, 3]), layer.data("y", shape=[m, 3])
            both = layer.relu(layer.fc(x, 4) + layer.fc(y, 4)) * layer.fc(y, 4)
            grads = [g for _, g in fs.append_backward(layer.mean(both))]
        if not scope.names():
            fs.Executor(seed=1).run(startup, scope=scope)
        return fs.Executor(check=check).run(main, feed, [both, *grads], scope)

    scope, rng = fs.Scope(), np.random.RandomState(0)
    for n, m in ((4, 4), (1, 5), (5, 1), (1, 1), (1, 0), (0, 1)):
        feed = {"x": rng.standard_normal((n, 3)).astype("float32"), "y": rng.standard_normal((m, 3)).astype("float32")}
        for a, b in zip(run("n", "m", feed, scope), run(n, m, feed, scope), strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-6, equal_nan=True)
    with pytest.raises(fs.GuardError, match=r"required: .* or one of them is 1\n.*n = 3"):
        run("n", "m", {"x": np.ones((3, 3), "float32"), "y": np.ones((2, 3), "float32")}, scope)


def test_a_parameter_without_a_value_is_named(ready: Any) -> None:
    main, executor, _, loss = ready
    with pytest.raises(fs.ExecutionError, match=r"not initialised: fc_0\.w_0"):
        executor.run(main, feed(), [loss], fs.Scope())


def test_checked_running_names_the_op_that_made_the_first_nan() -> None:
    main = fs.Program()
    with fs.program_guard(main):
        x = layer.data("x", shape=["n"])
        out = layer.mean(layer.sqrt(x) * 2.0)
    with pytest.raises(fs.ExecutionError, match=r"sqrt.*a NaN.*test_executor.py"):
        fs.Executor(check=True).run(main, {"x": np.array([1.0, -1.0], "float32")}, [out], fs.Scope())


def test_scopes_are_freed_with_their_last_user(ready: Any) -> None:
    import gc
    import weakref

    main, executor, scope, loss = ready
    other = fs.Scope()
    for name in scope.names():
        other.set(name, scope.get(name))
    executor.run(main, feed(), [loss], other)
    executor.run(main, feed(), [loss], scope)
    gone = weakref.ref(other)
    del other
    gc.collect()
    assert gone() is None


@pytest.mark.cuda
def test_a_gpu_gives_the_same_numbers() -> None:
    import torch

    if not torch.cuda.is_available():
        pytest.skip("there is no CUDA device here")
    main, startup, loss = network(fs.optimizer.Adam(0.01))
    start = fs.Scope()
    fs.Executor(seed=1).run(startup, scope=start)
    results = []
    for device in ("cpu", "cuda"):
        scope, executor = fs.Scope(), fs.Executor(device=device)
        for name in start.names():
            scope.set(name, start.get(name))
        results.append([float(executor.run(main, feed(seed=k), [loss], scope)[0]) for k in range(5)])
    np.testing.assert_allclose(results[0], results[1], rtol=1e-4)


def test_threads_are_chosen_by_the_work(ready: Any) -> None:
    import torch

    main, executor, scope, loss = ready
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        _check_threads(main, executor, scope, loss)
    finally:
        torch.set_num_threads(before)


def _check_threads(main: fs.Program, executor: fs.Executor, scope: fs.Scope, loss: fs.Variable) -> None:
    import torch

    wide, startup = fs.Program(), fs.Program()
    with fs.program_guard(wide, startup):
        out = layer.fc(layer.data("x", shape=["batch", 512]), 512)
    other = fs.Scope()
    executor.run(startup, scope=other)
    executor.run(main, feed(), [loss], scope)
    assert {plan.threads for plan in executor.step(main, [loss]).plan_cache.values()} == {1}
    executor.run(wide, {"x": np.zeros((1, 512), "float32")}, [out], other)
    executor.run(wide, {"x": np.zeros((64, 512), "float32")}, [out], other)
    assert [plan.threads for plan in executor.step(wide, [out]).plan_cache.values()] == [1, 2]
    frozen = fs.Executor(frozen=True)
    deep, startup = fs.Program(), fs.Program()
    with fs.program_guard(deep, startup):
        out = layer.fc(layer.fc(layer.data("x", shape=["batch", 512]), 1024), 1024)
    for program, fetch, of in ((wide, fetch_of(wide), other), (deep, fetch_of(deep), fs.Scope())):
        if program is deep:
            frozen.run(startup, scope=of)
        frozen.run(program, {"x": np.zeros((1, 512), "float32")}, [fetch], of)
    found = [[plan.threads for plan in frozen.step(p, [fetch_of(p)]).plan_cache.values()] for p in (wide, deep)]
    assert found == [[1], [2]], "a row of a frozen network takes as long as to read its weights"
    assert torch.get_num_threads() == 2, "the caller's own setting is kept"


def fetch_of(program: fs.Program) -> str:
    return next(iter(program.global_block.ops[-1].output_names()))


def test_a_weight_that_is_read_before_its_update_is_read_as_it_was() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        loss = layer.mean(layer.fc(layer.data("x", shape=["batch", 3]), 2))
        pairs = fs.append_backward(loss)
        weight = main.parameters()[0]
        before = weight * 1.0  # between the gradient and the update
        fs.optimizer.SGD(0.5).apply(pairs)
    executor, scope = fs.Executor(seed=1), fs.Scope()
    with fs.program_guard(main, startup):
        executor.run(startup, scope=scope)
    old = scope.get(weight.name)
    (seen,) = executor.run(main, {"x": np.ones((4, 3), "float32")}, [before], scope)
    np.testing.assert_array_equal(seen, old)
    np.testing.assert_allclose(scope.get(weight.name), old - 0.25, rtol=1e-5)


def test_a_rectifier_leaves_what_it_only_looks_at_as_it_was() -> None:
    main = fs.Program()
    with fs.program_guard(main):
        x = layer.data("x", shape=["batch", 6])
        w = layer.create_parameter([2, 3], fs.FP32, initializer=layer.Constant(-1.0))
        seen = [layer.relu(x), layer.relu(layer.reshape(x, [0, 2, 3])), layer.relu(w), layer.relu(layer.transpose(w, [1, 0]))]
    given = np.linspace(-1, 1, 24, dtype="float32").reshape(4, 6)
    kept, scope = given.copy(), fs.Scope()
    scope.set(w.name, np.full((2, 3), -1.0, "float32"))
    values = fs.Executor().run(main, {"x": given}, seen, scope)
    np.testing.assert_array_equal(values[0], np.maximum(kept, 0))
    np.testing.assert_array_equal(given, kept)
    np.testing.assert_array_equal(scope.get(w.name), np.full((2, 3), -1.0, "float32"))


def divided_by_another_tool(share: float) -> tuple[fs.Program, fs.Program, str]:
    """A training program as PaddlePaddle's collective transpiler leaves it: its loss's gradient times a share, and gradients summed over ranks."""
    x, y = layer.data("x", ["batch", 3]), layer.data("y", ["batch", 1])
    loss = layer.mse_loss(layer.fc(x, 1), y)
    fs.optimizer.SGD(0.1).minimize(loss)
    program = fs.load_program(fs.default_main_program().to_bytes())
    block = program.global_block
    at, first = next((i, op) for i, op in enumerate(block.ops) if op.role == Role.BACKWARD | Role.LOSS)
    name = next(iter(first.output_names()))
    block.append_op("scale", {"X": name}, {"Out": name}, {"scale": share}, role=Role.BACKWARD, index=at + 1)
    for parameter in [v.name for v in program.parameters()]:
        at = max(i for i, op in enumerate(block.ops) if op.role & Role.BACKWARD) + 1
        gradient = parameter + "@GRAD"
        block.append_op("c_allreduce_sum", {"X": gradient}, {"Out": gradient}, {"ring_id": 0}, role=Role.BACKWARD, index=at)
    return program, fs.default_startup_program(), loss.name


@pytest.mark.parametrize("share", [1 / 2, 1 / 3, 1.0, 0.7])
def test_a_program_that_was_divided_for_other_ranks_is_refused(share: float) -> None:
    program, startup, loss = divided_by_another_tool(share)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    feed = {"x": np.ones((2, 3), "float32"), "y": np.ones((2, 1), "float32")}
    if share in (1.0, 0.7):  # of one rank, or no share of a whole number of ranks
        executor.run(program, feed, [loss], scope)
        return
    with pytest.raises(fs.ExecutionError, match=f"the program is for {round(1 / share)} ranks: it multiplies the gradient of its loss.*this run has 1"):
        executor.run(program, feed, [loss], scope)
