"""Arrays of tensors: elements written, read, joined and refused, and their gradients."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.described import build, count, differentiable, forms_of, run, same

from foreshape import layer
from foreshape.core.values.lod_tensor import LoDTensor
from foreshape.errors import ExecutionError, ShapeError, TypeMismatchError
from foreshape.transforms.backward import append_backward


def test_elements_are_written_overwritten_and_left_out() -> None:
    def describe() -> Any:
        a, b = layer.data("a", shape=[2, 3]), layer.data("b", shape=[4, 3])
        array = layer.array_write(a, count(0))
        layer.array_write(b, count(3), array)
        layer.array_write(a + a, count(0), array)
        return array, layer.array_length(array), layer.array_read(array, count(3))

    program, _, (array, length, last) = build(describe)
    assert array.spec.text() == "array f32[array_0.each0, 3]"
    assert array.dims == [-1, 3] and last.dims == [-1, 3] and length.dims == [1]
    a, b = np.ones((2, 3), "float32"), np.full((4, 3), 2, "float32")
    for one in forms_of(program):
        for check in (False, True):
            elements, number, read = run(one, {"a": a, "b": b}, [array, length, last], check)
            assert elements[1] is None and elements[2] is None and number.tolist() == [4]
            same(elements[0], a + a)
            same(elements[3], b)
            same(read, b)


def test_two_elements_are_never_taken_to_be_of_one_size() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=[2, 3]), count(0))
        layer.array_write(layer.data("b", shape=[4, 3]), count(1), array)
        return layer.array_read(array, count(0)) + layer.array_read(array, count(1))

    program, _, _ = build(describe)
    assert [str(g.condition) for g in program.guards] == ["read_from_array_0.tmp_0.size0 == read_from_array_1.tmp_0.size0, or one of them is 1"]


def test_elements_of_one_size_keep_it() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=["batch", 3]), count(0))
        layer.array_write(layer.data("b", shape=["batch", 3]), count(1), array)
        return layer.array_read(array, count(1)), *layer.tensor_array_to_tensor(array, axis=1), *layer.tensor_array_to_tensor(array, use_stack=True)

    _, _, (read, joined, sizes, stacked, _) = build(describe)
    assert read.spec.text() == "f32[batch, 3]"
    assert joined.spec.text().endswith("f32[batch, 3*tensor_array_to_tensor_0.tmp_0.elements]") and sizes.dims == [-1]
    assert stacked.spec.text() == "f32[tensor_array_to_tensor_1.tmp_0.elements, batch, 3]"


def test_elements_keep_their_sequences() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=[-1, 1], lod_level=2), count(0))
        layer.array_write(layer.data("b", shape=[-1, 1], lod_level=2), count(1), array)
        return array, layer.array_read(array, count(1))

    program, _, (array, read) = build(describe)
    assert array.lod_level == read.lod_level == 2
    a = LoDTensor(np.arange(3, dtype="float32").reshape(3, 1), [[1, 1], [3, 0]])
    b = LoDTensor(np.arange(4, dtype="float32").reshape(4, 1), [[0, 3], [1, 1, 2]])
    for one in forms_of(program):
        elements, second = run(one, {"a": a, "b": b}, [array, read])
        assert [e.sequence_lengths for e in elements] == [a.sequence_lengths, b.sequence_lengths]
        assert second.sequence_lengths == b.sequence_lengths
        same(second, b)


def test_an_array_that_nothing_was_written_to_is_empty() -> None:
    def describe() -> Any:
        array = layer.create_array("float32")
        return array, layer.array_length(array), layer.array_length(layer.assign(array))

    program, _, (array, *lengths) = build(describe)
    for one in forms_of(program):
        assert [np.asarray(x).tolist() for x in run(one, {}, [array, *lengths])] == [[], [0], [0]]


def test_what_cannot_be_read_or_written_is_refused() -> None:
    def describe() -> Any:
        array = layer.array_write(layer.data("a", shape=[2, 3]), count(1))
        at = layer.data("at", shape=[1], dtype="int64")
        other = layer.array_write(layer.data("a2", shape=[2, 3]), count(0))
        return layer.array_read(array, at), layer.array_write(layer.data("b", shape=[2, 3]), at, other)

    program, _, (read, written) = build(describe)
    a = np.zeros((2, 3), "float32")
    for at in (0, 2, -1):
        with pytest.raises(ExecutionError, match=f"nothing was written at position {at} of this array; it has 2 positions"):
            run(program, {"a": a, "at": np.array([at])}, [read])
    for at in (-1, 1 << 40):
        with pytest.raises(ExecutionError, match="a position in an array must be from 0"):
            run(program, {"a2": a, "b": a, "at": np.array([at])}, [written])


def test_elements_must_be_alike() -> None:
    def fill(first: Any, second: Any) -> Callable[[], Any]:
        return lambda: layer.array_write(second(), count(1), layer.array_write(first(), count(0)))

    plain = lambda: layer.data("a", shape=[2, 3])  # noqa: E731
    with pytest.raises(TypeMismatchError, match=r"the elements of array_0 are f32\[2, 3\], and this one is i64\[2, 3\]"):
        build(fill(plain, lambda: layer.data("b", shape=[2, 3], dtype="int64")))
    with pytest.raises(ShapeError, match="as many dims and levels"):
        build(fill(plain, lambda: layer.data("b", shape=[2])))
    with pytest.raises(ShapeError, match="as many dims and levels"):
        build(fill(plain, lambda: layer.data("b", shape=[-1, 3], lod_level=1)))
    with pytest.raises(TypeMismatchError, match="array must be an array of tensors"):
        build(lambda: layer.array_write(plain(), count(0), layer.data("b", shape=[2, 3])))


def test_gradients_are_gathered_element_by_element() -> None:
    def describe() -> Any:
        a, b = differentiable("a", [2, 3]), differentiable("b", [2, 3])
        array = layer.array_write(a, count(0))
        lost = layer.array_read(array, count(0))  # read before it is overwritten
        layer.array_write(a * b, count(0), array)
        layer.array_write(b, count(1), array)
        copy = layer.assign(array)
        layer.array_write(a, count(2), array)  # nobody reads it
        joined, _ = layer.tensor_array_to_tensor(copy, use_stack=True)
        first = layer.array_read(array, count(0))
        loss = layer.mean(layer.reduce_sum(lost * lost) + layer.reduce_sum(joined * joined) + layer.reduce_sum(first * a))
        append_backward(loss, [a, b])
        return loss

    program, _, loss = build(describe)
    rng = np.random.RandomState(0)
    feed = {n: rng.randn(2, 3).astype("float32") for n in "ab"}
    a, b = (torch.tensor(feed[n], requires_grad=True) for n in "ab")
    want = (a * a).sum() + (a * b * a * b).sum() + (b * b).sum() + (a * b * a).sum()
    want.backward()
    for one in forms_of(program):
        for check in (False, True):
            got = run(one, feed, [loss, "a@GRAD", "b@GRAD"], check)
            for x, y in zip(got, [want.detach(), a.grad, b.grad], strict=True):
                same(x, y)


def test_what_is_overwritten_has_no_gradient() -> None:
    def describe() -> None:
        a, b = differentiable("a", [2, 3]), differentiable("b", [2, 3])
        array = layer.array_write(a, count(0))
        layer.array_write(b, count(1), array)
        layer.array_write(layer.fill_constant([2, 3], "fp32", 2.0), count(0), array)
        joined, _ = layer.tensor_array_to_tensor(array)
        append_backward(layer.mean(layer.reduce_sum(joined * joined)), [a, b])

    program, _, _ = build(describe)
    ones = np.ones((2, 3), "float32")
    for one in forms_of(program):
        a, b = run(one, {"a": ones, "b": ones}, ["a@GRAD", "b@GRAD"])
        same(a, 0 * ones)
        same(b, 2 * ones)
