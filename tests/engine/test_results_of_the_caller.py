"""What a run gives belongs to the caller: written over, it changes no feed, no value of the scope and no later run; feeds written over change no result."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.values.torch_private import NAMES, private
from foreshape.runtime.engine.fetched import BlockResults
from foreshape.runtime.engine.later_values import LaterValue

DATA = np.arange(1, 7, dtype="float32").reshape(2, 3)
LENGTHS = [[2, 0, 1]]


def zero(kind: str = "int64") -> Any:
    return layer.fill_constant([1], kind, 0)


def ones() -> Any:
    return layer.fill_constant([2, 3], "float32", 1.0)


def loop(x: Any, e: Any) -> Any:
    return layer.while_loop(lambda i, h: layer.less_than(i, e), lambda i, h: [i + 1, h * 2.0], [zero(), x])


def loop_of_a_view(x: Any, e: Any) -> Any:
    return layer.while_loop(lambda i, h: layer.less_than(i, e), lambda i, h: [i + 1, h * 2.0], [zero(), layer.reshape(x, [3, 2])])


def loop_of_constants(x: Any, e: Any) -> Any:
    first = layer.reshape(layer.fill_constant([6], "float32", 2.0), [2, 3])
    return layer.while_loop(lambda i, h: layer.less_than(i, e), lambda i, h: [i + 1, ones()], [zero(), first])


def loop_that_swaps(x: Any, e: Any) -> Any:
    return layer.while_loop(lambda i, a, b, c: layer.less_than(i, e), lambda i, a, b, c: [i + 1, b, a, x], [zero(), x, ones(), x * 2.0])


def loop_of_one_value_in_two_places(x: Any, e: Any) -> Any:
    def body(i: Any, a: Any, b: Any) -> Any:
        made = a * 2.0
        return i + 1, made, made

    y = layer.exp(x)
    return y, *layer.while_loop(lambda i, a, b: layer.less_than(i, e), body, [zero(), y, y])


def loop_within_a_loop(x: Any, e: Any) -> Any:
    def body(i: Any, h: Any) -> Any:
        _, inner = layer.while_loop(lambda j, g: layer.less_than(j, i), lambda j, g: [j + 1, g + 1.0], [zero(), ones()])
        return i + 1, inner

    return layer.while_loop(lambda i, h: layer.less_than(i, e), body, [zero(), x])


def branch_within_a_loop(x: Any, e: Any) -> Any:
    def body(i: Any, h: Any) -> Any:
        return i + 1, layer.cond(layer.less_than(i, zero()), lambda: h * 2.0, lambda: x)

    return layer.while_loop(lambda i, h: layer.less_than(i, e), body, [zero(), ones()])


def loop_of_a_parameter(x: Any, e: Any) -> Any:
    weight = layer.fc(x, 3, weight="w", bias=False).block.program.global_block.var("w")
    return layer.while_loop(lambda i, h: layer.less_than(i, e), lambda i, h: [i + 1, h * 2.0], [zero(), weight])


def loop_of_a_value_that_the_scope_keeps(x: Any, e: Any) -> Any:
    y = layer.relu(x)
    y.persistable = True
    return layer.while_loop(lambda i, h: layer.less_than(i, e), lambda i, h: [i + 1, h * 2.0], [zero(), y])


def loop_result_that_the_scope_keeps(x: Any, e: Any) -> Any:
    i, h = loop(x, e)
    i.persistable = h.persistable = True
    return i, h, layer.reduce_sum(h)


def loop_of_rows(x: Any, e: Any) -> Any:
    rows = layer.data("rows", [-1, 3], lod_level=1)
    return layer.while_loop(lambda i, h: layer.less_than(i, e), lambda i, h: [i + 1, h * 2.0], [zero(), rows])


def loop_with_a_gradient(x: Any, e: Any) -> Any:
    x.stop_gradient = False
    _, h = loop(x, e)
    total = layer.reduce_sum(h)
    ((_, gradient),) = fs.append_backward(total, ["x"])
    return total, h, gradient


def loop_with_an_array(x: Any, e: Any) -> Any:
    def body(i: Any, array: Any) -> Any:
        return i + 1, layer.array_write(x, i + 1, array)

    _, array = layer.while_loop(lambda i, a: layer.less_than(i, e), body, [zero(), layer.array_write(x, zero())])
    return array, layer.array_read(array, zero())


def branches(x: Any, e: Any) -> Any:
    test = layer.less_than(zero(), e)
    y = layer.relu(x)
    y.persistable = True
    return (
        layer.cond(test, lambda: x * 2.0, lambda: x),
        layer.cond(test, ones, lambda: x),
        layer.cond(test, lambda: y, lambda: layer.reshape(layer.fill_constant([6], "float32", 3.0), [2, 3])),
        layer.case([(test, lambda: x), (layer.less_than(e, zero()), ones)], default=lambda: layer.assign(x)),
        layer.switch_case(e, {0: lambda: x, 1: ones}, default=lambda: y),
    )


def steps_over_time(x: Any, e: Any) -> Any:
    row = layer.fill_constant([2, 3], "float32", 0.5)
    kept = layer.rnn(lambda x, h: (h, x), layer.reshape(x, [2, 1, 3]), row)
    return *kept, *layer.rnn(lambda x, h: (x, h), layer.reshape(x, [2, 1, 3]), layer.assign(x))


def views(x: Any, e: Any) -> Any:
    out: list[Any] = []
    for v in (x, ones()):
        out += [
            v,
            layer.reshape(v, [3, 2]),
            layer.reshape(v, [6]),
            layer.transpose(v, [1, 0]),
            layer.unsqueeze(v, [0]),
            layer.flatten(v),
            layer.expand(v, [2, 3]),
        ]
        out += [*layer.split(v, 3, 1), *layer.split(v, 2, 0), layer.slice(v, [0], [0], [2]), layer.slice(v, [0], [0], [1]), *layer.unstack(v)]
        out.append(layer.squeeze(layer.unsqueeze(v, [0]), [0]))
    return out


def nothing_to_do(x: Any, e: Any) -> Any:
    out: list[Any] = []
    for v in (x, ones()):
        out += [
            layer.assign(v),
            layer.scale(v, 1.0),
            layer.cast(v, "float32"),
            layer.concat([v], 0),
            layer.sum([v]),
            layer.pad(v, [0, 0, 0, 0]),
            v + 0.0,
            v * 1.0,
        ]
        out += [layer.dropout(v, 0.5, is_test=True, implementation="upscale_in_train"), layer.dropout(v, 0.0), layer.clip(v, -100.0, 100.0)]
        out.append(layer.reduce_sum(layer.unsqueeze(v, [0]), 0))
    return out


def in_place(x: Any, e: Any) -> Any:
    count = layer.fill_constant([1], "int64", 3)
    layer.increment(count)
    other = layer.assign(e)
    layer.increment(other)
    return count, other, layer.increment(layer.assign(e), in_place=False), layer.relu(layer.relu(x))


def twice(x: Any, e: Any) -> Any:
    y = x * 2.0
    return y, y, layer.relu(x), y


def network(x: Any, e: Any) -> Any:
    y = layer.batch_norm(layer.fc(x, 4, activation="relu", weight="w1"), is_test=True)
    return layer.fc(y, 3, weight="w"), layer.fc(y, 3, weight="w2"), layer.softmax(layer.fc(y, 2)), y, "w", "w1"


def rows_of_sequences(x: Any, e: Any) -> Any:
    rows = layer.data("rows", [-1, 3], lod_level=1)
    longest = layer.max_sequence_len(layer.lod_rank_table(rows))
    return rows, layer.assign(rows), layer.scale(rows, 1.0), layer.sequence_pool(rows, "sum"), layer.reshape(rows, [-1, 3]), longest


LOOPS = [loop, loop_of_a_view, loop_of_constants, loop_that_swaps, loop_of_one_value_in_two_places, loop_within_a_loop, branch_within_a_loop]
LOOPS += [loop_of_a_parameter, loop_of_a_value_that_the_scope_keeps, loop_result_that_the_scope_keeps, loop_of_rows, loop_with_a_gradient, loop_with_an_array]
PROGRAMS: list[Callable[[Any, Any], Any]] = [*LOOPS, branches, steps_over_time, views, nothing_to_do, in_place, twice, network, rows_of_sequences]
EXECUTORS: dict[str, dict[str, Any]] = {"plain": {}, "frozen": {"frozen": True}, "checked": {"check": "fused"}, "later": {}}


def arrays(results: Any) -> list[Any]:
    """Return all arrays in results."""
    if isinstance(results, LaterValue):
        return arrays(results.get())
    if isinstance(results, list):
        return [a for r in results for a in arrays(r)]
    return [] if results is None else [results.data if isinstance(results, fs.LoDTensor) else results]


def feed_of(names: set[str], rounds: int) -> dict[str, Any]:
    """Return a feed, in memory of its own."""
    rows = fs.LoDTensor(DATA.repeat(2, 0)[:3].copy(), LENGTHS)
    return {n: v for n, v in {"x": DATA.copy(), "e": np.array([rounds]), "rows": rows}.items() if n in names}


@pytest.mark.parametrize("how", EXECUTORS)
@pytest.mark.parametrize("describe", PROGRAMS)
def test_results_and_feeds_are_the_callers_to_write_over(describe: Callable[[Any, Any], Any], how: str) -> None:
    with fs.program() as program:
        out = describe(layer.data("x", [2, 3]), layer.data("e", [1], "int64"))
    fetch = list(out)
    names = {"x", "e", "rows"} & set(program.global_block.vars)
    started = fs.Scope()
    fs.Executor(seed=1).run(program.startup, scope=started)

    def scope() -> fs.Scope:
        made = fs.Scope()
        for n in started.names():
            made.set(n, started.get(n))
        return made

    def expected(rounds: int) -> list[Any]:
        return [a.copy() for a in arrays(fs.Executor(**EXECUTORS[how]).run(program, feed_of(names, rounds), fetch, scope()))]

    executor, own = fs.Executor(**EXECUTORS[how]), scope()
    right = {rounds: expected(rounds) for rounds in (0, 3)}
    for rounds in (0, 0, 3, 0, 3):
        feed = feed_of(names, rounds)
        seen = arrays(executor.run(program, feed, fetch, own, later=how == "later"))
        held = {n: np.array(own.get(n)) for n in own.names()}
        for value in feed.values():
            (value.data if isinstance(value, fs.LoDTensor) else value)[...] = 9
        for given, want in zip(seen, right[rounds], strict=True):
            np.testing.assert_array_equal(given, want)
        for at, given in enumerate(seen):
            given[...] = 5
            for other, want in zip(seen[at + 1 :], right[rounds][at + 1 :], strict=True):
                np.testing.assert_array_equal(other, want)
        for value in feed.values():
            assert ((value.data if isinstance(value, fs.LoDTensor) else value) == 9).all()
        for n, value in held.items():
            np.testing.assert_array_equal(own.get(n), value, n)


def test_a_result_of_a_block_is_copied_only_where_something_else_is_in_its_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    with fs.program() as program:
        fetch = loop(layer.data("x", [2, 3]), layer.data("e", [1], "int64"))
    copies, copied = list[int](), BlockResults.copied

    def counted(results: BlockResults, fetched: Any, *others: Any) -> Any:
        out = copied(results, fetched, *others)
        copies.append(sum(a is not b for a, b in zip(out, fetched, strict=True)))
        return out

    monkeypatch.setattr(BlockResults, "copied", counted)
    executor, feed = fs.Executor(), feed_of({"x", "e"}, 0)
    for rounds in (0, 2):
        executor.run(program, {**feed, "e": np.array([rounds])}, fetch)
    monkeypatch.setitem(vars(private), "storage_users", NAMES["storage_users"].otherwise)  # a torch without this private name copies
    executor.run(program, {**feed, "e": np.array([2])}, fetch)
    with fs.program() as program:
        fetch = network(layer.data("x", [2, 3]), None)
    executor.run(program.startup)
    executor.run(program, {"x": DATA}, fetch)
    assert copies == [2, 0, 2]  # a step without blocks is not asked
