"""Products of parts of tensors take the memory that is planned: oneDNN copies what has gaps, and BLAS does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from support.measured import measure, sizes_of

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels import products

BATCH, WIDE = 128, 256
PART = 0.05
"""Of the measured bytes: what oneDNN itself keeps meanwhile is known by and large."""
MORE = {"steps": 0.12, "turned": 0.25}
"""What may be planned too much: that a product turns an operand that lies turned already, and copies one of three dims twice."""


def towers(x: Any) -> Any:
    """The gradient of each comes as columns of a wider one."""
    return layer.concat([layer.fc(x, WIDE), layer.fc(x, WIDE)], 1)


def columns(x: Any) -> Any:
    first, second = layer.split(layer.fc(x, 2 * WIDE), 2, 1)
    return layer.fc(second, WIDE) + layer.fc(first, WIDE)


def rows(x: Any) -> Any:
    """Parts along the outermost axis lie in a row, and so do their gradients."""
    first, second = layer.split(x, 2, 0)
    return layer.concat([layer.fc(first, WIDE), layer.fc(second, WIDE)], 0)


def steps(x: Any) -> Any:
    return layer.fc(layer.reshape(x, [16, -1, WIDE])[:, 2:6], WIDE, flatten_last=2)


def turned(x: Any) -> Any:
    return layer.fc(layer.transpose(x, [1, 0])[:, :BATCH], WIDE)


@pytest.mark.parametrize("by", ["onednn", "blas"])
@pytest.mark.parametrize("network", [towers, turned, *(pytest.param(net, marks=pytest.mark.long) for net in (columns, rows, steps))])
def test_products_of_parts_take_what_is_planned(network: Callable[[Any], Any], by: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(products, "prefers_onednn", lambda: by == "onednn")
    monkeypatch.setenv("FORESHAPE_ONEDNN", "torch")  # its own library packs outside of torch's allocator; see tests/kernels/test_products.py
    x = layer.data("x", [BATCH * 2, WIDE])
    x = layer.tanh(layer.fc(x, WIDE))
    loss = layer.mean(network(x))
    fs.optimizer.SGD(0.01).minimize(loss)
    executor, feed, scope = fs.Executor(), {"x": np.ones((BATCH * 2, WIDE), np.float32)}, fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    plan, measured = fs.plan(fs.default_main_program(), [loss]), measure(executor, fs.default_main_program(), feed, [loss], scope)
    sizes = sizes_of(plan, executor, feed)
    planned, held = plan.peak(**sizes) - plan.held(**sizes), measured.fed + measured.most
    assert (1 - PART) * held <= planned <= (1 + MORE.get(network.__name__, PART)) * held
