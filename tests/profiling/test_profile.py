"""Where the time of a step goes: which calls there are, what each stands for, and that a step is afterwards what it was."""

from __future__ import annotations

from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.operator.registry import layer_name
from foreshape.machine.kernels.onednn_library import library
from foreshape.runtime.profiling import profiler
from foreshape.transforms.passes import for_test


def images(*dims: int) -> Any:
    return np.random.default_rng(0).standard_normal(dims).astype("float32")


def network() -> tuple[fs.Program, fs.Variable, fs.Scope]:
    """A small network for use, its result, and its values."""
    x = layer.data("x", shape=["batch", 3, 16, 16])
    y = layer.relu(layer.batch_norm(layer.conv2d(x, 8, 3, padding=1, bias=False)))
    y = layer.relu(layer.batch_norm(layer.conv2d(y, 8, 3, padding=1, bias=False)) + y)
    out = layer.fc(layer.flatten(layer.pool2d(y, 2, pool_type="avg", stride=2)), 5)
    scope = fs.Scope()
    fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
    return for_test(fs.default_main_program()), out, scope


def kinds(found: fs.Profile) -> list[str]:
    return sorted(kind for c in found.calls for kind in c.what.split(" + "))


def test_each_op_of_a_training_step_is_in_one_call_and_every_run_updates() -> None:
    x, y = layer.data("x", shape=["batch", 7]), layer.data("y", shape=["batch", 1], dtype="int64")
    loss = layer.mean(layer.softmax_with_cross_entropy(layer.fc(layer.fc(x, 11, activation="relu"), 5), y))
    fs.optimizer.SGD(0.1).minimize(loss)
    fs.Executor(seed=0).run(fs.default_startup_program())
    feed = {"x": images(6, 7), "y": np.zeros((6, 1), "int64")}
    executor = fs.Executor()
    (before,) = executor.run(feed=feed, fetch=loss)
    found = fs.profile(feed=feed, fetch=[loss], executor=executor, runs=4)
    said = {kind for c in found.calls for kind in c.what.split(" + ")}
    there = {layer_name(op.type) for op in fs.default_main_program().global_block.ops if op.type != "fill_constant"}
    assert said - {"fill_constant"} <= there
    assert {"fc", "softmax_with_cross_entropy", "softmax_with_cross_entropy_grad", "sgd"} <= said
    assert [c.what.endswith("fc_grad + sgd") for c in found.calls if c.result == "fc_0.w_0"] == [True], "one call makes the gradient and the update"
    assert sum(c.work or 0 for c in found.calls) == 6 * 7 * 11 * 2 + 6 * 11 * 5 * 3, "of the input there is no gradient"
    assert all(c.seconds >= 0 and c.calls == 1 for c in found.calls)
    assert found.sizes == {"batch": 6}
    assert found.runs == 4
    scope = fs.Scope()
    fs.Executor(seed=0).run(fs.default_startup_program(), scope=scope)
    plain = fs.Executor()
    losses = [plain.run(feed=feed, fetch=loss, scope=scope)[0] for _ in range(1 + 3 + 2 * 4 + 1)]
    assert losses[0] == pytest.approx(before, rel=1e-5)
    (after,) = executor.run(feed=feed, fetch=loss)
    assert after == pytest.approx(losses[-1], rel=1e-4), "the runs are made with clocks and without, after three that do not count"


@pytest.mark.parametrize("frozen", [False, True])
def test_what_follows_a_product_is_said_with_it_and_what_it_multiplies_is_counted(frozen: bool) -> None:
    program, out, scope = network()
    executor = fs.Executor(frozen=frozen)
    found = fs.profile(program, {"x": images(2, 3, 16, 16)}, [out.name], scope, executor=executor, runs=2)
    products = [c for c in found.calls if c.work]
    assert [c.work for c in products] == [2 * 8 * 256 * 27, 2 * 8 * 256 * 72, 2 * 512 * 5]
    assert [c.what.split(" + ")[0] for c in products] == ["conv2d", "conv2d", "fc"]
    if frozen:
        assert products[0].what == "conv2d + batch_norm + relu"
        assert products[0].dims == "[2, 8, 16, 16]"
        assert set(products[1].what.split(" + ")) == {"conv2d", "batch_norm", "add", "relu"}
    if frozen and library() is not None:
        (series,) = [c for c in found.calls if c.what.startswith("the call of")]
        assert not series.work
        assert all(c.kernel for c in products[:2])
    ops = sorted(layer_name(op.type) for op in program.global_block.ops)
    said = [kind for c in found.calls for kind in c.what.split(" + ") if not kind.startswith(("the call", "brought"))]
    assert set(said) <= set(ops)
    assert found.seconds > 0
    assert found.best > 0


def test_the_step_is_what_it_was() -> None:
    program, out, scope = network()
    feed = {"x": images(2, 3, 16, 16)}
    executor = fs.Executor(frozen=True)
    (before,) = executor.run(program, feed, [out.name], scope)
    function = executor.step(program, [out.name]).bind(scope).function
    code, names = function.__code__, set(function.__globals__)
    fs.profile(program, feed, [out.name], scope, executor=executor, runs=1)
    (after,) = executor.run(program, feed, [out.name], scope)
    np.testing.assert_array_equal(before, after)
    assert executor.step(program, [out.name]).bind(scope).function is function
    assert function.__code__ is code
    assert set(function.__globals__) == names
    with pytest.raises(fs.FeedError):
        fs.profile(program, {"x": images(2, 4, 16, 16)}, [out.name], scope, executor=executor)
    assert function.__code__ is code


def test_what_a_loop_calls_is_counted_in_each_round_and_not_twice() -> None:
    x = layer.data("x", shape=["batch", 4])
    count, limit = layer.fill_constant([1], "int64", 0), layer.fill_constant([1], "int64", 5)
    _, total = layer.while_loop(
        lambda at, of: layer.less_than(at, limit), lambda at, of: [at + 1, layer.tanh(layer.matmul(of, of, transpose_y=True)) @ of], [count, x]
    )
    found = fs.profile(feed={"x": images(3, 4)}, fetch=[total], runs=3)
    inside = {c.what: c.calls for c in found.calls if c.calls > 1}
    assert inside["tanh"] == inside["less_than"] == 5
    (around,) = [c for c in found.calls if c.what.split(" + ")[-1] == "while_loop"]
    within = sum(c.seconds for c in found.calls if c.calls == 5)
    assert within > 0
    assert around.seconds + within <= found.seconds


def test_it_is_shown_on_one_screen_and_whole() -> None:
    program, out, scope = network()
    found = fs.profile(program, {"x": images(2, 3, 16, 16)}, [out.name], scope, runs=1)
    many = fs.Profile(found.calls * 200, found.step, 1, found.sizes, 1, found.best)
    assert len(repr(many).splitlines()) <= 40
    assert max(map(len, str(many).splitlines())) <= 160
    assert len(str(many).splitlines()) > len(many.calls)
    assert max(map(len, many.text(60).splitlines())) <= 60
    assert "1 run," in repr(found)
    assert "batch = 2" in repr(found)
    html = many._repr_html_()
    assert html.count("<tr") < 600
    assert "conv2d" in html
    assert [c.seconds for c in found.slowest()] == sorted((c.seconds for c in found.calls), reverse=True)
    assert sum(s for _, s, _ in found.by_type()) == pytest.approx(found.seconds)


def test_what_a_profile_cannot_be_of_is_refused() -> None:
    program, out, scope = network()
    feed = {"x": images(2, 3, 16, 16)}
    with pytest.raises(fs.ExecutionError, match="runs must be"):
        fs.profile(program, feed, [out.name], scope, runs=0)
    with pytest.raises(fs.ExecutionError, match="does not check what it runs"):
        fs.profile(program, feed, [out.name], scope, executor=fs.Executor(check=True))


@pytest.mark.parametrize("fails", [False, True])
def test_the_live_step_is_not_touched(fails: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    program, out, scope = network()
    executor, feed = fs.Executor(frozen=True), {"x": images(2, 3, 16, 16)}
    executor.run(program, feed, [out.name], scope)
    step = executor.step(program, [out.name])
    bound = step.bind(scope)
    function, code, names = bound.function, bound.function.__code__, dict(bound.function.__globals__)
    clock = profiler._StepClock
    during: list[Any] = []

    def begin(self: Any, usual: Any = clock.begin) -> None:
        during.append((step.bind(scope).function, function.__code__, dict(function.__globals__)))
        if fails:
            raise KeyboardInterrupt
        usual(self)

    monkeypatch.setattr(clock, "begin", begin)
    with pytest.raises(KeyboardInterrupt) if fails else nullcontext():
        fs.profile(program, feed, [out.name], scope, executor=executor, runs=2)
    assert during and all(other is not function and of is code and there == names for other, of, there in during)
    assert step.bind(scope) is bound


def test_a_profile_of_nothing_and_of_no_program_is_refused() -> None:
    out = layer.fc(layer.data("x", ["batch", 4]), 3)
    feed = {"x": images(2, 4)}
    with pytest.raises(fs.ExecutionError, match="this one computes nothing: give variables as fetch="):
        fs.profile(feed=feed)
    for call in (fs.profile, fs.Executor().run):
        with pytest.raises(fs.ExecutionError, match=rf"what is run must be a Program; seen .*: give it as fetch=\[{out.name}\]"):
            call(out, feed)  # type: ignore[operator]
