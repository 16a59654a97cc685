"""Parameters by patterns of their names: learning rates and decays of their own, and those that stay as they are."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.errors import SchemaError
from foreshape.optimizer import Group, Optimizer

X = np.random.default_rng(3).standard_normal((6, 4)).astype("float32")
NAMES = ("encoder.0.weight", "encoder.0.bias", "encoder.1.weight", "encoder.1.bias", "head.weight", "head.bias")


def described(make: Optimizer) -> tuple[fs.Program, fs.Program, fs.Variable]:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        h = layer.data("x", ["batch", 4])
        for name in ("encoder.0", "encoder.1", "head"):
            h = layer.fc(h, 3, "tanh", weight=f"{name}.weight", bias=f"{name}.bias")
        loss = layer.mean(h * h)
        make.minimize(loss)
    return main, startup, loss


def moved(make: Optimizer) -> dict[str, np.ndarray]:
    """What one step adds to each parameter, all of which are 0.5 before."""
    main, startup, loss = described(make)
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    for p in main.parameters():
        scope.set(p.name, np.full(p.dims, 0.5, "float32"))
    executor.run(main, {"x": X}, [loss], scope)
    return {p.name: scope.get(p.name) - np.float32(0.5) for p in main.parameters()}


def updates(main: fs.Program) -> dict[str, Any]:
    return {name: op for op in main.global_block.ops if (name := op.input("Param")) is not None}


def test_a_group_has_a_learning_rate_and_a_decay_of_its_own() -> None:
    plain = moved(optimizer.SGD(0.1))
    groups = [Group("encoder.*", learning_rate_factor=0.5, weight_decay=0.2), Group("*.bias", weight_decay=0), Group("encoder.1.*", learning_rate_factor=2)]
    found = moved(optimizer.SGD(0.1, weight_decay=1.0, groups=groups))
    factors = {"encoder.0": 0.5, "encoder.1": 2.0, "head": 1.0}
    for name in NAMES:
        layer_name, _, kind = name.rpartition(".")
        decay = 0.0 if kind == "bias" else 0.2 if layer_name.startswith("encoder") else 1.0
        np.testing.assert_allclose(found[name], factors[layer_name] * (plain[name] - 0.1 * decay * 0.5), rtol=1e-4, atol=1e-6, err_msg=name)


OWN: dict[str, tuple[Callable[..., Optimizer], str, float, Callable[[Any], Any]]] = {
    "adamw": (optimizer.AdamW, "coeff", 0.01, lambda op: op.attrs["coeff"] if op.attrs["with_decay"] else 0.0),
    "lamb": (optimizer.Lamb, "weight_decay", 0.01, lambda op: op.attrs["weight_decay"]),
    "lars": (optimizer.Lars, "lars_weight_decay", 0.0005, lambda op: op.attrs["lars_weight_decay"][0]),
    "lion": (optimizer.Lion, "weight_decay", 0.0, lambda op: op.attrs["weight_decay"]),
    "momentum": (partial(optimizer.Momentum, weight_decay=0.03), "regularization_coeff", 0.03,
                 lambda op: op.attrs["regularization_coeff"] if op.attrs["regularization_method"] else 0.0),
}  # fmt: skip


@pytest.mark.parametrize("name", OWN)
def test_a_decay_of_the_update_itself_is_the_groups(name: str) -> None:
    make, _, own, decay_of = OWN[name]
    main, _, _ = described(make(0.1, groups=[Group("*.bias", weight_decay=0), Group("encoder.0.*", weight_decay=0.5)]))
    found = {n: round(decay_of(op), 6) for n, op in updates(main).items()}
    assert found == {n: 0.5 if n.startswith("encoder.0") else 0.0 if n.endswith("bias") else own for n in NAMES}
    assert "scale" not in [op.type for op in main.global_block.ops]  # nothing is added to a gradient besides
    if name != "momentum":
        with pytest.raises(SchemaError, match="the coefficient: a number"):
            make(0.1, groups=[Group("*", weight_decay=optimizer.L1Decay(0.1))])


def test_what_need_not_decay_does_not_in_a_group() -> None:
    with fs.program_guard(fs.Program(), fs.Program()):
        free = layer.ParamAttr(name="w", need_decay=False, learning_rate=0.5)
        optimizer.AdamW(0.1, groups=[Group("*", weight_decay=0.3, learning_rate_factor=0.5)]).minimize(
            layer.mean(layer.fc(layer.data("x", [-1, 4]), 2, weight=free))
        )
        main = fs.default_main_program()
    found = updates(main)
    assert not found["w"].attrs["with_decay"] and found["fc_0.b_0"].attrs["with_decay"]
    rates = {op.output("Out"): op.attrs["scale"] for op in main.global_block.ops if op.type == "scale"}
    assert [rates[found[n].input("LearningRate")] for n in ("w", "fc_0.b_0")] == [0.25, 0.5]


def test_what_is_frozen_stays_and_costs_nothing() -> None:
    make = optimizer.Adam(0.1, freeze=["encoder.*"], clip=optimizer.ClipByGlobalNorm(0.01))
    main, _, _ = described(make)
    assert list(updates(main)) == ["head.weight", "head.bias"]
    gradients = {n for op in main.global_block.ops for n in op.output_names() if "@GRAD" in n}
    assert not any(n.startswith(("encoder", "fc_0", "fc_1")) for n in gradients), gradients
    assert "head.weight@GRAD" in gradients and "fc_2.tmp_0@GRAD" in gradients
    found = moved(make)
    assert all(not found[n].any() for n in NAMES[:4]) and all(found[n].any() for n in NAMES[4:])


def test_a_frozen_layer_in_the_middle_passes_gradients_on() -> None:
    main, _, _ = described(optimizer.SGD(0.1, freeze=["encoder.1.*"]))
    assert list(updates(main)) == [n for n in NAMES if not n.startswith("encoder.1")]
    assert "encoder.1.weight@GRAD" not in main.global_block.vars


def test_gradients_that_are_given_are_not_applied_to_what_is_frozen() -> None:
    main, startup = fs.Program(), fs.Program()
    with fs.program_guard(main, startup):
        pairs = fs.append_backward(layer.mean(layer.fc(layer.data("x", [-1, 4]), 2, weight="w", bias="b")))
        optimizer.SGD(0.1, freeze="b").apply(pairs)
    assert list(updates(main)) == ["w"]


def test_patterns_without_sense_are_refused() -> None:
    bad: dict[str, Callable[[], Any]] = {
        r"freeze=: no parameter is called 'enocder\.\*'; near it are 'encoder\.\*'.*; the parameters are: encoder\.0\.weight, .*": lambda: described(
            optimizer.SGD(0.1, freeze=["enocder.*"])),
        r"Group\('\*\.bia', weight_decay=0\): no parameter is called '\*\.bia'; near it are '\*\.bias'": lambda: described(
            optimizer.SGD(0.1, groups=[Group("*.bia", weight_decay=0)])),
        r"freezes all 6 trainable parameters": lambda: described(optimizer.SGD(0.1, freeze=["*"])),
        r"groups= takes Group objects": lambda: optimizer.SGD(0.1, groups=["*.bias"]),  # pyright: ignore[reportArgumentType]
        r"freeze= takes patterns of names": lambda: optimizer.SGD(0.1, freeze=[3]),  # pyright: ignore[reportArgumentType]
        r"a Group needs the patterns": lambda: Group(weight_decay=0),
        r"a finite number of at least 0": lambda: Group("*", learning_rate_factor=-1),
        r"a coefficient of at least 0": lambda: Group("*", weight_decay=-1),
    }  # fmt: skip
    for words, make in bad.items():
        with pytest.raises(SchemaError, match=words):
            make()
    with fs.program_guard(fs.Program(), fs.Program()), pytest.raises(SchemaError, match=r"w is wanted in parameters=.* freezes it"):
        loss = layer.mean(layer.fc(layer.data("x", [-1, 4]), 2, weight="w"))
        optimizer.SGD(0.1, freeze=["w"]).minimize(loss, parameters=["w"])
