"""Arrays of tensors and rank tables in loops: values and gradients as of the same in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.described import build, count, differentiable, forms_of, looped, run, same

import foreshape as fs
from foreshape import layer
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.transforms.backward import append_backward


def weights() -> tuple[fs.Variable, fs.Variable]:
    return differentiable("w", [2, 3]), differentiable("u", [3, 3])


def numbers(rows: int, sequences: int) -> dict[str, Any]:
    rng = np.random.RandomState(0)
    shapes = {"x": (rows, 2), "h0": (sequences, 3), "w": (2, 3), "u": (3, 3)}
    return {n: rng.randn(*shape).astype("float32") for n, shape in shapes.items()}


def in_torch(feed: dict[str, Any], compute: Callable[..., Any]) -> tuple[Any, dict[str, Any]]:
    tensors = {n: torch.tensor(np.asarray(v), requires_grad=True) for n, v in feed.items()}
    loss = compute(**tensors)
    loss.backward()
    return loss.item(), {n: t.grad if t.grad is not None else torch.zeros_like(t) for n, t in tensors.items()}


@pytest.mark.quick_cases("[2, 3, 0, 4, 1]")
@pytest.mark.parametrize("lengths", [[2, 3, 0, 4, 1], [0, 0], [1]], ids=str)
def test_a_recurrence_over_ragged_data_is_that_over_each_sequence(lengths: list[int]) -> None:
    def describe() -> Any:
        x, h0 = differentiable("x", [-1, 2], lod_level=1), differentiable("h0", ["batch", 3])
        w, u = weights()
        table = layer.lod_rank_table(x)
        steps = layer.max_sequence_len(table)
        inputs, outputs = layer.lod_tensor_to_array(x, table), layer.create_array("float32")

        def step(i: fs.Variable, state: fs.Variable) -> fs.Variable:
            new = layer.tanh(layer.matmul(layer.array_read(inputs, i), w) + layer.matmul(layer.shrink_memory(state, i, table), u))
            layer.array_write(new, i, outputs)
            return new

        looped(step, [layer.reorder_lod_tensor_by_rank(h0, table)], steps)
        out = layer.array_to_lod_tensor(outputs, table)
        loss = layer.mean(layer.reduce_sum(out * out) + layer.reduce_sum(layer.sequence_last_step(out)))
        append_backward(loss, [x, h0, w, u])
        return outputs, out, loss

    program, _, (outputs, out, loss) = build(describe)
    assert outputs.spec.text() == "array f32[array_0.each0, 3]"
    assert out.spec.text() == "f32[x | batch, 3]" and out.spec.lod is program.var("x").spec.lod
    feed = numbers(sum(lengths), len(lengths))

    def compute(x: Any, h0: Any, w: Any, u: Any) -> Any:
        total, at = (x.sum() + h0.sum() + w.sum() + u.sum()) * 0, 0
        for k, length in enumerate(lengths):
            h = h0[k]
            for _ in range(length):
                h, at = torch.tanh(x[at] @ w + h @ u), at + 1
                total = total + (h * h).sum()
            total = total + (h.sum() if length else 0)
        return total

    want, gradients = in_torch(feed, compute)
    given = feed | {"x": LoDTensor(feed["x"], [lengths])}
    for one in forms_of(program):
        for check in (False, True):
            got = run(one, given, [loss, out, *(f"{n}@GRAD" for n in feed)], check)
            same(got[0], want)
            assert got[1].sequence_lengths == got[2].sequence_lengths == [lengths]
            assert np.asarray(got[1]).shape == (sum(lengths), 3)
            for name, gradient in zip(feed, got[2:], strict=True):
                same(gradient, gradients[name])


def test_a_loop_may_keep_its_state_in_an_array() -> None:
    """Element i + 1 is made of elements i and i - 1, each read twice; all gradients meet in one array."""

    def describe() -> Any:
        x, u = differentiable("x", ["batch", 3]), differentiable("u", [3, 3])
        steps = layer.data("steps", shape=[1], dtype="int64")
        states = layer.array_write(x, count(0))
        layer.array_write(layer.tanh(x), count(1), states)

        def step(i: fs.Variable) -> None:
            before, now = layer.array_read(states, i), layer.array_read(states, i + 1)
            layer.array_write(layer.tanh(layer.matmul(now, u)) + before * now, i + 2, states)

        looped(step, [], steps)
        last = layer.array_read(states, layer.array_length(states) - 1)
        joined, _ = layer.tensor_array_to_tensor(states)
        loss = layer.mean(layer.reduce_sum(last * last) + layer.reduce_sum(joined))
        append_backward(loss, [x, u])
        return states, loss

    program, _, (states, loss) = build(describe)
    assert states.spec.text() == "array f32[batch, 3]"
    feed = {"x": np.random.RandomState(1).randn(4, 3).astype("float32"), "u": numbers(1, 1)["u"]}
    for steps in (0, 1, 4):

        def compute(x: Any, u: Any, steps: int = steps) -> Any:
            states = [x, torch.tanh(x)]
            for i in range(steps):
                states.append(torch.tanh(states[i + 1] @ u) + states[i] * states[i + 1])
            return (states[-1] * states[-1]).sum() + sum(s.sum() for s in states)

        want, gradients = in_torch(feed, compute)
        for one in forms_of(program):
            got = run(one, feed | {"steps": np.array([steps])}, [loss, states, *(f"{n}@GRAD" for n in feed)])
            same(got[0], want)
            assert len(got[1]) == steps + 2
            for name, gradient in zip(feed, got[2:], strict=True):
                same(gradient, gradients[name])


def test_what_a_round_joins_is_what_the_array_held_then() -> None:
    def describe() -> fs.Variable:
        x, total = differentiable("x", ["batch", 3]), layer.fill_constant([], "fp32", 0.0)
        array = layer.create_array("float32")

        def step(i: fs.Variable, total: fs.Variable) -> fs.Variable:
            layer.array_write(x * layer.cast(i + 1, "float32"), i, array)
            joined, _ = layer.tensor_array_to_tensor(array)
            return total + layer.reduce_sum(joined * joined)

        (total,) = looped(step, [total], 3)
        loss = layer.mean(total)
        append_backward(loss, [x])
        return loss

    program, _, loss = build(describe)
    feed = {"x": np.random.RandomState(1).randn(4, 3).astype("float32")}
    want, gradients = in_torch(feed, lambda x: sum(((k + 1) * x).square().sum() * (3 - k) for k in range(3)))
    for one in forms_of(program):
        got = run(one, feed, [loss, "x@GRAD"])
        same(got[0], want)
        same(got[1], gradients["x"])


def test_loops_and_branches_within_loops_write_to_one_array() -> None:
    def describe() -> Any:
        x, w = differentiable("x", ["batch", 3]), differentiable("u", [3, 3])
        out = layer.array_write(x, count(0))

        def outer(i: fs.Variable) -> None:
            def inner(j: fs.Variable) -> None:
                at = i * 2 + j
                value = layer.array_read(out, at)
                odd = layer.equal(j, count(1))
                chosen = layer.cond(odd, lambda: layer.tanh(layer.matmul(value, w)), lambda: value * value)
                layer.array_write(chosen, at + 1, out)

            looped(inner, [], 2)

        looped(outer, [], 2)
        loss = layer.mean(layer.reduce_sum(layer.tensor_array_to_tensor(out)[0]))
        append_backward(loss, [x, w])
        return out, loss

    program, _, (out, loss) = build(describe)
    feed = {"x": np.random.RandomState(1).randn(4, 3).astype("float32"), "u": numbers(1, 1)["u"]}

    def compute(x: Any, u: Any) -> Any:
        values = [x]
        for at in range(4):
            values.append(torch.tanh(values[-1] @ u) if at % 2 else values[-1] * values[-1])
        return sum(v.sum() for v in values)

    want, gradients = in_torch(feed, compute)
    for one in forms_of(program):
        got = run(one, feed, [loss, out, "x@GRAD", "u@GRAD"])
        same(got[0], want)
        assert len(got[1]) == 5
        same(got[2], gradients["x"])
        same(got[3], gradients["u"])


def test_sequences_of_sequences_go_through_a_loop() -> None:
    """Of each paragraph, sentence by sentence: a state that the mean of the sentence's words moves."""
    lengths = [[2, 1, 3], [1, 2, 3, 1, 2, 1]]

    def describe() -> Any:
        x, h0 = differentiable("x", [-1, 2], lod_level=2), differentiable("h0", ["batch", 3])
        w, u = weights()
        table = layer.lod_rank_table(x)
        sentences, outputs = layer.lod_tensor_to_array(x, table), layer.create_array("float32")

        def step(i: fs.Variable, state: fs.Variable) -> fs.Variable:
            mean = layer.sequence_pool(layer.array_read(sentences, i), "average")
            new = layer.tanh(layer.matmul(mean, w) + layer.matmul(layer.shrink_memory(state, i, table), u))
            layer.array_write(new, i, outputs)
            return new

        looped(step, [layer.reorder_lod_tensor_by_rank(h0, table)], layer.max_sequence_len(table))
        out = layer.array_to_lod_tensor(outputs, table)
        loss = layer.mean(layer.reduce_sum(out * out))
        append_backward(loss, [x, h0, w, u])
        return out, loss

    program, _, (out, loss) = build(describe)
    feed = numbers(10, 3)

    def compute(x: Any, h0: Any, w: Any, u: Any) -> Any:
        total, at, sentence = 0, 0, 0
        for k, sentences in enumerate(lengths[0]):
            h = h0[k]
            for _ in range(sentences):
                size, sentence = lengths[1][sentence], sentence + 1
                h, at = torch.tanh(x[at : at + size].mean(0) @ w + h @ u), at + size
                total = total + (h * h).sum()
        return total

    want, gradients = in_torch(feed, compute)
    for one in forms_of(program):
        got = run(one, feed | {"x": LoDTensor(feed["x"], lengths)}, [loss, out, *(f"{n}@GRAD" for n in feed)])
        same(got[0], want)
        assert got[1].sequence_lengths == lengths[:1] and got[2].sequence_lengths == lengths
        for name, gradient in zip(feed, got[2:], strict=True):
            same(gradient, gradients[name])
