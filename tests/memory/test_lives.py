"""What a step holds while it runs against its plan, on every program of PaddlePaddle that is here; and proofs that nothing reads what
was given away: with what is freed filled with a pattern, with and without memory taken over, fused and op by op, all is the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import cache
from typing import Any

import numpy as np
import pytest
from support.observed import Moment, Observed, alive, observe, planned, planned_places
from support.proofs import X, check_bytes, check_places, check_ways, data, is_same, proved, small
from support.replayed import NAMES, SLOW, replayed, run
from support.some import is_quick

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.call_memory import number
from foreshape.compiler.memory import liveness
from foreshape.compiler.memory.records import WORKSPACE
from foreshape.core.spec import FLOATING, LOD_TENSOR_ARRAY, SELECTED_ROWS
from foreshape.language.ops import NOT_DIFFERENTIABLE, Operator, operand, result
from foreshape.language.program.current import region

EVERY = [pytest.param(n, marks=pytest.mark.long) if n in SLOW or at % 2 else n for at, n in enumerate(NAMES)]
NEAR, BLOCKS, LISTS = 1.05, 2.0, 2.5
"""How far a plan may be above what is held at most: of a program of ops, of one that runs blocks, which are bounded, and of one that selects one of
two lists, of which both are counted."""


@cache
def seen(name: str) -> Observed:
    return observe(replayed(name))


# --- what is held


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", EVERY)
def test_at_no_op_more_is_held_than_planned(name: str) -> None:
    of = seen(name)
    check_bytes(of)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", EVERY)
def test_the_planned_peak_is_the_most_that_is_held(name: str) -> None:
    of = seen(name)
    assert of.ran is not None
    held = max((m.total for m in of.moments), default=0)
    most = max((planned(of, m) - unread(of, m) for m in of.moments), default=0)
    assert held <= of.ran.plan.lower_bound(**of.symbols)
    blocks = len(of.ran.plan.program.blocks) > 1
    sparse = any(v.kind is SELECTED_ROWS for v in of.ran.plan.program.all_variables())  # of which as many rows as ids are planned
    selecting = [op for op in of.ran.plan.program.all_ops() if op.type == "select_input"]
    lists = any(v.kind is LOD_TENSOR_ARRAY for op in selecting for v in op.input_variables())
    bound = LISTS if lists else BLOCKS if blocks or sparse else NEAR
    assert held <= most <= held * bound, f"at most {held} bytes are held, and {most} are planned without workspace"


def unread(of: Observed, moment: Moment) -> int:
    """The bytes of results that nothing reads, which were there while the kernel ran."""
    place, held = planned_places(of, moment)[-1], moment.held[-1]
    there = {id(place.live.places.get(h.value)) for h in held}
    gone = [r for r in alive(place) if r.first == r.last and r.inner is None and r.what is not WORKSPACE and id(r) not in there]
    return sum(number(r.size, of.symbols) for r in gone)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", EVERY)
def test_every_value_lives_in_a_record_that_is_as_large_and_its_own(name: str) -> None:
    check_places(seen(name))


# --- what is read


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in SLOW or not is_quick(n, 5) else n for n in NAMES])
def test_two_steps_are_the_same_in_every_way_to_run_them(name: str) -> None:
    check_ways(replayed(name))


# --- what is safe

ONE = 1 / (1 + np.exp(-X))
"""The sigmoid of X."""


def taken(fetch: list[Any]) -> list[str]:
    """The types of the ops that write into the memory of an argument."""
    live = run(small(fetch, {"x": X}), steps=1)
    return [i.op.type for i in live.emitted.lowered.calls if i.into is not None]


def weight(name: str = "w", rows: Sequence[int] = ()) -> Any:
    return layer.create_parameter([*rows, 4], fs.FP32, layer.ParamAttr(name=name))


def repeated(rounds: int, change: Callable[[Any], Any], start: Any) -> Any:
    """What a loop makes of a value in so many rounds."""
    zero, limit = layer.fill_constant([1], "int64", 0), layer.fill_constant([1], "int64", rounds)
    return layer.while_loop(lambda i, h: layer.less_than(i, limit), lambda i, h: [i + 1, change(h)], [zero, start])[1]


def test_what_is_fed_or_fetched_stays() -> None:
    a = layer.sigmoid(data())
    b = layer.tanh(a)
    c = layer.exp(b)
    assert taken([c]) == ["tanh", "exp"] and taken([a, c]) == ["exp"] and taken([b, c]) == ["tanh"] and taken([a, b, c]) == []
    for fetch in ([c], [a, c], [b, c], [a, b, c]):
        want = {a.name: ONE, b.name: np.tanh(ONE), c.name: np.exp(np.tanh(ONE))}
        for variable, got in zip(fetch, proved(fetch), strict=True):
            np.testing.assert_allclose(got, want[variable.name], 1e-5)


def test_views_of_what_is_fed_or_constant_stay() -> None:
    x = data()
    flat = layer.reshape(x, [-1])
    constant = layer.fill_constant([12], "float32", 2.0)
    out = layer.exp(layer.reshape(constant, [12])) + layer.tanh(flat)
    assert "exp" not in taken([out]) and "tanh" not in taken([out])
    np.testing.assert_allclose(proved([out])[0], np.exp(np.float32(2)) + np.tanh(X.reshape(-1)), 1e-5)


def test_what_is_kept_from_run_to_run_stays() -> None:
    x = data()
    w = weight(rows=[4])
    turned = layer.tanh(layer.reshape(w, [16]))
    out = layer.matmul(x, layer.exp(layer.reshape(turned, [4, 4])))
    loss = layer.mean(out * out)
    fs.optimizer.Momentum(0.1, 0.9).minimize(loss)
    state = check_ways(small([loss], {"x": X})).state
    assert np.isfinite(state["w"].numpy()).all()
    proved([loss, out])


@pytest.mark.parametrize("holds", [True, False])
def test_what_a_branch_captures_or_hands_on_stays(holds: bool) -> None:
    x = data()
    given = layer.sigmoid(x)
    value = layer.exp(x)
    block = fs.default_main_program().global_block
    with region(block) as branch:
        layer.assign(layer.exp(given), value)
    block.append_op("conditional_block", {"Cond": layer.reduce_sum(x) > (-9.0 if holds else 9.0), "Input": given}, {"Out": value, "Scope": "scope"},
                    {"sub_block": branch.idx, "is_scalar_condition": True})  # fmt: skip
    after = layer.tanh(given)  # may not lie where the branch read
    last = layer.exp(value)  # nor where it may have left what was there
    out, other = proved([last, after])
    np.testing.assert_allclose(out, np.exp(np.exp(ONE if holds else X)), 1e-5)
    np.testing.assert_allclose(other, np.tanh(ONE), 1e-5)


@pytest.mark.quick_cases("0", "1")
@pytest.mark.parametrize("rounds", [0, 1, 3])
def test_what_a_loop_captures_or_hands_on_stays(rounds: int) -> None:
    x = data()
    start, captured = layer.sigmoid(x), layer.exp(x)
    h = repeated(rounds, lambda h: layer.tanh(h + captured), start)
    own = layer.exp(start)  # the loop's result may be where its start was
    out = layer.tanh(h)
    want = ONE
    for _ in range(rounds):
        want = np.tanh(want + np.exp(X))
    got = proved([out, own, layer.tanh(captured)])
    for seen_, wanted in zip(got, (np.tanh(want), np.exp(ONE), np.tanh(np.exp(X))), strict=True):
        np.testing.assert_allclose(seen_, wanted, 1e-5)


def test_a_loop_that_is_trained() -> None:
    x = data()
    w = weight()
    start = layer.sigmoid(x)
    h = repeated(3, lambda h: layer.tanh(h * w), start)
    loss = layer.mean(layer.exp(start) * layer.exp(h))
    fs.optimizer.SGD(0.1).minimize(loss)
    proved([loss])


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("ragged", [False, True])
def test_a_recurrence_that_is_trained(ragged: bool) -> None:
    x = layer.data("x", shape=[-1, 4], lod_level=1) if ragged else layer.data("x", shape=[5, "batch", 4])
    start = layer.fill_constant([3, 4], "float32", 0.5) if ragged else layer.sigmoid(layer.data("start", shape=["batch", 4]))

    def step(word: Any, before: Any) -> Any:
        now = layer.fc(word + before, 4, "tanh")
        return layer.exp(now), now

    rows, last = layer.rnn(step, x, start) if ragged else layer.rnn(step, x, start, time_major=True)
    loss = layer.mean(rows * rows) + layer.mean(layer.tanh(last))
    fs.optimizer.SGD(0.1).minimize(loss)
    dense = {"x": np.linspace(-1, 1, 60, dtype=np.float32).reshape(5, 3, 4), "start": X}
    proved([loss], {"x": fs.LoDTensor(np.linspace(-1, 1, 28, dtype=np.float32).reshape(7, 4), [[4, 0, 3]])} if ragged else dense)


def test_what_an_array_holds_stays() -> None:
    x = data()
    value = layer.sigmoid(x)
    at = layer.fill_constant([1], "int64", 0)
    array = layer.array_write(value, at)
    other = layer.exp(value)
    read = layer.tanh(layer.array_read(array, at))
    again = layer.array_read(array, at)
    for got, want in zip(proved([read, other, again]), (np.tanh(ONE), np.exp(ONE), ONE), strict=True):
        np.testing.assert_allclose(got, want, 1e-5)


@pytest.mark.parametrize("batch", [1, 3])
def test_a_gradient_that_is_a_view_where_the_batch_is_one_stays(batch: int) -> None:
    x = data()
    w = weight()
    b = weight("b")
    loss = layer.mean(layer.tanh(layer.exp(x * w) + b))
    fs.optimizer.SGD(0.1).minimize(loss)
    proved([loss], {"x": X[:batch]})


def test_what_rows_are_made_of_stays() -> None:
    ids = layer.data("ids", shape=["batch"], dtype="int64")
    x = data()
    w = weight()
    rows = layer.embedding(ids, size=[10, 4], is_sparse=True)
    loss = layer.mean(layer.tanh(rows + layer.exp(x * w)))
    fs.optimizer.SGD(0.1).minimize(loss)
    proved([loss], {"x": X, "ids": np.array([4, 4, 9])})


# --- that it is noticed


class OfOne(Operator):
    """One operand, and a result as it."""

    X = operand(FLOATING)
    Out = result()
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, X: Any) -> Any:
        return X


class Keeps(OfOne):
    """Keeps its operand beside the step."""

    type = "lives_test_keeps"

    def kernel(self, X: Any) -> Any:
        kept.append(X)
        return X * 2


class Reads(OfOne):
    """Reads what the other kept, whose memory was given away meanwhile."""

    type = "lives_test_reads"

    def kernel(self, X: Any) -> Any:
        return X + kept.pop()


kept: list[Any] = []


class TooEarly(OfOne):
    """X plus X the other way round; writes into X before it has read all of it."""

    type = "lives_test_too_early"
    Out = result(may_share="X")

    def kernel(self, X: Any, *, into: Any = None) -> Any:
        out = X.clone() if into is None else into
        for row in range(len(X)):
            out[row] = X[row] + X[len(X) - 1 - row]
        return out


class SaysNothing(OfOne):
    """A view that is said to have memory of its own."""

    type = "lives_test_says_nothing"

    def kernel(self, X: Any) -> Any:
        return X.view(X.shape)


class IsNone(OfOne):
    """A copy that is said to be a view."""

    type = "lives_test_is_none"
    Out = result(view_of="X")

    def kernel(self, X: Any) -> Any:
        return X.clone()


def through(kind: str) -> Any:
    """A value that an operator makes of one that dies there."""
    block = fs.default_main_program().global_block
    x = layer.sigmoid(data())
    block.append_op(kind, {"X": x}, {"Out": "between"})
    return block.var("between")


def test_reading_what_was_given_away_is_noticed() -> None:
    block = fs.default_main_program().global_block
    between = through("lives_test_keeps")
    block.append_op("lives_test_reads", {"X": layer.exp(between)}, {"Out": "late"})
    of = small([block.var("late")], {"x": X})
    assert is_same(run(of, reuse=False), run(of, "checked", reuse=False)) and not is_same(run(of, reuse=False), run(of, "filled", reuse=False))
    for check in (True, "fused"):
        with pytest.raises(fs.ExecutionError, match=r"late of .* has a NaN"):
            fs.Executor(check=check).run(of.program, of.feed, ["late"], of.start())


def test_a_false_claim_to_write_in_place_is_noticed() -> None:
    of = small([through("lives_test_too_early")], {"x": X})
    assert not is_same(run(of), run(of, reuse=False))


def test_a_view_that_nobody_declared_is_noticed() -> None:
    watched = observe(small([layer.exp(through("lives_test_says_nothing"))], {"x": X}))
    with pytest.raises(AssertionError, match="are in one memory"):
        check_places(watched)


def test_a_copy_that_is_said_to_be_a_view_is_noticed() -> None:
    watched = observe(small([layer.exp(through("lives_test_is_none"))], {"x": X}))
    with pytest.raises(AssertionError, match="bytes are held, and"):
        check_bytes(watched)


def test_a_life_that_is_cut_short_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    a = layer.sigmoid(data())
    b = layer.exp(a)
    out = layer.tanh(a) + layer.tanh(b * a)
    assert len(proved([out])) == 1
    monkeypatch.setattr(liveness, "needed_at", lambda record, position, at: None)
    watched = observe(small([out], {"x": X}))
    with pytest.raises(AssertionError, match=r"is there, and .* is not"):
        check_places(watched)
    with pytest.raises(AssertionError, match="bytes are held, and"):
        check_bytes(watched)
