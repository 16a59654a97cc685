"""Products in 16 bits, and losses that are scaled for the backward pass: what is cast, how it trains, and what is left out."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.harness import build
from support.some import each

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.errors import SchemaError
from foreshape.language.operator import all_operators
from foreshape.language.operator.fields import NoGradient
from foreshape.transforms.passes import lower_precision, scale_loss
from foreshape.transforms.passes.precision import INITIAL_SCALE

DATA = np.random.default_rng(2)
IMAGES = DATA.standard_normal((24, 1, 6, 6)).astype("float32")
LABELS = (IMAGES[:, 0, :3].sum((1, 2)) > 0).astype("int64")[:, None]
FEED = {"images": IMAGES, "label": LABELS}


def describe() -> fs.Variable:
    images, label = layer.data("images", ["batch", 1, 6, 6]), layer.data("label", ["batch", 1], "int64")
    h = layer.relu(layer.conv2d(images, 4, 3))
    h = layer.fc(layer.fc(h, 8, bias=False), 8, "tanh")
    return layer.mean(layer.softmax_with_cross_entropy(layer.fc(h, 2), label))


def training(precision: str, make: Callable[[], optimizer.Optimizer] = lambda: optimizer.Adam(0.02)) -> tuple[fs.Program, fs.Program, str]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        loss = describe().name
    main = lower_precision(main, precision)
    make().minimize(main.var(loss), startup)
    return (*(scale_loss(main, loss, startup) if precision == "fp16" else (main, startup)), loss)


def losses(main: fs.Program, startup: fs.Program, loss: str, steps: int) -> tuple[list[float], fs.Scope, fs.Executor]:
    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(startup, scope=scope)
    return [float(executor.run(main, FEED, [loss], scope)[0]) for _ in range(steps)], scope, executor


@pytest.mark.quick_cases("fp16")
@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_a_network_trains_as_in_full_precision(precision: str) -> None:
    plain, _, _ = losses(*training("fp32"), 60)
    main, startup, loss = training(precision)
    found, scope, executor = losses(main, startup, loss, 60)
    np.testing.assert_allclose(found[:5], plain[:5], rtol=0.03)
    assert found[-1] < 0.25 * found[0] and abs(found[-1] - plain[-1]) < 0.1 * plain[0]
    assert all(scope.tensor(p.name).dtype is torch.float32 for p in main.parameters())
    (weight,) = executor.run(main, FEED, ["fc_0.tmp_0"], scope)  # what was named in the network is what it was: fp32
    assert weight.dtype == np.float32


def test_only_products_are_in_16_bits_and_what_goes_between_them_is_not_cast_back() -> None:
    main, _, _ = training("bf16")
    block = main.global_block
    low = {op.type for op in block.ops for n in op.output_names() if block.var(n).dtype is fs.BF16}
    assert low == {"cast", "conv2d", "mul", "conv2d_grad", "mul_grad"}
    first, second = (next(op for op in block.ops if op.input("Y") == f"fc_{at}.w_0@BF16_0") for at in (0, 1))
    assert second.input("X") == first.output("Out")  # the product of a product reads what that made
    gradients = {n: v.dtype for n, v in block.vars.items() if n.endswith("w_0@GRAD")}
    assert len(gradients) == 4 and set(gradients.values()) == {fs.FP32}


def test_what_several_products_read_is_cast_once_and_anew_where_it_is_written_again() -> None:
    x, i = layer.data("x", ["batch", 4]), layer.fill_constant([1], "int64", 0)
    layer.fc([x, x], 3)

    def goes_on(i: fs.Variable, h: fs.Variable) -> fs.Variable:
        return layer.less_than(i, layer.fill_constant([1], "int64", 2))

    def body(i: fs.Variable, h: fs.Variable) -> tuple[fs.Variable, fs.Variable]:
        return i + 1, layer.fc(h, 4, weight="w", bias=False)

    layer.while_loop(goes_on, body, [i, x])
    main = lower_precision(fs.default_main_program(), "bf16")
    casts = [op.input("X") for op in main.global_block.ops if op.type == "cast" and op.attrs["out_dtype"] == fs.BF16.code]
    assert casts.count("x") == 1
    inner = [op.type for op in main.blocks[1].ops]
    assert inner.count("cast") == 3 and inner.index("cast") < inner.index("mul")
    executor, scope = fs.Executor(seed=1), fs.Scope()
    executor.run(fs.default_startup_program(), scope=scope)
    rows, weight = np.ones((2, 4), "float32"), scope.get("w")
    out = next(op.outputs["Out"] for op in main.global_block.ops if op.type == "while")
    got = {n: executor.run(main, {"x": rows}, [n], scope)[0] for n in out if main.var(n).dtype is fs.FP32}
    (found,) = got.values()
    np.testing.assert_allclose(found, rows @ weight @ weight, rtol=0.05, atol=0.02)


def test_an_update_that_is_not_finite_is_left_out_and_the_scale_falls() -> None:
    main, startup, loss = training("fp16", lambda: optimizer.Adam(0.02, clip=optimizer.ClipByGlobalNorm(1.0)))
    _, scope, executor = losses(main, startup, loss, 2)
    assert scope.get("loss_scaling_0") == INITIAL_SCALE and scope.get("loss_scaling_good_steps_0") == 2
    scope.set("loss_scaling_0", np.array([2.0**40], "float32"))  # no gradient of this is finite in 16 bits
    held = {n: scope.get(n) for n in scope.names() if "loss_scaling" not in n}
    (after,) = executor.run(main, FEED, [loss], scope)
    assert np.isfinite(after) and scope.get("loss_scaling_0") == 2.0**39 and scope.get("loss_scaling_good_steps_0") == 0
    for name, value in held.items():
        np.testing.assert_array_equal(scope.get(name), value, err_msg=name)
    for _ in range(40):
        executor.run(main, FEED, [loss], scope)
    assert 1.0 <= scope.get("loss_scaling_0") < 2.0**30  # until they are finite again
    assert not np.array_equal(scope.get("fc_0.w_0"), held["fc_0.w_0"]) and np.isfinite(scope.get("fc_0.w_0")).all()


def test_the_scale_changes_no_gradient() -> None:
    """Beyond the rounding of fp16."""
    moved: list[dict[str, Any]] = []
    for scaled in (False, True):
        main, startup = fs.Program(), fs.Program()
        with fs.program_guard(main, startup):
            loss = describe()
            optimizer.SGD(0.1).minimize(loss)
        if scaled:
            main, startup = scale_loss(main, loss.name, startup)
        _, scope, _ = losses(main, startup, loss.name, 3)
        moved.append({p.name: scope.get(p.name) for p in main.parameters()})
    for name, value in moved[0].items():
        np.testing.assert_allclose(moved[1][name], value, rtol=1e-5, atol=1e-6, err_msg=name)


MULTIPLYING = sorted(t for t, c in all_operators().items() if c.multiplies and c.forward_class is None)


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("type", each(3, MULTIPLYING))
def test_every_operator_that_multiplies_does_so_in_16_bits(type: str) -> None:
    """It and its gradient, as its samples have it; it alone, where it has none."""
    samples, has_gradient = all_operators()[type].samples, not isinstance(all_operators()[type].gradient, NoGradient)
    for at, sample in enumerate(samples):
        case = build(all_operators()[type], sample.arguments)
        wanted = [n for n, v in case.block.vars.items() if n in case.feed and v.dtype is fs.FP32]
        if not wanted or any(0 in np.shape(v) for v in case.feed.values()):
            continue
        for name in wanted:
            case.block.vars[name].stop_gradient = False
        with fs.program_guard(case.program, fs.Program()):
            out = case.block.vars[next(iter(case.op.output_names()))]
            loss = layer.mean(layer.tanh(out)).name
        found: list[list[Any]] = []
        for precision in ("fp32", "bf16", *(["fp16"] if at == 0 else [])):
            program = lower_precision(case.program, precision)
            program = program if program is not case.program else program.clone()
            assert precision == "fp32" or any(v.dtype in (fs.BF16, fs.FP16) for v in program.all_variables()), at
            pairs = fs.append_backward(program.var(loss), wanted) if has_gradient else []
            found.append(fs.Executor().run(program, case.feed, [loss, *(g.name for _, g in pairs)], fs.Scope()))
        for low in found[1:]:
            for a, b in zip(low, found[0], strict=True):
                assert a.dtype == b.dtype == np.float32
                np.testing.assert_allclose(a, b, rtol=0.1, atol=0.03 * max(np.abs(b).max(), 1e-3), err_msg=f"sample {at}")


def test_what_has_no_products_or_another_type_is_left_as_it_is() -> None:
    layer.mean(layer.relu(layer.data("x", ["batch", 4])))
    layer.matmul(layer.data("a", [2, 3], "float64"), layer.data("b", [3, 2], "float64"))
    main = fs.default_main_program()
    assert lower_precision(main, "bf16") is main and lower_precision(main, "fp32") is main


@pytest.mark.parametrize("net", [layer.lstm, layer.gru])
def test_a_recurrence_stays_and_says_so(net: Callable[..., Any]) -> None:
    words = layer.data("words", ["words", 6], lod_level=1)
    out: fs.Variable = net(layer.fc(words, 8), 4)[0]
    assert "computes in" not in fs.default_main_program().explain(out)
    main = lower_precision(fs.default_main_program(), "bf16")
    assert main.var(out.name).dtype is fs.FP32
    assert re.search(r"\w+ multiplies a few rows in each step: it computes in fp32, and only products outside of it in bf16", main.explain(out.name))


def test_words_and_programs_without_sense_are_refused() -> None:
    loss = describe()
    with pytest.raises(SchemaError, match="precision= must be one of 'fp32', 'bf16', 'fp16'; seen 'int8'"):
        lower_precision(fs.default_main_program(), "int8")
    with pytest.raises(SchemaError, match="precision='fp16' requires updates of parameters; the program has no updates"):
        scale_loss(fs.default_main_program(), loss.name, fs.Program())
    optimizer.SGD(0.1).minimize(loss)
    with pytest.raises(SchemaError, match="requires a program without gradients; it has "):
        lower_precision(fs.default_main_program(), "bf16")
    with pytest.raises(SchemaError, match="no gradient of other"):
        scale_loss(fs.default_main_program(), "other", fs.Program())
