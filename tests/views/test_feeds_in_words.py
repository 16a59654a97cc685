"""Which sizes the inputs of a program take: said in words, and compared with what runs."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from support.some import one_in

import foreshape as fs
from foreshape import layer
from foreshape.core.dims import Size, ceildiv, maximum, symbol
from foreshape.core.spec import FETCH_LIST, Spec
from foreshape.language.conditions.search import MAX_SEARCH, find
from foreshape.language.conditions.solve import MAX_STEPS, solve
from foreshape.language.conditions.steps import WorkBudget
from foreshape.language.operator.require import Condition


def detector(x: Any) -> Any:
    """A text detector in small: five halvings, three of them summed upwards again, all of them side by side, and the image's size at the end."""
    at = layer.conv2d(x, 2, 3, stride=2, padding=1)
    levels: list[Any] = []
    for _ in range(4):
        at = layer.conv2d(at, 2, 3, stride=2, padding=1)
        levels.append(at)
    tops = [levels[3]]
    for level in (levels[2], levels[1], levels[0]):
        tops.append(level + layer.interpolate(tops[-1], scale=2, mode="nearest"))
    wide = [layer.interpolate(t, scale=2 ** (3 - k), mode="nearest") if k < 3 else t for k, t in enumerate(tops)]
    out = layer.conv2d(layer.concat(wide, axis=1), 2, 3, padding=1)
    return layer.conv2d_transpose(layer.conv2d_transpose(out, 2, 2, stride=2), 1, 2, stride=2)


def as_a_file_has_it(program: fs.Program) -> fs.Program:
    """The same with -1 for its open sizes, as programs have that PaddlePaddle wrote."""
    return fs.load_program(program.to_bytes())


def described(network: Any, shape: list[Any], name: str = "x") -> tuple[fs.Program, fs.Program, Any]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        out = network(layer.data(name, shape=shape))
    return main, startup, out


def runs(main: fs.Program, startup: fs.Program, out: Any, **shapes: list[int]) -> bool:
    """Whether sizes run."""
    scope, executor = fs.Scope(), fs.Executor(seed=0)
    executor.run(startup, scope=scope)
    try:
        executor.run(main, {n: np.ones(s, "float32") for n, s in shapes.items()}, out, scope)
    except (fs.GuardError, fs.FeedError):
        return False
    return True


def test_a_detector_in_words() -> None:
    main, startup, out = described(detector, [-1, 3, "h", "w"])
    feeds = main.feeds
    assert str(feeds) == "x: [batch, 3, h, w]; h and w: multiples of 32, from 32 (also 1 to 4, and up to 3 less than these)"
    assert feeds["x"].conditions["batch"] == "any"
    assert feeds.smallest == {"x": [1, 3, 32, 32]} and feeds["x"].smallest == [1, 3, 32, 32]
    assert feeds.nearest(x=[1, 3, 700, 500]) == {"x": [1, 3, 704, 512]} == feeds.nearest({"x": [1, 3, 700, 500]})
    assert feeds.nearest(x=[7, 3, 61, 3]) == {"x": [7, 3, 61, 3]}, "what is taken stays"
    scope, executor = fs.Scope(), fs.Executor(seed=0)
    executor.run(startup, scope=scope)
    for high in (*range(1, 36), 60, 61, 63, 64, 65, 96):
        try:
            executor.run(main, {"x": np.ones([1, 3, high, 32], "float32")}, out, scope)
        except fs.GuardError as error:
            assert not feeds.takes(x=[1, 3, high, 32]), high
            near = feeds.nearest(x=[1, 3, high, 32])
            assert near is not None and f"nearest to {high}x32: {near['x'][2]}x32" in str(error)
        else:
            assert feeds.takes(x=[1, 3, high, 32]), high


def test_sizes_without_names_are_called_after_what_they_are_for() -> None:
    def network(x: Any) -> Any:
        return layer.pool2d(layer.conv2d(x, 2, 3, stride=2), 2, stride=2)

    text = str(described(network, ["x.0", 3, "x.2", "x.3"])[0])
    assert str(fs.Program.parse(text).feeds) == "x: [batch, 3, height, width]; height and width: at least 2"
    assert str(described(lambda x: layer.relu(x), ["x.0", "x.1"])[0].feeds) == "x: [batch, x.1]"


def test_a_refused_feed_says_the_sizes_and_the_nearest() -> None:
    main, startup, out = described(detector, ["x.0", 3, "x.2", "x.3"])
    scope, executor = fs.Scope(), fs.Executor()
    executor.run(startup, scope=scope)
    said = r"x: \[batch, 3, height, width\]; height and width: multiples of 32, from 32 .*; nearest to "
    with pytest.raises(fs.GuardError, match=said + "70x50: 64x64$"):
        executor.run(main, {"x": np.zeros([1, 3, 70, 50], "float32")}, out, scope)
    with pytest.raises(fs.FeedError, match=said + r"\[1, 1, 70, 64\]: \[1, 3, 64, 64\]$"):
        executor.run(main, {"x": np.zeros([1, 1, 70, 64], "float32")}, out, scope)
    with pytest.raises(fs.FeedError, match=r"x must have 4 dims(.|\n)*height and width: multiples of 32, from 32 [^;]*$"):
        executor.run(main, {"x": np.zeros([3, 70, 64], "float32")}, out, scope)


def test_inputs_that_belong_together() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        a, b, c = layer.data("a", shape=["n", 4]), layer.data("b", shape=["m", 4]), layer.data("c", shape=["k", "n"])
        out = layer.concat([layer.concat([a, b], axis=0), layer.matmul(c, b)], axis=1)
    feeds = main.feeds
    assert feeds["a"].words == "a: [n, 4]" and feeds["b"].words == "b: [m, 4]; m: equal to n"
    assert feeds["c"].words == "c: [k, n]; k: equal to 2*n"
    assert feeds.nearest(a=[5, 4], b=[3, 4]) == {"a": [5, 4], "b": [5, 4], "c": [10, 5]}
    assert feeds.nearest(c=[9, 4]) == {"a": [5, 4], "b": [5, 4], "c": [10, 5]}
    assert feeds.smallest == {"a": [1, 4], "b": [1, 4], "c": [2, 1]}
    assert runs(main, startup, out, a=[5, 4], b=[5, 4], c=[10, 5]) and feeds.takes(a=[5, 4], b=[5, 4], c=[10, 5])
    assert not runs(main, startup, out, a=[5, 4], b=[5, 4], c=[9, 5]) and not feeds.takes(a=[5, 4], b=[5, 4], c=[9, 5])
    with pytest.raises(fs.FeedError, match="'d' is no input of the program; it has a, b, c"):
        feeds.nearest(d=[1])
    with pytest.raises(fs.FeedError, match=r"a has 2 dims, a: \[n, 4\]; given is \[3\]"):
        feeds.takes(a=[3])


def test_what_cannot_be_solved_is_shown_shortly_with_the_smallest_sizes() -> None:
    def network(x: Any) -> Any:
        return layer.reshape(x, [-1, 12])

    main, startup, out = described(network, ["n", "m"])
    assert main.feeds.joint == ["m*n: a multiple of 12"]
    assert main.feeds.smallest == {"x": [4, 3]}
    assert main.feeds.nearest(x=[5, 7]) == {"x": [6, 8]}
    for sizes in ([3, 4], [5, 7], [6, 6], [24, 1]):
        assert runs(main, startup, out, x=sizes) == main.feeds.takes(x=sizes) == (sizes[0] * sizes[1] % 12 == 0)


def test_dims_that_are_formulas() -> None:
    main, _, _ = described(lambda x: layer.relu(x), ["n", symbol("n") - 3, symbol("m") // symbol("n")])
    feeds = main.feeds
    assert feeds["x"].axes == ["n", "n - 3", "m // n"] and feeds["x"].words == "x: [n, n - 3, m // n]; n: at least 3"
    assert feeds.smallest == {"x": [3, 0, 0]} and feeds.takes(x=[4, 1, 0]) is False, "nothing says what m is"
    main, _, _ = described(lambda x: layer.relu(x), ["n", 2 * symbol("n") - 3])
    assert main.feeds.nearest(x=[5, 9]) == {"x": [5, 7]} and main.feeds.takes(x=[5, 7]) and not main.feeds.takes(x=[5, 9])


step = st.one_of(
    st.tuples(st.just("conv"), st.sampled_from([1, 2, 3, 5]), st.integers(1, 3), st.integers(0, 2)),
    st.tuples(st.just("pool"), st.sampled_from([2, 3]), st.integers(1, 3), st.integers(0, 1)),
    st.tuples(st.just("up"), st.sampled_from([2, 3])),
    st.tuples(st.just("join"), st.integers(0, 3)),
    st.tuples(st.just("beside"), st.integers(0, 3)),
)


def drawn(steps: list[Any]) -> Any:
    def network(x: Any) -> Any:
        made = [x]
        for name, *of in steps:
            at = made[-1]
            if name == "conv":
                made.append(layer.conv2d(at, 1, of[0], stride=of[1], padding=of[2]))
            elif name == "pool":
                made.append(layer.pool2d(at, of[0], stride=of[1], padding=of[2]))
            elif name == "up":
                made.append(layer.interpolate(at, scale=of[0], mode="nearest"))
            elif name == "join":
                made.append(at + made[max(len(made) - 2 - of[0], 0)])
            else:
                both = layer.concat([at, made[max(len(made) - 2 - of[0], 0)]], axis=1)
                made.append(layer.conv2d(both, 1, 1))
        return made[-1]

    return network


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(step, min_size=1, max_size=6), st.lists(st.integers(1, 70), min_size=8, max_size=8))
def test_random_networks_run_with_what_they_take_and_refuse_the_rest(steps: list[Any], sizes: list[int]) -> None:
    try:
        main, startup, out = described(drawn(steps), ["n", 1, "h", 6])
    except fs.ShapeError:
        return  # it fits no size
    feeds = main.feeds
    scope, executor = fs.Scope(), fs.Executor(seed=0)
    executor.run(startup, scope=scope)
    near = [feeds.nearest(x=[1, 1, s, 6]) for s in sizes[:2]]
    for size in (*sizes, *(n["x"][2] for n in near if n is not None)):
        if size > 500:
            continue
        try:
            executor.run(main, {"x": np.ones([1, 1, size, 6], "float32")}, out, scope)
        except fs.GuardError:
            assert not feeds.takes(x=[1, 1, size, 6]), (size, str(feeds))
        else:
            assert feeds.takes(x=[1, 1, size, 6]), (size, str(feeds))
            solution = feeds._solution
            assert size in solution.sizes["h"] if "h" in solution.sizes else True


def condition(left: Size, relation: str, right: Size) -> Condition:
    return Condition(left, relation, right, "must hold")


def test_facts_of_symbols_shorten_what_is_left() -> None:
    a, b = symbol("a"), symbol("b")
    found = solve([condition(1, "<=", a), condition(1, "<=", b), condition(1, "<=", a * b), condition(a + b, "<=", a * b * 2)], ["a", "b"])
    assert found.joint == [], "1 <= a*b follows, and so does a + b <= 2*a*b"
    found = solve([condition(2, "<=", a), condition(maximum(a, 2) * 5, "divides", b * a)], ["a", "b"])
    assert [str(c) for c in found.joint] == ["5*a divides a*b"]


def test_conditions_that_contradict_each_other_are_said_to() -> None:
    a, b = symbol("a"), symbol("b")
    found = solve([condition(a, "==", b + 1), condition(ceildiv(a, 2), "<=", ceildiv(b, 2) - 1)], ["a", "b"])
    assert not found.possible and find(found, {}) is None


BOMBS: dict[str, Callable[[], list[Any]]] = {
    "thousands of conditions": lambda: [condition(k + 1, "<=", ceildiv(symbol(f"s{k % 50}") * (k + 3), k % 7 + 2)) for k in range(3000)],
    "a chain of equalities": lambda: [condition(symbol(f"s{k}"), "==", symbol(f"s{k + 1}") * 2 + 1) for k in range(1000)],
    "sums that grow": lambda: [condition(symbol(f"s{k}"), "==", symbol(f"s{k + 1}") + symbol(f"s{k + 2}")) for k in range(1000)],
    "huge constants": lambda: [condition(symbol("s0") % (2**61 + k), "==", symbol("s0") // 3 % (2**60 - k)) for k in range(800)],
    "large periods": lambda: [condition(symbol("s0") % (9973 + 2 * k), "<=", 2 + k) for k in range(800)],
    "products of all": lambda: [condition(10**15 + k, "divides", symbol(f"s{k}") * symbol(f"s{k + 1}")) for k in range(1000)],
    "deep minima": lambda: [condition(maximum(symbol("s0") // (k + 2), symbol("s1") - k), "<=", symbol("s2") % (k + 2)) for k in range(1000)],
}


@pytest.mark.quick_cases("large periods")
@pytest.mark.parametrize("name", one_in(5, BOMBS))
def test_steps_of_solving_and_searching_are_bounded(name: str) -> None:
    steps, search = WorkBudget(MAX_STEPS), WorkBudget(MAX_SEARCH)
    bomb = BOMBS[name]()
    found = solve(bomb, [f"s{k}" for k in range(1003)], steps)
    assert steps.taken <= MAX_STEPS
    values = find(found, {"s0": 100}, search)
    assert search.taken <= MAX_SEARCH
    if values is not None:
        assert all(c.answer(values) is True for c in bomb if c not in found.hard)


def test_an_op_that_no_fetched_value_needs_demands_nothing() -> None:
    x = layer.data("x", shape=[-1, 4])
    layer.reshape(x, [-1, 7])  # refuses most sizes
    out = layer.relu(x)
    program = fs.default_main_program()
    block = program.global_block
    feed = np.ones((2, 4), "float32")
    assert not program.feeds.takes(x=[2, 4])  # it could be fetched
    assert fs.Executor().run(program, {"x": feed}, [out], fs.Scope())[0].shape == (2, 4)
    block.append_op("fetch", {"X": out}, {"Out": block.create_variable("fetch", Spec(FETCH_LIST, None, None))}, {"col": 0})
    assert program.feeds.takes(x=[2, 4]) and program.feeds.smallest == {"x": [1, 4]}


def test_a_copy_of_a_program_is_another_program() -> None:
    x = layer.data("x", shape=["batch", 4])
    program = fs.default_main_program()
    for other in (copy.copy(program), copy.deepcopy(program)):
        assert str(other) == str(program) and other.var("x").block.program is other
        other.global_block.append_op("relu", {"X": "x"}, {"Out": "y"})
        assert x.block is program.global_block and not program.global_block.ops


@pytest.mark.parametrize("scale", [1 / 3, 7 / 3, 0.26, 1 / 9.7, 0.5])
def test_sizes_that_a_scale_makes_too_small_are_refused(scale: float) -> None:
    """As formulas where single precision allows, else by inferring the network at the sizes."""
    x = layer.data("x", ["batch", 1, "height", "width"])
    out = layer.pool2d(layer.interpolate(x, scale=scale, mode="nearest"), 3, stride=1)
    program, executor, scope = fs.default_main_program(), fs.Executor(), fs.Scope()
    runs: list[int] = []
    for size in range(1, 40):
        with contextlib.suppress(fs.ForeshapeError):
            executor.run(program, np.zeros((1, 1, size, size), "float32"), [out], scope)
            runs.append(size)
    assert [size for size in range(1, 40) if program.feeds.takes(x=[1, 1, size, size])] == runs and len(runs) < 39
    assert program.feeds.smallest == {"x": [1, 1, runs[0], runs[0]]}
    assert program.feeds.nearest(x=[2, 1, 1, 39]) == {"x": [2, 1, runs[0], 39]}
