"""Gradients that are computed one after the other, and values that are computed again for each reader: less memory, the same numbers."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.retrained import QUICK_AND_LONG, Network, assert_same, described, droppable, images, least_of, loss_of, numbers, trained
from support.some import each_of_product

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.fusion import update_groups
from foreshape.transforms.backward.recompute import SUFFIX
from foreshape.transforms.passes.recompute import gradients_apart, recompute_values


@pytest.fixture(params=QUICK_AND_LONG, ids=lambda n: n.__name__)
def network(request: pytest.FixtureRequest) -> Network:
    return request.param()


def wide() -> Network:
    """Convolutions of few weights on large images: what one gradient op needs is most of the peak."""

    def net() -> Any:
        h = layer.data("x", shape=["batch", 3, 24, 24])
        for channels, stride in ((16, 1), (16, 1), (32, 2)):
            h = layer.relu(layer.conv2d(h, channels, 3, padding=1, stride=stride))
        return loss_of(layer.fc(layer.reduce_mean(h, [2, 3]), 10))

    return described(net, fs.optimizer.Momentum(0.05, 0.9), lambda r: {"x": numbers(r, 4, 3, 24, 24), "y": r.integers(0, 10, (4, 1))})


def odd() -> Network:
    """Windows of which some do not reach the last rows, in groups, dilated, of every channel for itself, and channels last."""

    def net() -> Any:
        h = layer.data("x", shape=["batch", 4, 14, 11])
        h = layer.conv2d(h, 8, 3, stride=[3, 2], padding=1)
        h = layer.conv2d(layer.tanh(h), 8, 2, groups=4, padding=1)
        h = layer.conv2d(layer.tanh(h), 6, 3, dilation=2, padding=2)
        h = layer.conv2d(layer.tanh(h), 6, 3, groups=6, padding=1, stride=2)
        h = layer.conv2d(layer.transpose(layer.tanh(h), [0, 2, 3, 1]), 5, 2, data_format="NHWC")
        return loss_of(layer.fc(h, 10))

    return described(net, fs.optimizer.Adam(0.01), lambda r: {"x": numbers(r, 3, 4, 14, 11), "y": r.integers(0, 10, (3, 1))})


def image_gradients(program: fs.Program) -> list[str]:
    return [n for op in program.all_ops() if op.type.endswith("conv2d_grad") for n in op.outputs.get("Input@GRAD", ())]


@pytest.mark.quick_cases("True-wide")
@pytest.mark.parametrize(("first", "describe"), each_of_product(2, (False, True), (images, wide, odd)))
def test_a_step_computes_the_same(describe: Any, first: bool) -> None:
    network = describe()
    names = image_gradients(network.main)
    apart, found = gradients_apart(network.main, names if first else ())
    assert names and found == names and not image_gradients(apart) and image_gradients(network.main) == names
    ops = [*apart.all_ops()]
    for at, op in enumerate(ops):
        if op.type == "conv2d_transpose":
            other = ops[at + 1 if first else at - 1]
            assert other.type.endswith("conv2d_grad") and other.input("Output@GRAD") == op.input("Input") and op.site == other.site
    assert str(fs.Program.parse(str(apart))) == str(apart) and fs.load_program(apart.to_bytes()).to_bytes() == apart.to_bytes()
    assert_same(trained(network, network.main), trained(network, apart), 1e-6 if describe is odd else 0.0)


def test_images_whose_size_only_the_run_tells_stay_together_where_windows_step() -> None:
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        h = layer.conv2d(layer.data("x", shape=["batch", 3, "height", 8]), 4, 3)
        h = layer.conv2d(layer.conv2d(h, 4, 3, stride=2), 4, 3, padding=1)
        fs.append_backward(layer.mean(h))
    assert len(image_gradients(main)) == 2
    (left,) = image_gradients(gradients_apart(main)[0])
    assert main.var(left).shape == main.global_block.var(left.removesuffix("@GRAD")).shape and main.var(left).shape[2] != 8
    with fs.program_guard(fs.Program()):
        fs.append_backward(layer.mean(layer.fc(layer.data("x", shape=["batch", 3]), 4)))
        assert gradients_apart(fs.default_main_program()) == (fs.default_main_program(), [])


def test_less_is_reached_than_one_op_for_all_gradients_needs() -> None:
    network = wide()
    sizes = {"batch": 64}
    plan = fs.plan(network.main, network.fetch)
    image = 64 * 16 * 24 * 24 * 4
    workspace = max(r.size for r in plan.buffers(**sizes) if "conv2d_grad workspace" in r.name)
    least = least_of(network.main, network.fetch, sizes)
    assert least < 3 * image + workspace < plan.peak(**sizes)
    found = fs.recompute(network.main, within=least, fetch=network.fetch, **sizes)
    assert found.peak == least
    assert_same(trained(network, network.main), trained(network, found.program))


def test_a_value_is_computed_again_for_each_reader(network: Network) -> None:
    names = droppable(network.main)
    once, _ = recompute_values(network.main, names)
    each, made = recompute_values(network.main, names, names)
    copies = [sum(SUFFIX in n for op in p.all_ops() for n in op.output_names()) for p in (once, each)]
    assert copies[1] > 1.2 * copies[0] and set(made) <= names
    assert str(fs.Program.parse(str(each))) == str(each)
    assert_same(trained(network, network.main), trained(network, each), network.within)


def test_what_is_computed_again_for_each_reader_is_not_kept_between_them() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        wide = layer.tanh(layer.fc(layer.data("x", shape=["batch", 4]), 256))
        h = layer.fc(wide, 4)
        for _ in range(4):
            h = layer.fc(layer.fc(h, 192, "tanh"), 4, "tanh")
        loss = layer.mean(h * h) + layer.mean(wide * wide)
        fs.optimizer.SGD(0.1).minimize(loss)
    base = {n for n in droppable(main) if main.var(n).shape[-1] == 256}
    assert wide.name in base
    lives: list[list[int]] = []
    for anew in ((), base):
        buffers = fs.plan(recompute_values(main, base, anew)[0], [loss.name]).buffers(batch=512)
        lives.append([r.last - r.first for r in buffers if SUFFIX in r.name])
    once, each = lives
    assert len(each) > len(once) and max(each) < max(once) / 2, lives
    feed = {"x": np.random.default_rng(0).standard_normal((8, 4)).astype(np.float32)}
    losses: list[Any] = []
    for program in (main, recompute_values(main, base, base)[0]):
        scope, executor = fs.Scope(), fs.Executor(seed=1)
        executor.run(startup, scope=scope)
        losses.append([executor.run(program, feed, [loss.name], scope)[0] for _ in range(3)])
    np.testing.assert_array_equal(*losses)


def test_few_gradients_wait_for_their_update_while_values_are_computed_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(update_groups, "LEAST", 0)  # all of this small network's would wait for one another
    network = images()
    program, _ = recompute_values(network.main, droppable(network.main))
    plan = fs.plan(program, network.fetch)
    total: Any = sum(v.spec.nbytes for v in program.all_variables() if v.is_parameter)
    line = plan.timeline(batch=2)
    alive = plan.breakdown(batch=2)["gradients"]
    largest: Any = max(v.spec.nbytes for v in program.all_variables() if v.is_parameter)  # may be the one that waits: where the peak is depends on the threads
    assert alive < max(largest * 1.1, total / 2), f"{alive} of {total} bytes of gradients are alive at op {line.argmax()}"
