"""The work of describing, in calls of Python functions for each op: what belongs to a function or an operator is looked up once."""

from __future__ import annotations

import gc
import sys
from collections import Counter
from collections.abc import Callable
from types import FrameType

import pytest

import foreshape as fs
from foreshape import layer, optimizer


def chain(layers: int = 20) -> fs.Variable:
    x = layer.data("x", shape=["batch", 64])
    for _ in range(layers):
        x = layer.fc(x, 64, activation="relu")
    return layer.mean(x)


def given_weights() -> fs.Variable:
    x = layer.data("x", shape=["batch", 64])
    for at in range(20):
        x = layer.fc(x, 64, weight=fs.ParamAttr(f"w{at}", layer.Normal(0.0, 0.02)), bias=layer.Constant(0.5))
    return layer.mean(x)


def images() -> fs.Variable:
    x = layer.data("x", shape=["batch", 3, 32, 32])
    for _ in range(20):
        x = layer.dropout(layer.relu(layer.batch_norm(layer.conv2d(x, 8, 3, padding=1, bias=False))), 0.1)
    return layer.mean(x)


def transformer() -> fs.Variable:
    return layer.mean(layer.transformer_encoder(layer.data("x", shape=["batch", 16, 32]), layers=6, heads=4))


def recurrent() -> fs.Variable:
    x = layer.data("x", shape=["words", 32], lod_level=1)
    for _ in range(10):
        x, _ = layer.lstm(x, 32)
    return layer.mean(x)


def tables() -> fs.Variable:
    ids = layer.data("ids", shape=["batch", 8], dtype="int64")
    return layer.mean(layer.concat([layer.layer_norm(layer.embedding(ids, [100, 16], is_sparse=True), 2) for _ in range(20)], axis=2))


def arithmetic() -> fs.Variable:
    x, y = layer.data("x", shape=["batch", 16]), layer.data("y", shape=["batch", 16])
    for _ in range(20):
        x = layer.transpose(layer.reshape((x + y) * 2.0 - y / 3.0, [0, 4, 4]), [0, 2, 1])
        x = layer.concat([layer.reshape(x, [0, 16]), y], axis=1)[:, :16]
    return layer.mean(x)


def calls(describe: Callable[[], fs.Variable], train: bool) -> tuple[float, Counter[str]]:
    """Python functions that are called for each op of a program that was described before, and those of which modules."""
    modules: Counter[str] = Counter()

    def seen(frame: FrameType, event: str, _: object) -> None:
        if event == "call":
            modules[frame.f_globals.get("__name__", "")] += 1

    def described() -> int:
        with fs.program() as program:
            cost = describe()
            if train:
                optimizer.Adam(1e-3).minimize(cost)
        return len(program.global_block.ops)

    described()
    before = sys.getprofile()
    gc.collect()
    gc.disable()  # what others left behind is not this description's work
    sys.setprofile(seen)
    try:
        ops = described()
    finally:
        sys.setprofile(before)
        gc.enable()
    return sum(modules.values()) / ops, modules


@pytest.mark.quick_cases("chain-50-84", "images-94-116")
@pytest.mark.parametrize(
    ("describe", "forward", "trained"),
    [
        (chain, 50, 84),
        (images, 94, 116),
        (transformer, 64, 85),
        *(pytest.param(*c, marks=pytest.mark.long) for c in ((given_weights, 69, 101), (recurrent, 220, 175), (tables, 92, 123), (arithmetic, 40, None))),
    ],
)
def test_an_op_costs_so_many_calls(describe: Callable[[], fs.Variable], forward: int, trained: int | None) -> None:
    for train, budget in ((False, forward), (True, trained)):
        if budget is not None:
            each, modules = calls(describe, train)
            assert each <= budget, (train, each, modules.most_common(12))
            assert modules.keys().isdisjoint({"inspect", "re", "ast", "dis"}), modules


def test_an_op_costs_as_much_among_many_as_among_few() -> None:
    few, _ = calls(lambda: chain(20), train=True)
    many, _ = calls(lambda: chain(200), train=True)
    assert many <= few * 1.02
