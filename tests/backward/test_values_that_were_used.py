"""Gradients take the value that an op has read or made, also where its name has another one by the time the backward pass runs."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.described import count, expect, looped, trained
from support.some import each

from foreshape import layer
from foreshape.language.program.current import current_block


def a_result_is_written_again(x: Any) -> Any:
    y = layer.tanh(x)
    layer.assign(y * 3.0, y)
    return layer.reduce_sum(y * y)


def read_before_and_after_it_is_written(x: Any) -> Any:
    c = x * 1.0
    y = layer.square(c)
    layer.assign(c * 3.0, c)
    return layer.reduce_sum(y * c)


def read_after_it_is_written_in_a_round(x: Any) -> Any:
    u = layer.fill_constant([5, 3], "fp32", 0.5)

    def body(i: Any, s: Any) -> Any:
        layer.assign(s * 0.5, u)
        return [s + layer.square(u)]

    return layer.reduce_sum(looped(body, [x], 3)[0])


def made_in_place_in_a_round(x: Any) -> Any:
    u = layer.fill_constant([5, 3], "fp32", 0.5)

    def body(i: Any, s: Any) -> Any:
        current_block().append_op("tanh", {"X": s}, {"Out": u})
        return [s + u]

    return layer.reduce_sum(looped(body, [x], 3)[0])


def read_by_a_loop_and_written_after_it(x: Any) -> Any:
    y = x * 2.0
    (s,) = looped(lambda i, s: [s + layer.square(y) * s], [x], 2)
    layer.assign(y * 5.0, y)
    return layer.reduce_sum(s * y)


def read_by_an_inner_loop_in_every_round(x: Any) -> Any:
    u = layer.fill_constant([5, 3], "fp32", 0.5)

    def body(i: Any, s: Any) -> Any:
        layer.assign(s * 0.5, u)
        (t,) = looped(lambda j, t: [t + layer.square(u) * t], [s], 2)
        return [layer.tanh(t)]

    return layer.reduce_sum(looped(body, [x], 3)[0])


def read_by_a_branch_and_written_after_it(x: Any) -> Any:
    y = x * 2.0
    z = layer.cond(layer.less_than(layer.reduce_sum(x), layer.fill_constant([], "fp32", 1e9)), lambda: layer.square(y), lambda: y)
    layer.assign(y * 5.0, y)
    return layer.reduce_sum(z * y)


def another_shape_is_written(x: Any) -> Any:
    y = layer.tanh(x)
    z = layer.reduce_sum(y * y)
    layer.assign(layer.reshape(layer.concat([y, y], axis=0), [-1]), y)
    return z + layer.reduce_sum(layer.tanh(y))


def _rounds(x: Any, step: Callable[[Any], Any]) -> Any:
    for _ in range(3):
        x = step(x)
    return x.sum()


def _loop_and_after(x: Any) -> Any:
    y = x * 2
    s = x + y**2 * x
    return ((s + y**2 * s) * y * 5).sum()


def _inner(s: Any) -> Any:
    u = s * 0.5
    t = s + u**2 * s
    return torch.tanh(t + u**2 * t)


EAGER: dict[Callable[[Any], Any], Callable[[Any], Any]] = {
    a_result_is_written_again: lambda x: (torch.tanh(x) * 3).square().sum(),
    another_shape_is_written: lambda x: torch.tanh(x).square().sum() + 2 * torch.tanh(torch.tanh(x)).sum(),
    read_before_and_after_it_is_written: lambda x: (x**3 * 3).sum(),
    read_after_it_is_written_in_a_round: lambda x: _rounds(x, lambda s: s + (s * 0.5) ** 2),
    made_in_place_in_a_round: lambda x: _rounds(x, lambda s: s + torch.tanh(s)),
    read_by_a_loop_and_written_after_it: _loop_and_after,
    read_by_an_inner_loop_in_every_round: lambda x: _rounds(x, _inner),
    read_by_a_branch_and_written_after_it: lambda x: ((x * 2) ** 2 * x * 10).sum(),
}


@pytest.mark.long_cases("read_by_an_inner_loop_in_every_round")
@pytest.mark.parametrize("describe", each(2, EAGER), ids=lambda f: f.__name__)
def test_a_gradient_takes_the_value_that_was_used(describe: Callable[[Any], Any]) -> None:
    expect(*trained(describe), EAGER[describe])


# --- what is absent


@pytest.mark.quick_cases("alone-True")
@pytest.mark.parametrize("holds", [True, pytest.param(False, marks=pytest.mark.long)])
@pytest.mark.parametrize("within", ["alone", "in a loop", "in a branch"])
def test_a_branch_of_constants_has_no_gradient(holds: bool, within: str) -> None:
    """Each of the chosen values has an input whose gradient nobody wants; those of all of them have one name, and are no values."""

    def chosen(x: Any, flag: Any) -> Any:
        a, b, c = layer.cond(
            flag,
            lambda: (x * 2.0, layer.reshape(layer.reduce_sum(x), [1]), layer.reduce_sum(x)),
            lambda: (layer.fill_constant([5, 3], "fp32", 1.0), layer.fill_constant([1], "fp32", 2.0), layer.fill_constant([], "fp32", 3.0)),
        )
        return (a * b + c) * 0.1

    def describe(x: Any) -> Any:
        flag = layer.data("flag", shape=[1], dtype="bool")
        if within == "in a loop":
            return layer.reduce_sum(looped(lambda i, s: [s + chosen(s, flag)], [x], 2)[0])
        if within == "in a branch":
            return layer.reduce_sum(layer.cond(layer.less_than(count(0), count(1)), lambda: x + chosen(x, flag), lambda: x))
        return layer.reduce_sum(x + chosen(x, flag))

    def eager(x: Any) -> Any:
        for _ in range(2 if within == "in a loop" else 1):
            x = x + ((x * 2 * x.sum() + x.sum()) if holds else torch.ones_like(x) * 5) * 0.1
        return x.sum()

    main, fetch = trained(describe)
    expect(main, fetch, eager, {"flag": np.array([holds])})
    assert not [v for v in main.all_variables() if "@EMPTY@" in v.name]
