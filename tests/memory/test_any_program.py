"""Programs drawn by chance, of views, sums, products, blocks and arrays, trained or not: each is as planned, and the same however it is run."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.observed import observe
from support.proofs import X, check_bytes, check_places, check_ways, data, small

import foreshape as fs
from foreshape import layer


def any_value(chance: np.random.Generator, values: list[Any]) -> Any:
    """A value of dims [batch, 4] made of others in some way, views among them."""
    x, y = (values[int(chance.integers(max(0, len(values) - 4), len(values)))] for _ in range(2))
    match int(chance.integers(18)):
        case 0:
            return layer.tanh(x)
        case 1:
            return layer.sigmoid(x)
        case 2:
            return x + y
        case 3:
            return x * y
        case 4:
            return layer.relu(x)
        case 5:
            return layer.reshape(layer.reshape(x, [-1]), [-1, 4])
        case 6:
            return layer.reshape(layer.tanh(layer.transpose(x, [1, 0])), [-1, 4])
        case 7:
            first, second = layer.split(x, 2, 1)
            return layer.concat([second, layer.tanh(first)], 1)
        case 8:
            return layer.unsqueeze(layer.reduce_mean(x, 1), 1) + y
        case 9:
            return x + layer.reduce_sum(y, 0)
        case 10:
            return layer.fc(x, 4, "tanh")
        case 11:
            return layer.softmax(x)
        case 12:
            return layer.tanh(layer.matmul(layer.matmul(x, y, transpose_y=True), layer.exp(y * 0.1)))
        case 13:
            return layer.exp(x * 0.1)
        case 14:
            return layer.reshape(layer.expand(layer.unsqueeze(x, 0), [2, -1, 4])[1], [-1, 4]) - y
        case 15:
            one, limit = layer.fill_constant([1], "int64", 1), layer.fill_constant([1], "int64", int(chance.integers(1, 4)))
            return layer.while_loop(lambda i, h: layer.less_than(i, limit), lambda i, h: [i + 1, layer.tanh(h + y)], [one, x])[1]
        case 16:
            at = layer.fill_constant([1], "int64", 0)
            return layer.array_read(layer.array_write(x, at), at) + layer.tanh(x)
        case _:
            return layer.cond(layer.reduce_sum(x) > 0.0, lambda: layer.tanh(x) + y, lambda: y)


def check_any(seed: int) -> int:
    """Check a program that is drawn by a seed; gives how many results were written into other memory."""
    chance = np.random.default_rng(seed)
    with fs.program_guard(fs.Program(), fs.Program()):
        values = [data() * layer.create_parameter([4], fs.FP32)]
        for _ in range(int(chance.integers(3, 14))):
            values.append(any_value(chance, values))
        fetch = [values[k] for k in sorted({int(chance.integers(len(values))), len(values) - 1})]
        if chance.random() < 0.6:
            fetch[-1] = layer.mean(fetch[-1] * fetch[-1])
            fs.optimizer.SGD(0.1).minimize(fetch[-1])
        of = small(fetch, {"x": X[: int(chance.choice([1, 3]))]})
        watched = observe(of)
        check_bytes(watched)
        check_places(watched)
        return sum(i.into is not None for i in check_ways(of).emitted.lowered.calls)


@pytest.mark.parametrize("first", [0, pytest.param(1, marks=pytest.mark.long), pytest.param(2, marks=pytest.mark.long)])
def test_any_program_is_as_planned(first: int) -> None:
    assert sum(check_any(seed) for seed in range(100 * first, 100 * first + (6 if not first else 100))) > (4 if not first else 20)
