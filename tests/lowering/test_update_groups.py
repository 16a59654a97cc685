"""Which updates are one call: those of small parameters, wherever they stand, unless what is between would see another value."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer, optimizer


def calls(program: fs.Program, fetch: list[Any]) -> list[int]:
    """How many parameters each call of an update changes."""
    step = fs.Executor().step(program, fetch)
    found = [i for i in step.emitted.lowered.calls if i.op.type in ("adam", "momentum")]
    return [len(i.arguments[0]) if isinstance(i.arguments[0], list) else 1 for i in found]


def described(rule: Any, layers: int, width: int) -> tuple[fs.Program, fs.Variable]:
    h = layer.data("x", shape=["batch", 6])
    for _ in range(layers):
        h = layer.fc(h, width, activation="tanh")
    loss = layer.mean(layer.fc(h, 1))
    rule.minimize(loss)
    return fs.default_main_program(), loss


@pytest.mark.quick_cases("Adam")
@pytest.mark.parametrize("rule", [optimizer.Adam(0.1), optimizer.Momentum(0.1, 0.9)], ids=lambda r: type(r).__name__)
def test_updates_that_stand_between_gradients_are_one_call_and_change_no_number(rule: Any) -> None:
    """The gradient of what comes into a layer reads its weight, which is updated behind that."""
    program, loss = described(rule, 4, 5)
    assert calls(program, [loss]) == [10]
    feed = {"x": np.random.default_rng(0).standard_normal((3, 6)).astype("float32")}
    found: list[dict[str, Any]] = []
    for executor in (fs.Executor(), fs.Executor(check=True)):
        scope = fs.Scope()
        fs.Executor(seed=1).run(fs.default_startup_program(), scope=scope)
        for _ in range(3):
            executor.run(program, feed, [loss], scope)
        found.append({name: scope.get(name) for name in scope.names()})
    assert found[0].keys() == found[1].keys()
    for name, value in found[0].items():
        np.testing.assert_allclose(value, found[1][name], rtol=2e-5, atol=1e-6, err_msg=name)


def test_a_parameter_that_is_read_behind_its_update_is_updated_where_it_stands() -> None:
    program, loss = described(optimizer.Momentum(0.1, 0.9), 2, 5)
    block = program.global_block
    at = next(k for k, op in enumerate(block.ops) if op.type == "momentum" and op.input("Param") == "fc_2.w_0")
    seen = block.create_variable("seen", block.var("fc_2.w_0").spec)
    block.append_op("scale", {"X": "fc_2.w_0"}, {"Out": seen.name}, {"scale": 2.0}, index=at + 1)
    feed = {"x": np.ones((3, 6), "float32")}
    fs.Executor(seed=1).run(fs.default_startup_program())
    (twice,) = fs.Executor().run(program, feed, ["seen"])
    np.testing.assert_array_equal(twice, 2 * fs.default_scope().get("fc_2.w_0"))
    assert sum(calls(program, ["seen", loss])) == 6


def test_large_gradients_do_not_wait_for_one_another() -> None:
    program, loss = described(optimizer.Momentum(0.1, 0.9), 4, 600)
    assert len(calls(program, [loss])) > 2
