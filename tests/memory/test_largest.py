"""The largest size within a limit is what trying all sizes finds, in few questions, whatever the formula."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import largest as searching
from foreshape.compiler.memory.formula import Formula
from foreshape.compiler.memory.largest import EVALUATIONS, largest
from foreshape.core.dims import Size, maximum, minimum, product, symbol
from foreshape.machine.kernels import products

n, other = symbol("n"), symbol("other")
FEW = 100
"""Questions that a search up to a terabyte may ask."""


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How often the formula was asked."""
    count, of_formula = [0], searching.limits_of

    def counted(*given: Any) -> Any:
        count[0] += 1
        return of_formula(*given)

    monkeypatch.setattr(searching, "limits_of", counted)
    return count


def random_size(draw: random.Random, depth: int = 3) -> Size:
    kind = draw.randrange(7 if depth else 2)
    if kind == 0:
        return draw.randint(1, 60)
    if kind == 1:
        return draw.choice([n, n, n * other, other]) * draw.randint(1, 9)
    a, b = random_size(draw, depth - 1), random_size(draw, depth - 1)
    if kind == 2:
        return maximum(a - b, 0)
    if kind == 3:
        return minimum(a, b)
    if kind == 4:
        return product([minimum(a % draw.choice([2, 3, 16]), 1), b])
    if kind == 5:
        return product([minimum(a // draw.randint(2, 40), 1), b])
    return a + b // draw.randint(1, 5)


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize("seed", range(60))
def test_it_is_what_trying_all_finds(seed: int) -> None:
    draw = random.Random(seed)
    formula = Formula([random_size(draw) for _ in range(4)] + [n], [[draw.randint(0, 3) for _ in range(4)] + [draw.randint(1, 5)] for _ in range(3)])
    values = {"other": draw.randint(1, 7)}
    every = {size: formula({**values, "n": size}) for size in range(1, 400)}
    for limit in {every[size] + more for size in (1, 2, 17, 100, 200) for more in (-1, 0)}:
        fitting = [size for size, needed in every.items() if needed <= limit]
        if 399 not in fitting and min(every.values()) <= limit:
            assert largest(formula, ["n"], values, limit) == max(fitting), (formula, limit)
    assert largest(formula, ["n"], values, 0) is None


@pytest.mark.parametrize(
    "formula",
    [
        Formula([n, n * minimum(4 * n % 16, 1) * minimum(n // 52, 1)], [[20, 5], [7, 9]]),
        Formula([n, maximum(7 * n * minimum(4 * n % 16, 1) * minimum(n // 52, 1) - 8 * n + minimum(12 * (n // 52), 12), 0)], [[21, 1]]),
        Formula([n, n * minimum(n // 1000, 1), n * n], [[90, 0, 0], [100, -30, 0], [1, 0, 3]]),
        Formula([n * n * other, n * (n // 16 * 16), minimum(512 * n + 8192, 1 << 19)], [[2, 1, 1], [3, 0, 5]]),
    ],
    ids=["remainders", "what is less for a while", "another way from a size on", "squares"],
)
def test_few_sizes_are_asked(formula: Formula, asked: list[int]) -> None:
    for power in (10, 20, 30, 36, 40):
        asked[0], limit = 0, 50_000 + (3 << power)
        found = largest(formula, ["n"], {"other": 3}, limit)
        assert asked[0] <= FEW
        assert found is not None and formula({"n": found, "other": 3}) <= limit
        assert all(formula({"n": found + more, "other": 3}) > limit for more in range(1, 100))


def test_what_never_stops_to_rise_and_fall_is_said() -> None:
    formula = Formula([n, minimum(n % 2, 1), minimum((n + 1) % 2, 1)], [[1, 10**9, 10**9]])
    with pytest.raises(fs.MemoryPlanError, match=r"rises and falls with n up to .*, so that no largest value is found: it is"):
        largest(formula, ["n"], {}, 10**8)
    assert EVALUATIONS >= 10 * FEW


def gru() -> Any:
    return layer.gru(layer.data("x", ["batch", 20, 16]), 32)[1]


def gru_both_ways() -> Any:
    return layer.gru(layer.data("x", ["batch", 20, 16]), 32, num_layers=2, bidirectional=True)[0]


def gru_of_any_length() -> Any:
    return layer.gru(layer.data("x", ["batch", "time", 16]), 32)[0]


def lstm() -> Any:
    return layer.lstm(layer.data("x", ["batch", 20, 16]), 32)[0]


def dense() -> Any:
    return layer.fc(layer.fc(layer.data("x", ["batch", 784]), 512, "relu"), 512, "relu")


def convolutions() -> Any:
    return layer.conv2d(layer.relu(layer.batch_norm(layer.conv2d(layer.data("x", ["batch", 3, 16, 16]), 8, 3))), 8, 3)


def attention() -> Any:
    return layer.transformer_encoder(layer.data("x", ["batch", 32, 32]), 2, heads=4)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("onednn", [True, False], ids=["products of oneDNN", "products of BLAS"])
@pytest.mark.parametrize("network", [gru, gru_both_ways, gru_of_any_length, lstm, dense, convolutions, attention])
def test_every_network_has_a_largest_batch(network: Callable[[], Any], onednn: bool, asked: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda: onednn)
    with fs.program() as program:
        loss = layer.mean(layer.square(network()))
        fs.optimizer.Adam(1e-3).minimize(loss)
    plan = fs.plan(program, [loss])
    others = dict.fromkeys(plan.symbols - {"batch"}, 50)
    for limit in (1 << 26, 1 << 30, 1 << 36):
        asked[0] = 0
        found = plan.largest("batch", limit, **others)
        assert asked[0] <= FEW
        assert plan.peak(batch=found, **others) <= limit < plan.peak(batch=found + 1, **others)
