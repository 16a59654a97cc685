"""Steps whose parameters never change: what is folded and packed, and that it computes the same."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.frozen_nets import Net, images, kernels_of, number

import foreshape as fs
from foreshape import layer
from foreshape.compiler.memory import Plan
from foreshape.machine.kernels import frozen as kernels
from foreshape.machine.kernels.joined_groups import join, joined
from foreshape.machine.kernels.onednn_library import Unimplemented, library
from foreshape.machine.kernels.onednn_packed import PackedConvolution

__all__ = ["kernels_of"]
ACTIVATIONS: dict[str, Callable[[Any], Any]] = {
    "none": lambda y: y,
    "relu": layer.relu,
    "relu6": layer.relu6,
    "sigmoid": layer.sigmoid,
    "tanh": layer.tanh,
    "swish": layer.swish,
    "hard_swish": layer.hard_swish,
    "hard_sigmoid": lambda y: layer.hard_sigmoid(y, slope=1 / 6),
    "steeper_sigmoid": layer.hard_sigmoid,
    "leaky_relu": layer.leaky_relu,
    "gelu": layer.gelu,
    "exp": layer.exp,
}
APART = ("exp",)
"""Those that oneDNN does not have."""


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_a_convolution_with_what_follows_is_one_call(activation: str) -> None:
    net = Net(lambda x: ACTIVATIONS[activation](layer.batch_norm(layer.conv2d(x, 8, 3, padding=1))), images(2, 3, 9, 7))
    assert net.calls(net.same()) == (2 if activation in APART else 1)


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_a_residual_sum_is_part_of_it(activation: str) -> None:
    def block(x: Any) -> Any:
        y = layer.batch_norm(layer.conv2d(layer.relu(layer.batch_norm(layer.conv2d(x, 8, 1))), 4, 3, padding=1))
        return ACTIVATIONS[activation](layer.conv2d(x, 4, 1) + y)

    net = Net(block, images(2, 4, 5, 6))
    assert net.calls(net.same()) == 3


def test_a_sum_with_itself_and_a_sum_that_broadcasts_stay() -> None:
    def odd(x: Any) -> list[Any]:
        y, z = layer.conv2d(x, 4, 3), layer.conv2d(x, 4, 3)
        return [y + y, z + layer.reduce_mean(z, [2, 3], keepdim=True)]

    Net(odd, images(2, 3, 6, 6)).same()


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("case", [
    {"kernel_size": (5, 1), "padding": (2, 0)}, {"kernel_size": (4, 1), "stride": (2, 3), "groups": 2}, {"kernel_size": (3, 1), "dilation": (2, 1)},
    {"kernel_size": (3, 1), "padding": (0, 1)}, {"kernel_size": (3, 1), "padding": "SAME"},
], ids=str)  # fmt: skip
def test_images_of_one_column(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def block(x: Any) -> Any:
        y = layer.conv2d(x, 6, activation="relu", **case)
        return y + layer.conv2d(layer.tanh(y), 6, 1)

    net = Net(block, images(2, 4, 11, 1), ["batch", 4, "height", 1])
    executor = net.same()
    net.same(images(3, 4, 8, 1), executor)
    monkeypatch.setattr(PackedConvolution, "_described", refused)  # by the other kernels
    net.same()


def test_filters_of_one_axis_are_those_of_images() -> None:
    def block(x: Any) -> Any:
        filters = layer.unsqueeze(layer.create_parameter([6, 4, 3], fs.FP32), [2])
        y = fs.default_main_program().global_block.apply("conv2d", {"Input": x, "Filter": filters}, {"paddings": [0, 1]})
        return layer.relu(layer.add(y, layer.create_parameter([6], fs.FP32, is_bias=True), axis=1))

    net = Net(block, images(2, 4, 1, 11))
    assert net.calls(net.same()) == 1


def refused(*_: Any) -> Any:
    raise Unimplemented("in a test")


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("case", [
    {"num_filters": 6, "kernel_size": 3, "groups": 3}, {"num_filters": 6, "kernel_size": 3, "groups": 6, "padding": 1}, {"num_filters": 5, "kernel_size": 1},
    {"num_filters": 4, "kernel_size": 1, "stride": 2}, {"num_filters": 4, "kernel_size": 3, "dilation": 2},
    {"num_filters": 4, "kernel_size": (3, 1), "padding": (1, 0)},
    {"num_filters": 4, "kernel_size": 1, "padding": 1}, {"num_filters": 4, "kernel_size": 3, "bias": False},
], ids=str)  # fmt: skip
def test_forms_of_convolutions(case: dict[str, Any]) -> None:
    Net(lambda x: layer.relu(layer.batch_norm(layer.conv2d(x, **case))), images(3, 6, 8, 7)).same()


@pytest.mark.parametrize(("channels", "groups", "filters"), [(16, 16, 48), (12, 6, 18), (32, 8, 8), (10, 10, 20), (24, 8, 40), (3, 3, 24)])
def test_groups_of_few_channels(channels: int, groups: int, filters: int) -> None:
    dims = ["batch", channels, "height", "width"]
    net = Net(lambda x: layer.relu(layer.batch_norm(layer.conv2d(x, filters, 3, padding=1, groups=groups))), images(2, channels, 8, 7), dims)
    executor = net.same()
    net.same(images(1, channels, 3, 4), executor)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("dims", "groups", "count"), [
    ((48, 1, 3, 3), 16, 8), ((18, 2, 3, 3), 6, 6), ((8, 4, 1, 1), 8, 2), ((20, 1, 3, 3), 10, 1), ((24, 1, 3, 3), 24, 1), ((40, 3, 5, 5), 8, 4),
    ((32, 8, 3, 3), 4, 1), ((32, 4, 3, 3), 1, 1), ((7, 4, 3, 3), 7, 7),
])  # fmt: skip
def test_as_many_groups_are_joined_as_make_a_vector(dims: tuple[int, ...], groups: int, count: int) -> None:
    assert joined(dims, groups) == count
    weight, x = torch.rand(dims), torch.rand(2, dims[1] * groups, 6, 7)
    wide = join(weight, groups, count)
    torch.testing.assert_close(torch.conv2d(x, wide, groups=groups // count), torch.conv2d(x, weight, groups=groups))


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("case", [
    {"kernel_size": 2, "stride": 2}, {"kernel_size": 3, "stride": 2, "padding": 1, "output_padding": 1}, {"kernel_size": 3, "dilation": 2, "padding": 1},
    {"kernel_size": (1, 3), "stride": (1, 2), "bias": False}, {"kernel_size": 3, "groups": 2},
], ids=str)  # fmt: skip
def test_forms_of_transposed_convolutions(case: dict[str, Any]) -> None:
    net = Net(lambda x: layer.relu(layer.batch_norm(layer.conv2d_transpose(x, 4, **case))), images(2, 6, 5, 4), ["batch", 6, "height", "width"])
    executor = net.same()
    assert (net.calls(executor) == 1) == ("groups" not in case)
    for dims in ((1, 6, 3, 7), (0, 6, 5, 4)):
        net.same(images(*dims), executor)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize(("out", "window", "bias"), [(1, (2, 2), None), (3, (2, 3), None), (2, (1, 4), False), (6, (4, 4), None)], ids=str)
def test_transposed_windows_side_by_side_within_a_series(out: int, window: tuple[int, int], bias: bool | None) -> None:
    def describe(x: Any) -> list[Any]:
        y = layer.conv2d(x, 5, 3, activation="relu")
        large = layer.sigmoid(layer.conv2d_transpose(y, out, window, stride=window, bias=bias))
        return [layer.conv2d(large, 4, 1), layer.conv2d_transpose(y, out, window, stride=window, bias=bias)]

    net = Net(describe, images(2, 3, 7, 6), ["batch", 3, "height", "width"])
    executor = net.same()
    for dims in ((1, 3, 4, 9), (0, 3, 5, 4)):
        net.same(images(*dims), executor)
    if library() is not None:
        for plain, seen in zip(net.run(fs.Executor()), net.run(fs.Executor(frozen=True, precision="bf16")), strict=True):
            np.testing.assert_allclose(seen, plain, atol=0.03 * np.abs(plain).max())


def test_products_and_sums_with_numbers_go_into_the_weight_and_the_rest_is_one_call() -> None:
    def block(x: Any) -> list[Any]:
        y = layer.batch_norm(layer.conv2d(x, 4, 3)) * number(0.7) + number(0.2)
        y = number(1.5) * layer.hard_swish(y) + number(-0.3)
        z = layer.conv2d(y, 6, 1, bias=False) * number(2.0, (1, 6, 1, 1))
        rows = layer.fc(layer.flatten(z), 40, bias=False) * number(0.5, (40,)) + number(0.1)
        return [layer.relu(z), rows]

    net = Net(block, images(2, 3, 7, 6))
    assert net.calls(net.same()) == 5  # two convolutions, a rectifier, rows and their product


@pytest.mark.parametrize("without", [{}, {"weight": False}, {"bias": False}, {"weight": False, "bias": False}], ids=str)
def test_normalized_rows_are_a_part_of_a_series(without: dict[str, Any]) -> None:
    def block(x: Any) -> list[Any]:
        y = layer.layer_norm(x + layer.fc(x, 12, flatten_last=1), begin_norm_axis=2, epsilon=1e-3, **without)
        return [layer.fc(y, 5, flatten_last=1), layer.layer_norm(layer.unsqueeze(y, [1]), begin_norm_axis=2, **without)]  # of four dims

    net = Net(block, images(2, 7, 12), ["batch", 7, 12])
    executor = net.same()
    most = max(i.kernels for i in executor.step(net.main, net.fetch).emitted.lowered.calls)
    assert most == (4 if library() is not None else 1)  # two products, the first with a sum, a normalization and what has four dims
    net.same(images(0, 7, 12), executor)


@pytest.mark.parametrize("activation", ["none", "relu", "hard_swish", "steeper_sigmoid"])
def test_one_number_for_all_behind_an_activation_is_part_of_the_kernel(activation: str) -> None:
    def block(x: Any) -> list[Any]:
        y = number(0.2) + number(1.5) * ACTIVATIONS[activation](layer.conv2d(x, 4, 3) + number(0.1))
        rows = layer.scale(ACTIVATIONS[activation](layer.fc(layer.flatten(y), 40)), -0.5) * number(3.0)
        return [y, rows]

    net = Net(block, images(2, 3, 7, 6))
    assert net.calls(net.same()) == 3


@pytest.mark.parametrize("activation", ["sigmoid", "hard_swish"])
def test_other_activations_behind_a_residual_sum(activation: str) -> None:
    net = Net(lambda x: ACTIVATIONS[activation](layer.conv2d(x, 4, 1) + x) * number(2.0), images(2, 4, 5, 6))
    assert net.calls(net.same()) == 1


def test_a_number_that_makes_more_dims_stays() -> None:
    Net(lambda x: layer.fc(x, 40) * number(2.0, (1, 1, 1)) + number(0.5), images(3, 40)).same()


def test_open_sizes_and_batches_of_nothing() -> None:
    net = Net(lambda x: layer.relu(layer.conv2d(layer.conv2d(x, 8, 1), 4, 3)), images(2, 3, 9, 7), ["batch", 3, "height", "width"])
    executor = net.same()
    for dims in ((1, 3, 5, 5), (4, 3, 30, 3), (0, 3, 6, 6), (2, 3, 9, 7)):
        net.same(images(*dims), executor)


def test_what_is_read_in_between_is_made() -> None:
    def read_twice(x: Any) -> list[Any]:
        y = layer.conv2d(x, 4, 3)
        z = layer.batch_norm(y)
        return [y, layer.relu(z), z * 2.0]

    Net(read_twice, images(2, 3, 6, 6)).same()


@pytest.mark.quick_cases(one_in=3, turn=1)
@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("dims", [(5, 40), (2, 3, 40)])
@pytest.mark.parametrize("turned", [False, True])
def test_products_of_rows(dims: tuple[int, ...], activation: str, turned: bool) -> None:
    def product(x: Any) -> Any:
        if not turned:
            return layer.fc(x, 48, flatten_last=1)
        return layer.matmul(x, layer.create_parameter([48, 40], fs.FP32), transpose_y=True) + layer.create_parameter([48], fs.FP32)

    net = Net(lambda x: ACTIVATIONS[activation](product(x)), images(*dims))
    executor = net.same()
    assert net.calls(executor) == (2 if activation in APART else 1)
    net.same(images(0, *dims[1:]), executor)


@pytest.mark.quick_cases("library")
def test_without_onednn_it_is_composed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "has_onednn", lambda: False)
    for activation in ACTIVATIONS.values():
        Net(lambda x, a=activation: layer.fc(a(layer.conv2d(x, 4, 3) + layer.conv2d(x, 4, 3)), 300), images(2, 3, 5, 5)).same()


def test_what_follows_images_reads_them_as_they_lie() -> None:
    def head(x: Any) -> list[Any]:
        y = layer.relu(layer.conv2d(x, 6, 3, padding=1))
        pooled = layer.pool2d(y, 2, "max", 2)
        return [layer.fc(pooled, 5), layer.reshape(y, [0, 6, -1]), layer.concat([y, y], 1), layer.transpose(y, [0, 2, 3, 1]),
                layer.softmax(y), layer.layer_norm(y), layer.reduce_mean(y, [2, 3]), layer.flatten(pooled)]  # fmt: skip

    Net(head, images(2, 3, 8, 8)).same()


def test_rows_of_four_dims_and_what_is_computed_of_images() -> None:
    def mixed(x: Any) -> list[Any]:
        y = layer.hard_swish(layer.conv2d(x, 8, 3, padding=1))
        first, second = layer.create_parameter([8, 16], fs.FP32), layer.create_parameter([16, 8], fs.FP32)
        rows = layer.matmul(layer.gelu(layer.matmul(layer.transpose(y, [0, 2, 3, 1]), first)), second)
        pooled = layer.pool2d(y, 2, "max", 2)
        excited = layer.sigmoid(layer.conv2d(layer.pool2d(y, 1, "avg", global_pooling=True), 8, 1))
        return [layer.transpose(rows, [0, 3, 1, 2]) + y, layer.concat([pooled, pooled * 2.0], 1), layer.relu(y * excited + y), layer.softmax(pooled)]

    net = Net(mixed, images(2, 3, 8, 6))
    net.same()
    net.same(images(0, 3, 8, 6), net.same(images(1, 3, 8, 6)))


def test_a_parameter_that_is_set_is_noticed() -> None:
    net = Net(lambda x: layer.conv2d(x, 4, 3, weight="w"), images(1, 3, 5, 5))
    executor = net.same()
    net.scope.set("w", 2 * net.scope.get("w"))
    net.same(executor=executor)


def test_what_a_program_changes_itself_is_not_taken_for_frozen() -> None:
    image = layer.data("x", shape=["batch", 3, 6, 6])
    loss = layer.mean(layer.fc(layer.flatten(layer.relu(layer.batch_norm(layer.conv2d(image, 4, 3)))), 40))
    fs.optimizer.SGD(0.1).minimize(loss)
    losses: list[list[float]] = []
    for frozen in (False, True):
        executor, scope = fs.Executor(seed=1, frozen=frozen), fs.Scope()
        executor.run(fs.default_startup_program(), scope=scope)
        losses.append([float(executor.run(feed={"x": images(2, 3, 6, 6)}, fetch=[loss], scope=scope)[0]) for _ in range(4)])
    assert losses[0] == pytest.approx(losses[1], rel=1e-5) and losses[0][3] < losses[0][0]


def test_statistics_of_channels_that_come_last_stay_beside_a_weight_that_is_packed() -> None:
    def last(x: Any) -> Any:
        y = layer.transpose(layer.conv2d(x, 4, 3), [0, 2, 3, 1])
        return layer.batch_norm(y, data_format="NHWC")

    net = Net(last, images(2, 3, 6, 6))
    assert "convolution" in net.same().step(net.main, net.fetch).emitted.source


def test_several_threads_may_come_first() -> None:
    from threading import Thread

    net = Net(lambda x: layer.relu(layer.conv2d(layer.conv2d(x, 8, 3), 8, 3)), images(1, 3, 12, 12))
    (want,) = net.run(fs.Executor())
    for _ in range(5):
        executor, found = fs.Executor(frozen=True), list[Any]()
        executor.step(net.main, net.fetch)
        threads = [Thread(target=lambda e=executor, out=found: out.append(net.run(e)[0])) for _ in range(8)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        assert len(found) == 8 and all(np.allclose(f, want, rtol=1e-5, atol=1e-5) for f in found)


@pytest.mark.parametrize("check", [True, "fused"])
def test_checked_running_takes_part(check: Any) -> None:
    Net(lambda x: layer.relu(layer.batch_norm(layer.conv2d(x, 4, 3))), images(1, 3, 6, 6)).same(executor=fs.Executor(frozen=True, check=check))


def test_packed_weights_are_in_the_plan() -> None:
    net = Net(lambda x: layer.fc(layer.flatten(layer.conv2d(x, 8, 3)), 100), images(1, 3, 6, 6))
    plain, frozen = Plan(net.main, net.fetch), Plan(net.main, net.fetch, frozen=True)
    assert frozen.held(batch=1) - plain.held(batch=1) == 4 * (8 * 3 * 9 + 8 * 16 * 100)


@pytest.mark.quick_cases(one_in=4, turn=1)
@pytest.mark.parametrize("case", [
    {"kernel_size": 3, "padding": "SAME"}, {"kernel_size": 3, "padding": "SAME", "stride": 2}, {"kernel_size": 2, "padding": "SAME"},
    {"kernel_size": 3, "padding": "VALID"}, {"kernel_size": (3, 1), "padding": [1, 1, 0, 0]}, {"kernel_size": 3, "padding": [1, 0, 2, 1]},
], ids=str)  # fmt: skip
@pytest.mark.parametrize("size", [9, 8])
def test_paddings_that_follow_from_sizes(case: dict[str, Any], size: int) -> None:
    net = Net(lambda x: layer.relu(layer.batch_norm(layer.conv2d(layer.conv2d(x, 4, 1), 8, **case))), images(2, 3, size, size))
    assert net.calls(net.same()) == 2
    open_net = Net(lambda x: layer.relu(layer.conv2d(x, 3, **case) + layer.conv2d(x, 3, **case)), images(2, 3, size, 7), ["batch", 3, "height", "width"])
    executor = open_net.same()
    open_net.same(images(1, 3, 7, size), executor)
    assert open_net.calls(executor) == 2


@pytest.mark.parametrize("activation", ["none", "relu"])
def test_a_normalization_that_follows_no_convolution_is_one_of_each_channel(activation: str) -> None:
    def block(x: Any) -> Any:
        y = layer.conv2d(x, 4, 1)
        z = layer.batch_norm(layer.concat([x, y], 1))
        return ACTIVATIONS[activation](layer.batch_norm(z + layer.conv2d(y, 7, 1)) + z)

    net = Net(block, images(2, 3, 5, 6))
    assert net.calls(net.same()) == 5
    Net(block, images(2, 3, 5, 6), ["batch", 3, "height", "width"]).same()


def test_one_normalization_after_the_other_and_images_without_pixels() -> None:
    def block(x: Any) -> list[Any]:
        y = layer.conv2d(x, 4, 1)
        return [layer.batch_norm(layer.batch_norm(layer.concat([y, y], 1))), layer.relu(layer.batch_norm(layer.slice(y, [3], [0], [-1])))]

    net = Net(block, images(2, 3, 5, 4), ["batch", 3, "height", "width"])
    net.same(images(2, 3, 5, 1), net.same())
    net.same(images(0, 3, 5, 4))


def test_channels_that_are_shuffled_by_their_dims_are_shuffled_by_one_kernel() -> None:
    def turned(x: Any, axes: list[int]) -> Any:
        y = layer.conv2d(x, 6, 1)
        return layer.conv2d(layer.reshape(layer.transpose(layer.reshape(y, [0, 2, 3, 5, 4]), axes), [0, 6, 5, 4]), 2, 1)

    net, other = (Net(lambda x, a=axes: turned(x, a), images(2, 3, 5, 4)) for axes in ([0, 2, 1, 3, 4], [0, 2, 1, 4, 3]))
    assert net.calls(net.same()) == 3 and other.calls(other.same()) == 5


def test_what_is_made_of_parameters_alone_is_made_once() -> None:
    def described(x: Any) -> list[Any]:
        table = layer.create_parameter([5, 4], fs.FP32)
        picked = layer.gather(layer.reshape(table, [10, 2]), layer.assign(np.array([1, 3, 3], "int64")))
        return [x * layer.reduce_sum(picked) + layer.reduce_sum(layer.fill_constant([2048], "float32", 1.0)), layer.transpose(picked, [1, 0])]

    net = Net(described, images(2, 3))
    executor = net.same()
    kept = executor.step(net.main, net.fetch).emitted.lowered
    assert kept.packed == 4 + 4 + 3 * 2 * 4  # the sums, and what is transposed for the one who asks
    (table,) = net.scope.names()
    net.scope.set(table, 2 * net.scope.get(table))
    net.same(executor=executor)


def test_what_is_drawn_or_too_large_is_not_made_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def described(x: Any) -> Any:
        table = layer.create_parameter([5, 4], fs.FP32)
        return x + layer.reduce_sum(layer.uniform_random([3, 3])) + layer.reduce_sum(layer.expand(table, [7, 5, 4]) * x[0, 0])

    net = Net(described, images(2, 3))
    executor = fs.Executor(frozen=True, seed=1)
    assert (net.run(executor)[0] != net.run(executor)[0]).all()
    assert executor.step(net.main, net.fetch).emitted.lowered.packed == 7 * 5 * 4 * 4
    monkeypatch.setattr("foreshape.compiler.lowering.fusion.frozen_values.MOST", 7 * 5 * 4 * 4 - 1)
    assert fs.Executor(frozen=True).step(net.main, net.fetch).emitted.lowered.packed == 0


BETWEEN: dict[str, Callable[[Any], Any]] = {
    "a rectifier": lambda y: layer.relu(layer.concat([y, y * 2.0], 1)),
    "a cut": lambda y: layer.clip(layer.concat([y, y * 2.0], 1), -1.0, 0.5),
    "a normalization": lambda y: layer.batch_norm(layer.pool2d(y, 2, "max", 2)),
    "parts": lambda y: layer.concat(layer.split(y, 3, 1)[::-1], 1),
    "a part": lambda y: layer.slice(y, [1, 2], [1, 0], [5, -1]),
    "shuffled channels": lambda y: layer.channel_shuffle(y, 3),
    "channels shuffled by their dims": lambda y: layer.reshape(layer.transpose(layer.reshape(y, [0, 2, 3, 8, 6]), [0, 2, 1, 3, 4]), [0, 6, 8, 6]),
}


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", BETWEEN)
def test_what_stands_between_convolutions_is_part_of_their_one_call(name: str) -> None:
    net = Net(lambda x: layer.conv2d(BETWEEN[name](layer.conv2d(x, 6, 1)), 4, 3), images(2, 3, 8, 6))
    calls = len(net.same().step(net.main, net.fetch).emitted.lowered.calls)
    assert (calls == 1) == (library() is not None)


def test_what_is_cut_by_itself_stays_a_view() -> None:
    net = Net(lambda x: [layer.exp(part) for part in layer.split(layer.exp(layer.conv2d(x, 4, 1)), 2, 1)], images(2, 3, 5, 4))
    assert net.calls(net.same()) == 5


def test_what_no_plan_has_is_small() -> None:
    """A constant that nobody can hold, of which one number is left, is refused before it is made."""
    net = Net(lambda x: x + layer.reduce_sum(layer.fill_constant([2**18, 2**18], "float32", 1.0)), images(2, 3))
    with pytest.raises(fs.MemoryPlanError, match="256 GiB"):
        net.run(fs.Executor(frozen=True))
