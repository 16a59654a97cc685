"""Small networks with control flow and recurrences, to be written as ONNX's models: each with its feeds, of several sizes."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer

Feed = Mapping[str, Any]
Network = Callable[[], tuple[Sequence[Any], Sequence[Any]]]
NETWORKS: dict[str, tuple[Network, Sequence[Feed]]] = {}


UNREAD = ("written_array",)
"""Written, and not read here: a loop with a sequence as its state, and an open number of rounds."""


def network(*feeds: Feed) -> Callable[[Network], Network]:
    def add(function: Network) -> Network:
        NETWORKS[function.__name__] = (function, feeds)
        return function

    return add


def rows(*dims: int) -> Any:
    return np.random.RandomState(len(dims) + sum(dims)).standard_normal(dims).astype("float32")


def number(value: int) -> Any:
    return np.array([value], "int64")


def one(value: int) -> Any:
    return layer.fill_constant([1], "int64", value)


@network({"x": rows(2, 3), "n": number(3)}, {"x": rows(4, 3), "n": number(0)})
def counted_loop() -> Any:
    x, n = layer.data("x", [-1, 3]), layer.data("n", [1], "int64")
    _, y = layer.while_loop(lambda i, y: layer.less_than(i, n), lambda i, y: [i + 1, layer.tanh(layer.fc(y, 3)) + x], [one(0), x])
    return [x, n], [y]


@network({"x": rows(2, 3), "n": number(3)}, {"x": rows(1, 3), "n": number(5)})
def growing_rows() -> Any:
    x, n = layer.data("x", [-1, 3]), layer.data("n", [1], "int64")
    _, y = layer.while_loop(lambda i, y: layer.less_than(i, n), lambda i, y: [i + 1, layer.concat([y, y[-1:] * 2.0], axis=0)], [one(0), x])
    return [x, n], [y]


@network({"x": rows(2, 3), "n": number(3)}, {"x": rows(4, 3), "n": number(1)})
def loop_within_a_loop() -> Any:
    x, n = layer.data("x", [-1, 3]), layer.data("n", [1], "int64")

    def outer(i: Any, y: Any) -> Any:
        _, z = layer.while_loop(lambda j, z: layer.less_than(j, i), lambda j, z: [j + 1, z * 0.5 + x], [one(0), y])
        return [i + 1, z]

    _, y = layer.while_loop(lambda i, y: layer.less_than(i, n), outer, [one(0), x])
    return [x, n], [y]


@network({"x": rows(2, 3)}, {"x": -np.abs(rows(4, 3))})
def two_branches() -> Any:
    x = layer.data("x", [-1, 3])
    y, z = layer.cond(layer.reduce_sum(x) > 0.0, lambda: (layer.fc(x, 4), x), lambda: (layer.fc(x * 2.0, 4), layer.concat([x, x], axis=0)))
    return [x], [y, z]


@network(*[{"x": rows(2, 3), "k": number(k)} for k in (0, 1, 2, 7)])
def one_of_several_branches() -> Any:
    x, k = layer.data("x", [-1, 3]), layer.data("k", [1], "int64")
    return [x, k], [layer.switch_case(k, [lambda: x + 1.0, lambda: layer.relu(x), lambda: layer.fc(x, 3)], lambda: x * 0.0)]


@network({"x": rows(2, 3), "n": number(6)}, {"x": rows(5, 3), "n": number(2)})
def branch_within_a_loop() -> Any:
    x, n = layer.data("x", [-1, 3]), layer.data("n", [1], "int64")

    def body(i: Any, y: Any) -> Any:
        return [i + 1, layer.cond(layer.reduce_mean(y) > 0.0, lambda: y - 1.0, lambda: layer.abs(y) + x)]

    _, y = layer.while_loop(lambda i, y: layer.less_than(i, n), body, [one(0), x])
    return [x, n], [y]


@network({"x": rows(2, 3), "n": number(3)}, {"x": rows(5, 3), "n": number(1)})
def written_array() -> Any:
    x, n = layer.data("x", [-1, 3]), layer.data("n", [1], "int64")
    array = layer.create_array("float32")
    layer.array_write(x, one(0), array)

    def body(i: Any, y: Any) -> Any:
        y = layer.array_read(array, i) * 2.0 + y
        layer.array_write(y, i + 1, array)
        return [i + 1, y]

    layer.while_loop(lambda i, y: layer.less_than(i, n), body, [one(0), x])
    layer.array_write(x + 10.0, one(1), array)
    stacked, sizes = layer.tensor_array_to_tensor(array, axis=1, use_stack=True)
    joined, widths = layer.tensor_array_to_tensor(array, axis=0)
    return [x, n], [stacked, sizes, joined, widths, layer.array_length(array)]


@network({"x": rows(2, 5, 3)}, {"x": rows(3, 2, 3)})
def steps_of_ones_own() -> Any:
    x = layer.data("x", [-1, -1, 3])
    start = layer.fc(layer.reduce_mean(x, 1), 4)

    def step(at: Any, memory: Any) -> Any:
        new = layer.tanh(layer.fc([at, memory], 4))
        return new * 2.0, new

    out, last = layer.rnn(step, x, start)
    back, _ = layer.rnn(step, x, start, reverse=True)
    return [x], [out, last, back]


@network({"x": rows(2, 5, 3), "length": np.array([5, 2], "int32")}, {"x": rows(3, 4, 3), "length": np.array([1, 4, 3], "int32")})
def long_short_term_memory() -> Any:
    x, length = layer.data("x", [-1, -1, 3]), layer.data("length", [-1], "int32")
    out, (hidden, cell) = layer.lstm(x, 4, num_layers=2, bidirectional=True, length=length)
    return [x, length], [out, hidden, cell]


@network({"x": rows(2, 5, 3)}, {"x": rows(3, 1, 3)})
def gated_recurrent_unit() -> Any:
    x = layer.data("x", [-1, -1, 3])
    out, hidden = layer.gru(x, 4, num_layers=2)
    return [x], [out, hidden]


@network({"x": rows(2, 5, 3), "h": rows(2, 2, 4)}, {"x": rows(3, 2, 3), "h": rows(2, 3, 4)})
def plain_recurrence() -> Any:
    x, h = layer.data("x", [-1, -1, 3]), layer.data("h", [2, -1, 4])
    out, hidden = layer.simple_rnn(x, 4, bidirectional=True, initial_states=h, activation="relu")
    return [x, h], [out, hidden]


@network({"x": rows(2, 12), "h": rows(2, 4)}, {"x": rows(5, 12), "h": rows(5, 4)})
def single_steps() -> Any:
    x, h = layer.data("x", [-1, 12]), layer.data("h", [-1, 4])
    block = fs.default_main_program().global_block
    weight = layer.create_parameter([4, 12], "float32")
    states = [
        block.apply("gru_unit", {"Input": x, "HiddenPrev": h, "Weight": w}, {"origin_mode": mode})[2] for w in (weight, weight * 2.0) for mode in (False, True)
    ]
    cell, hidden = block.apply("lstm_unit", {"X": layer.concat([x, h], axis=1), "C_prev": h}, {"forget_bias": 1.0})
    return [x, h], [*states, cell, hidden]
