"""Blocks of a frozen step: their constants are folded and packed as the step's own, and they compute the same."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from support.frozen_nets import Net, images, kernels_of

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, region_of
from foreshape.machine.kernels.onednn_library import library

__all__ = ["kernels_of"]


def block(x: Any, channels: int = 4) -> Any:
    return layer.relu(layer.batch_norm(layer.conv2d(x, channels, 3, padding=1), is_test=True))


def chosen(x: Any) -> Any:
    return layer.cond(layer.mean(x) > 0.0, lambda: block(x), lambda: layer.conv2d(layer.transpose(block(x, 5), [0, 1, 3, 2]), 4, 1))


def in_turn(x: Any) -> Any:
    by = layer.create_parameter([6, 6], fs.FP32)

    def step(n: Any, y: Any) -> list[Any]:
        return [n + 1, layer.tanh(layer.matmul(y, layer.transpose(by, [1, 0]))) * layer.fill_constant([6], "float32", 0.5)]

    return layer.while_loop(lambda n, y: n < 3, step, [layer.fill_constant([1], "int64", 0), x])[1]


def nested(x: Any) -> Any:
    half = layer.fill_constant([1], "float32", 0.5)

    def step(n: Any, y: Any) -> list[Any]:
        return [n + 1, layer.cond(layer.mean(y) > half, lambda: layer.fc(y, 6, activation="relu") * half, lambda: layer.fc(y, 6) + 1.0)]

    return layer.while_loop(lambda n, y: n < 4, step, [layer.fill_constant([1], "int64", 0), x])[1]


NETWORKS: dict[str, tuple[Callable[[Any], Any], Any]] = {
    "chosen": (chosen, images(2, 3, 6, 6)),
    "in turn": (in_turn, images(5, 6)),
    "nested": (nested, images(5, 6)),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", NETWORKS)
def test_a_network_with_blocks_computes_the_same(name: str) -> None:
    describe, x = NETWORKS[name]
    net = Net(describe, np.abs(x))
    executor = net.same()
    net.same(-np.abs(x), executor)
    for parameter in net.scope.names():  # the step is bound anew
        net.scope.set(parameter, net.scope.get(parameter) * 0.5)
    net.same(executor=executor)


def inner_calls(net: Net, executor: fs.Executor) -> list[list[KernelCall]]:
    return [region.lowered.calls for i in executor.step(net.main, net.fetch).emitted.lowered.calls if (region := region_of(i)) is not None]


def test_the_calls_of_a_block_are_rewritten_as_a_steps() -> None:
    net = Net(chosen, images(2, 3, 6, 6))
    first, second = ([i for i in calls if i.kernels and i.results] for calls in inner_calls(net, net.same()))
    assert [len([i for i in calls if isinstance(i, FusedCall) or i.op.type != "assign"]) for calls in (first, second)] == [1, 3]
    net = Net(in_turn, images(5, 6))
    (calls,) = inner_calls(net, net.same())
    assert "transpose" not in {i.op.type for i in calls if i.reads()}


def test_a_parameter_that_a_block_changes_is_no_constant() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        x = layer.data("x", shape=["batch", 4])
        weight = layer.create_parameter([4, 4], fs.FP32)

        def changed() -> Any:
            y = layer.matmul(x, weight)
            layer.assign(weight * 0.5, weight)
            return y

        out = layer.cond(layer.mean(x) > 0.0, changed, lambda: layer.matmul(x, weight) + 1.0)
    found: list[list[Any]] = []
    for frozen in (False, True):
        scope, executor = fs.Scope(), fs.Executor(seed=1, frozen=frozen)
        fs.Executor(seed=1).run(startup, scope=scope)
        found.append([executor.run(main, {"x": np.full((2, 4), sign, "float32")}, out, scope)[0] for sign in (1.0, 1.0, -1.0, 1.0)])
    for plain, kept in zip(*found, strict=True):
        np.testing.assert_allclose(kept, plain, rtol=1e-6, atol=1e-6)
    assert not np.allclose(found[1][0], found[1][1])


def along_one_axis(x: Any) -> Any:
    """Convolutions along one axis, as files of ONNX have them: of images of one row."""

    def convolved(y: Any, channels: int) -> Any:
        return layer.squeeze(layer.conv2d(layer.unsqueeze(y, [2]), channels, (1, 3), padding=(0, 1)), [2])

    parts = convolved(x, 8)
    low, high = layer.slice(parts, [1], [0], [4]), layer.slice(parts, [1], [4], [8])
    return layer.relu(convolved(layer.relu(convolved(layer.sqrt(layer.square(low) + layer.square(high)), 6)), 5))


def test_functions_between_convolutions_along_one_axis_are_of_images() -> None:
    net = Net(along_one_axis, images(2, 3, 9), ["batch", 3, "width"])
    executor = net.same()
    assert "squeeze2" not in {i.op.type for i in executor.step(net.main, net.fetch).emitted.lowered.calls[:-2]}
    net.same(images(1, 3, 4), executor)


def small_calls(x: Any) -> list[Any]:
    """Sizes, picked entries and views as exporters write them; x [batch, 3, width]."""
    at = layer.fill_constant([1], "int64", 1)
    one = layer.squeeze(layer.gather(layer.transpose(x, [1, 0, 2]), at), [0])
    sizes = layer.cast(layer.shape(x), "int64")
    wide = layer.gather(sizes, layer.fill_constant([1], "int64", 2))
    mean = layer.reduce_mean(layer.unsqueeze(layer.unsqueeze(one, [1]), [1]), [1, 2])
    return [one + 1.0, layer.cast(wide, "float32") * 2.0, layer.slice(layer.cast(x, "float32"), [2], [-3], [-1]) * 2.0, layer.assign(mean) * 3.0]


def test_small_calls_that_inference_knows_better() -> None:
    net = Net(small_calls, images(2, 3, 7), ["batch", 3, "width"])
    executor = net.same()
    kinds = [i.op.type for i in executor.step(net.main, net.fetch).emitted.lowered.calls]
    assert not {"shape", "assign", "reduce_mean"} & set(kinds)
    net.same(images(1, 3, 4), executor)


def attention(x: Any) -> Any:
    """A layer of a transformer whose q, k and v are products of the same rows."""

    def heads(y: Any) -> Any:
        return layer.transpose(layer.reshape(y, [0, 0, 4, 8]), [0, 2, 1, 3])

    q, k, v = (heads(layer.fc(x, 32, flatten_last=1)) for _ in range(3))
    scores = layer.softmax(layer.matmul(q, k, transpose_y=True) * 0.35)
    y = layer.reshape(layer.transpose(layer.matmul(scores, v), [0, 2, 1, 3]), [0, 0, 32])
    return layer.layer_norm(layer.fc(y, 32, flatten_last=1) + x, begin_norm_axis=2)


def test_products_of_the_same_rows_are_one_and_a_residual_is_part_of_its_product() -> None:
    net = Net(attention, images(2, 5, 32), ["batch", "length", 32])
    executor = net.same()
    lowered = executor.step(net.main, net.fetch).emitted.lowered
    joined = sum("joined" in (v.name for v in i.writes()) for i in lowered.calls)
    assert joined == (library() is None)  # otherwise all is one series, with the attention between the products
    assert library() is None or len([i for i in lowered.calls if i.reads()]) == 1
    net.same(images(1, 3, 32), executor)


def test_parts_of_a_parameter_are_cut_once() -> None:
    def turned(x: Any) -> Any:
        parts = layer.split(layer.create_parameter([8, 4], fs.FP32), 4)
        return layer.matmul(x, layer.concat([parts[0], parts[2], parts[3], parts[1]]), transpose_y=True)

    net = Net(turned, images(3, 4))
    assert "split" not in {i.op.type for i in net.same().step(net.main, net.fetch).emitted.lowered.calls if i.reads()}


def excited(x: Any, by_row: bool = False) -> list[Any]:
    """Images with their product by gates of channels added, in each order, and the gates themselves; ``by_row``: the gates are of rows, too."""
    y = block(x)
    gates = layer.hard_sigmoid(layer.conv2d(layer.reduce_mean(y, [3] if by_row else [2, 3], keepdim=True), 4, 1))
    first = y + y * gates
    return [block(gates * first + first), gates]


@pytest.mark.parametrize("by_row", [False, True])
def test_a_tensor_and_its_product_by_gates_are_one_product(by_row: bool) -> None:
    net = Net(partial(excited, by_row=by_row), images(2, 3, 7, 5), ["batch", 3, 7, 5])
    executor = net.same()
    lowered = executor.step(net.main, net.fetch).emitted.lowered
    parts = [part for i in lowered.calls for part in (i.parts if isinstance(i, FusedCall) and i.parts else [[i.op]])]
    assert "elementwise_add" not in {op.type for part in parts for op in part}
    net.same(images(1, 3, 7, 5, seed=1), executor)


def test_a_product_by_gates_that_is_read_again_stays() -> None:
    def describe(x: Any) -> Any:
        y = block(x)
        product = y * layer.sigmoid(layer.reduce_mean(y, [2, 3], keepdim=True))
        return layer.concat([block(y + product), block(product)], axis=1)

    Net(describe, images(2, 3, 6, 6)).same()


@pytest.mark.parametrize("reads", ["the input", "a value of the series"])
def test_a_series_goes_on_past_a_small_call_that_reads_none_of_its_values(reads: str) -> None:
    if library() is None:
        pytest.skip("oneDNN's library is switched off")

    def describe(x: Any) -> Any:
        h = layer.layer_norm(layer.fc(x, 32, "relu"))
        between = layer.cumsum(layer.slice(x if reads == "the input" else h, [1], [0], [3]), 1)
        out = layer.fc(layer.layer_norm(layer.fc(h, 32, "relu")), 3)
        return [layer.exp(between), out]

    net = Net(describe, images(5, 8))
    calls = net.same().step(net.main, net.fetch).emitted.lowered.calls
    assert sum("series" in i.kernel.packed for i in calls if isinstance(i, FusedCall)) == (1 if reads == "the input" else 2)
