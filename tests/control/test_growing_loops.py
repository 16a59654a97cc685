"""Loops that carry what has other sizes, or another rank, after each round: values and gradients as of the same rounds in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from support.described import assert_loss_and_gradients, build, count, differentiable, expect, looped, run, run_all, started, trained
from support.some import each

import foreshape as fs
from foreshape import layer

Body = Callable[[Any, Any], Any]
ROUNDS = 3


def branched(join: Callable[[Any, Any], Any]) -> Body:
    """Three columns more, before or behind; where behind, three others besides."""
    return lambda g, x: layer.cond(layer.reduce_sum(g) > 0.0, lambda: layer.concat([g, x], 1), lambda: join(x * 2.0, g))


def nested(g: Any, x: Any) -> Any:
    return looped(lambda i, h: layer.concat([h, x], 1), [layer.assign(g)], 2)[0]


def in_torch(join: Callable[[Any, Any], Any]) -> Body:
    return lambda g, x: torch.cat([g, x], 1) if g.sum() > 0 else join(x * 2.0, g)


BODIES: dict[str, tuple[Body, Body]] = {
    "columns": (lambda g, x: layer.concat([layer.tanh(g), x], 1), lambda g, x: torch.cat([torch.tanh(g), x], 1)),
    "rows": (lambda g, x: layer.concat([g * 1.5, x], 0), lambda g, x: torch.cat([g * 1.5, x])),
    "padded": (lambda g, x: layer.pad(g * 2.0, [0, 0, 1, 2]), lambda g, x: F.pad(g * 2.0, (1, 2))),
    "cut": (lambda g, x: layer.slice(layer.concat([g, g], 1), [1], [2], [100]), lambda g, x: torch.cat([g, g], 1)[:, 2:]),
    "doubled": (lambda g, x: layer.concat([g, g * 0.5], 1), lambda g, x: torch.cat([g, g * 0.5], 1)),
    "nested": (nested, lambda g, x: torch.cat([g, x, x], 1)),
    "branches": (branched(lambda x, g: layer.concat([x, g], 1)), in_torch(lambda x, g: torch.cat([x, g], 1))),
    "branches of other sizes": (branched(lambda x, g: layer.concat([x, g, x], 1)), in_torch(lambda x, g: torch.cat([x, g, x], 1))),
}


@pytest.mark.quick_cases("doubled")
@pytest.mark.parametrize("name", each(2, BODIES))
def test_what_has_other_sizes_after_each_round(name: str) -> None:
    here, there = BODIES[name]

    def describe(x: fs.Variable) -> Any:
        (y,) = looped(lambda i, g: here(g, x), [layer.assign(x)], ROUNDS)
        return layer.reduce_sum(layer.square(y) * 0.5), y

    def eager(x: Any) -> Any:
        y = x
        for _ in range(ROUNDS):
            y = there(y, x)
        return (y.square() * 0.5).sum()

    expect(*trained(describe), eager)


def test_convolutions_that_shrink_a_series() -> None:
    series = np.random.RandomState(2).randn(2, 2, 9).astype("float32")

    def describe() -> Any:
        s = differentiable("s", ["batch", 2, 9])
        (y,) = looped(lambda i, g: layer.conv1d(g, 2, 3, weight="w", bias=False), [layer.assign(s)], ROUNDS)
        loss = layer.reduce_sum(layer.square(y))
        fs.append_backward(loss, [s, "w"])
        return loss

    program, startup, loss = build(describe)
    scope = started(startup)
    leaves = [torch.tensor(given, requires_grad=True) for given in (series, scope.get("w").copy())]
    y = leaves[0]
    for _ in range(ROUNDS):
        y = F.conv1d(y, leaves[1].view(2, 2, 3))
    assert_loss_and_gradients(run_all(program, {"s": series}, [loss, "s@GRAD", "w@GRAD"], scope), y.square().sum(), *leaves)


def test_an_input_that_a_loop_itself_lengthens() -> None:
    """As PaddlePaddle's loops write the variables that they are given."""

    def describe(x: fs.Variable) -> Any:
        z = layer.scale(x, 2.0)
        i, limit, block = count(0), count(ROUNDS), fs.default_main_program().global_block
        going = layer.less_than(i, limit)
        inner = fs.default_main_program().create_block(block)
        longer = inner.apply("concat", {"X": [x, z]}, {"axis": 1})
        inner.append_op("assign", {"X": longer}, {"Out": x})
        inner.append_op("increment", {"X": i}, {"Out": i}, {"step": 1.0})
        inner.append_op("less_than", {"X": i, "Y": limit}, {"Out": going})
        block.append_op("while", {"X": [x, z, i, limit], "Condition": going}, {"Out": [x, i, going]}, {"sub_block": inner.idx})
        return layer.reduce_sum(layer.square(x))

    expect(*trained(describe), lambda x: torch.cat([x, *[x * 2.0] * ROUNDS], 1).square().sum())


RANKS = {
    "from [] to [1]": ([], [1], lambda t, w: t * 2.0 + w),
    "from [1] to []": ([1], [3], lambda t, w: layer.reduce_sum(w * t)),
    "from [] to [1, 1]": ([], [1, 1], lambda t, w: t * 2.0 + w),
}


@pytest.mark.quick_cases(one_in=3, turn=2)
@pytest.mark.parametrize("rounds", [0, 1, 3])
@pytest.mark.parametrize("name", RANKS)
def test_one_number_whose_rank_changes(name: str, rounds: int) -> None:
    before, dims, body = RANKS[name]

    def describe() -> Any:
        s, w = differentiable("s", before), differentiable("w", dims)
        (t,) = looped(lambda i, t: body(t, w), [layer.assign(s)], rounds)
        loss = layer.reduce_sum(layer.square(t))
        fs.append_backward(loss, [s, w])
        return loss, t

    program, _, (loss, t) = build(describe)
    feed = {"s": np.full(before, 1.5, "float32"), "w": np.linspace(0.5, 1.0, int(np.prod(dims)), dtype="float32").reshape(dims)}
    leaves = [torch.tensor(feed[n], requires_grad=True) for n in ("s", "w")]
    value = leaves[0]
    for _ in range(rounds):
        value = (leaves[1] * value).sum() if dims == [3] else value * 2.0 + leaves[1]
    found = run_all(program, feed, [loss, "s@GRAD", "w@GRAD", t])
    assert_loss_and_gradients(found[:3], value.square().sum(), *leaves)
    assert list(np.shape(found[3])) == t.packed_shape == max(before, [1] if dims == [3] else dims, key=len)


@pytest.mark.quick_cases("True")
@pytest.mark.parametrize("loops", [True, False])
def test_an_array_that_both_branches_write_to(loops: bool) -> None:
    """As lists become in PaddlePaddle: each branch gives the array, and one of both is selected."""
    rng = np.random.RandomState(0)
    feed = {"x": rng.randn(2, 3).astype("float32"), "w": rng.randn(3, 3).astype("float32")}

    def describe() -> Any:
        x, w = differentiable("x", ["batch", 3]), differentiable("w", [3, 3])

        def appended(even: fs.Variable, array: fs.Variable) -> fs.Variable:
            def one(value: fs.Variable) -> fs.Variable:
                return layer.array_write(value, layer.array_length(array), array)

            return layer.cond(even, lambda: one(layer.tanh(layer.matmul(x, w))), lambda: one(x * 2.0 + layer.reduce_sum(w)))

        array = layer.create_array("float32")
        if loops:
            even = layer.fill_constant([1], "bool", True)
            array = looped(lambda i, even, array: [layer.logical_not(even), appended(even, array)], [even, array], ROUNDS)[1]
        else:
            for at in range(ROUNDS):
                array = appended(layer.less_than(count(at % 2), count(1)), array)
        loss = layer.reduce_sum(layer.square(layer.tensor_array_to_tensor(array)[0]))
        fs.append_backward(loss, [x, w])
        return loss, array

    program, _, (loss, array) = build(describe)
    assert array.spec.text() == "array f32[batch, 3]"
    x, w = (torch.tensor(feed[n], requires_grad=True) for n in ("x", "w"))
    parts = [x * 2.0 + w.sum() if at % 2 else torch.tanh(x @ w) for at in range(ROUNDS)]
    assert_loss_and_gradients(run_all(program, feed, [loss, "x@GRAD", "w@GRAD"]), torch.cat(parts).square().sum(), x, w)


@pytest.mark.parametrize("first", [True, False])
def test_one_of_two_arrays(first: bool) -> None:
    feed = {"x": np.arange(6, dtype="float32").reshape(2, 3), "which": np.array([first])}

    def describe() -> Any:
        x, which = differentiable("x", ["batch", 3]), layer.data("which", [1], "bool")
        one = layer.array_write(x * 3.0, count(0))
        other = layer.array_write(layer.square(x), count(1), layer.array_write(layer.concat([x, x], 0), count(0)))
        array = layer.cond(which, lambda: one, lambda: other)
        loss = layer.reduce_sum(layer.square(layer.tensor_array_to_tensor(array)[0])) + layer.reduce_sum(layer.array_read(one, count(0)))
        fs.append_backward(loss, [x])
        return loss, array

    program, _, (loss, array) = build(describe)
    x = torch.tensor(feed["x"], requires_grad=True)
    wanted = (x * 3.0).square().sum() if first else torch.cat([x, x, x.square()]).square().sum()
    found = run(program, feed, [loss, "x@GRAD", array])
    assert_loss_and_gradients(found[:2], wanted + (x * 3.0).sum(), x)
    assert len(found[2]) == (1 if first else 2)


def test_arrays_of_other_elements_are_not_selected_from() -> None:
    x, which = layer.data("x", ["batch", 3]), layer.data("which", [1], "bool")
    one, other = layer.array_write(x, count(0)), layer.array_write(layer.cast(x, "int64"), count(0))
    with pytest.raises(fs.ShapeError, match="the elements of all X must have one element type"):
        layer.cond(which, lambda: one, lambda: other)
    with pytest.raises(fs.TypeMismatchError, match="either all X are arrays or none is"):
        layer.cond(which, lambda: one, lambda: x)
