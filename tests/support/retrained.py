"""Networks that are trained with and without recomputation, and what must be the same then."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.transforms.backward.recompute import Recomputing

STEPS = 10


class Network(NamedTuple):
    """A training program, its startup program, what is fetched, and the feed of a step."""

    main: fs.Program
    startup: fs.Program
    fetch: list[str]
    feed: Callable[[np.random.Generator], dict[str, Any]]
    within: float = 0.0


def described(inputs: Callable[[], Any], optimizer: Any, feed: Callable[[np.random.Generator], dict[str, Any]]) -> Network:
    main, startup = fs.Program(), fs.Program()
    main.random_seed = 0
    startup.random_seed = 11
    with fs.program_guard(main, startup):
        out, loss = inputs()
        optimizer.minimize(loss)
    return Network(main, startup, [loss.name, out.name], feed)


def numbers(seen: np.random.Generator, *dims: int) -> np.ndarray:
    return seen.standard_normal(dims).astype(np.float32)


def loss_of(logits: fs.Variable) -> Any:
    return logits, layer.mean(layer.softmax_with_cross_entropy(logits, layer.data("y", shape=["batch", 1], dtype="int64")))


def images() -> Network:
    """Convolutions, batch norm, dropout before and behind them, residual sums."""

    def net() -> Any:
        h = layer.conv2d(layer.data("x", shape=["batch", 3, 10, 10]), 8, 3, padding=1)
        for _ in range(6):
            r = layer.dropout(layer.relu(layer.batch_norm(layer.conv2d(h, 8, 3, padding=1))), 0.2)
            h = layer.relu(h + layer.batch_norm(layer.conv2d(r, 8, 3, padding=1)))
        return loss_of(layer.fc(layer.dropout(h, 0.5), 10))

    return described(net, fs.optimizer.Momentum(0.01, 0.9), lambda r: {"x": numbers(r, 4, 3, 10, 10), "y": r.integers(0, 10, (4, 1))})


def attention() -> Network:
    """An encoder with dropout, with views, and with numbers that are drawn behind it. The biases of its keys have gradients of rounding alone,
    which a small epsilon would turn into steps."""

    def net() -> Any:
        width, heads = 32, 4
        h = layer.data("x", shape=["batch", "time", width])
        for _ in range(4):
            q, k, v = (layer.transpose(layer.reshape(layer.fc(h, width, flatten_last=1), [0, 0, heads, width // heads]), [0, 2, 1, 3]) for _ in "qkv")
            mixed = layer.matmul(layer.dropout(layer.softmax(layer.matmul(q, k, transpose_y=True)), 0.1), v)
            mixed = layer.fc(layer.reshape(layer.transpose(mixed, [0, 2, 1, 3]), [0, 0, width]), width, flatten_last=1)
            h = layer.layer_norm(h + layer.dropout(mixed, 0.1), begin_norm_axis=2)
            inner = layer.fc(layer.gelu(layer.fc(h, 64, flatten_last=1)), width, flatten_last=1)
            h = layer.layer_norm(h + layer.dropout(inner, 0.1), begin_norm_axis=2)
        pooled = layer.reduce_mean(h, 1)
        return loss_of(layer.fc(pooled * layer.uniform_random([1], "float32", 0.9, 1.1), 10))

    return described(net, fs.optimizer.Adam(0.001, epsilon=0.01), lambda r: {"x": numbers(r, 3, 7, 32), "y": r.integers(0, 10, (3, 1))})._replace(within=1e-4)


def sequences() -> Network:
    """Ragged LSTM layers with dropout between them, in two levels of depth, pooled."""

    def net() -> Any:
        h = layer.embedding(layer.data("x", shape=[-1], dtype="int64", lod_level=1), [50, 16])
        for _ in range(3):
            h, _ = layer.lstm(layer.tanh(layer.fc(h, 16)), 12, num_layers=2, dropout=0.3)
            h = layer.dropout(h, 0.2)
        return loss_of(layer.fc(layer.sequence_pool(h, "max"), 10))

    def feed(r: np.random.Generator) -> dict[str, Any]:
        lengths = [40, 0, 61, *[30] * 10]
        return {"x": fs.LoDTensor(r.integers(0, 50, (sum(lengths),)), [lengths]), "y": r.integers(0, 10, (len(lengths), 1))}

    return described(net, fs.optimizer.SGD(0.1), feed)._replace(within=1e-4)


def branches() -> Network:
    """What a branch captures and gives is kept; around it is computed again."""

    def net() -> Any:
        h = layer.data("x", shape=["batch", 16])
        for _ in range(3):
            h = layer.tanh(layer.fc(layer.dropout(layer.gelu(layer.fc(h, 24)), 0.2), 16))
        positive = layer.greater_than(layer.reduce_mean(h), layer.fill_constant([], "float32", 0.0))
        g = layer.cond(positive, lambda: layer.tanh(h) * 2.0, lambda: h * h)
        return loss_of(layer.fc(layer.sigmoid(g + h), 10))

    made = described(net, fs.optimizer.SGD(0.1), lambda r: {"x": numbers(r, 300, 16), "y": r.integers(0, 10, (300, 1))})
    return made._replace(within=1e-5)  # on some machines products of rows depend on where these lie


NETWORKS = [images, attention, sequences, branches]
QUICK_AND_LONG = [*(pytest.param(n, marks=pytest.mark.long) for n in (images, attention, sequences)), branches]


class Trained(NamedTuple):
    fetched: list[list[Any]]
    kept: dict[str, Any]
    random: Any


def trained(network: Network, program: fs.Program, steps: int = STEPS) -> Trained:
    executor, scope = fs.Executor(seed=5), fs.Scope()
    executor.run(network.startup, scope=scope)
    chance = np.random.default_rng(0)
    fetched = [executor.run(program, network.feed(chance), network.fetch, scope) for _ in range(steps)]
    return Trained(fetched, state(program, scope), executor.random_state())


def state(program: fs.Program, scope: fs.Scope) -> dict[str, Any]:
    return {v.name: np.array(scope.get(v.name)) for v in program.all_variables() if v.persistable and v.name in scope}


def assert_same(a: Trained, b: Trained, within: float = 0.0) -> None:
    """Bit by bit: every step is made of the same kernels with the same numbers. ``within``: of the largest (or of 0.01, where all are
    smaller), for kernels that compute otherwise when only their result is wanted."""
    for before, after in zip(a.fetched, b.fetched, strict=True):
        for x, y in zip(before, after, strict=True):
            assert_equal(np.asarray(x), np.asarray(y), within, "what is fetched")
    assert a.kept.keys() <= b.kept.keys()
    for name, value in a.kept.items():
        assert_equal(value, b.kept[name], within, name)
    np.testing.assert_array_equal(a.random, b.random, err_msg="where the random numbers go on")


def assert_equal(a: np.ndarray, b: np.ndarray, within: float, what: str) -> None:
    if within and a.size and a.dtype.kind == "f":
        np.testing.assert_allclose(a, b, rtol=0, atol=within * max(float(np.abs(a).max()), 0.01), err_msg=what)
    else:
        np.testing.assert_array_equal(a, b, err_msg=what)


def sizes_of(network: Network) -> dict[str, int]:
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(network.startup, scope=scope)
    executor.run(network.main, network.feed(np.random.default_rng(0)), network.fetch, scope)
    (planned,) = executor.step(network.main, network.fetch).plan_cache.values()
    return {n: planned.values[n] for n in fs.plan(network.main, network.fetch).symbols if n in planned.values}


def least_of(program: fs.Program, fetch: list[str], sizes: dict[str, int]) -> int:
    """The least peak that is reached, found as a user would."""
    with pytest.raises(fs.MemoryPlanError, match=r"the least that was found is .*, and without it is") as error:
        fs.recompute(program, within=1, fetch=fetch, **sizes)
    return getattr(error.value, "least")  # noqa: B009


def droppable(program: fs.Program) -> set[str]:
    """All that can be computed again, but what the backward pass begins with, whose kernels are fused with it."""
    can = Recomputing(program.global_block)
    return set(can.maker) - can.beginning()
