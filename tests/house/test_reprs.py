"""Objects of public classes are shown as the call that makes them, whatever they are made of."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest

import foreshape as fs
from foreshape import callbacks, layer, optimizer
from foreshape.core.constructor_repr import ConstructorRepr

ROOMS = (fs, layer, optimizer, callbacks)
CLASSES = {n: c for room in ROOMS for n in room.__all__ if isinstance(c := getattr(room, n), type) and not issubclass(c, BaseException)}
NAMES: dict[str, Any] = CLASSES | {n: getattr(optimizer, n) for n in optimizer.__all__}
MADE = [n for n, c in CLASSES.items() if c.__repr__ is ConstructorRepr.__repr__]
OTHERS: dict[str, Any] = {
    "boundaries": [3, 5], "values": [0.5, 0.25, 0.125], "patterns": "*.bias", "metric": "train loss", "mode": "max", "path": "there", "folder": "logs",
    "device": "cpu", "clip": optimizer.ClipByNorm(2.0), "freeze": ("encoder.*",), "groups": (optimizer.Group("*.bias", learning_rate_factor=2.0),),
    "apply_decay_param_fun": None, "exclude_from_weight_decay_fn": None, "exclude_from_weight_decay": ("b",), "memory_limit": "2 GiB", "threads": 1,
    "trace": "trace.json", "steps": (3, 4), "min": -0.25, "seed": 7, "rates": (0.5, 0.25), "check": "fused", "every": 5, "keep": 3,
    "patience": 9, "graphs": False, "precision": "fp32",  # others ask for a GPU, or for a frozen executor
}  # fmt: skip


def given(parameter: inspect.Parameter) -> Any:
    """Something else than the default of a parameter."""
    if parameter.name in OTHERS and not (parameter.name == "keep" and isinstance(parameter.default, bool)):
        return OTHERS[parameter.name]
    if isinstance(parameter.default, bool):
        return not parameter.default
    return 0.5 if parameter.default is parameter.empty or parameter.default is None else parameter.default / 2 or 0.25


def test_none_is_shown_by_its_address() -> None:
    plain = {n for n, c in CLASSES.items() if c.__repr__ is object.__repr__}
    assert plain <= {"Run"}, plain  # a protocol
    assert len(MADE) > 40


@pytest.mark.parametrize("name", MADE)
def test_a_repr_makes_the_same_again(name: str) -> None:
    of = CLASSES[name]
    parameters = [p for p in inspect.signature(of).parameters.values() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)]
    required = {p.name: given(p) for p in parameters if p.default is p.empty}
    assert repr(of(**required)).count("=") == len(of.always_shown)
    for named in ({}, {p.name: given(p) for p in parameters}, *({p.name: given(p)} for p in parameters)):
        made = of(**required | named)
        shown = repr(made)
        assert repr(eval(shown, dict(NAMES))) == shown
        for p in parameters:
            if p.name in named and p.default not in (p.empty, named[p.name]):
                assert f"{p.name}={named[p.name]!r}" in shown, shown


@pytest.mark.parametrize(
    ("make", "shown"),
    [
        (lambda: optimizer.Adam(), "Adam(learning_rate=0.001)"),
        (lambda: optimizer.SGD(optimizer.LinearWarmup(0.1, 10, 0.0, 0.1)), "SGD(learning_rate=LinearWarmup(0.1, 10.0, 0.0, 0.1))"),
        (lambda: optimizer.cosine(0.1), "cosine(0.1)"),
        (lambda: optimizer.cosine(0.1, epochs=3, end=0.01, warmup=1), "cosine(0.1, end=0.01, epochs=3.0, warmup=1.0)"),
        (lambda: optimizer.cosine(0.1, steps_per_epoch=20), "cosine(0.1, steps_per_epoch=20.0)"),
        (lambda: optimizer.one_cycle(0.5, steps=100), "one_cycle(0.5, start=0.02, end=2e-06, steps=100.0)"),
        (lambda: optimizer.polynomial(0.5, steps=100, power=2.0), "polynomial(0.5, power=2.0, steps=100.0)"),
        (lambda: optimizer.piecewise([0.1, 0.01], epochs=[3]), "piecewise((0.1, 0.01), epochs=(3.0,))"),
        (lambda: optimizer.exponential(0.1, 0.9), "exponential(0.1, factor=0.9, epochs=1.0)"),
        (lambda: optimizer.warmup(optimizer.cosine(0.1), epochs=2), "warmup(cosine(0.1), epochs=2.0)"),
        (lambda: layer.Normal(std=0.02), "Normal(std=0.02)"),
        (lambda: fs.ParamAttr(initializer=layer.Xavier()).initializer, "Xavier()"),
        (lambda: callbacks.EarlyStopping(mode="max"), "EarlyStopping(mode='max')"),
        (lambda: fs.Checkpoint("runs/1", every=100), "Checkpoint('runs/1', every=100)"),
        (lambda: fs.Executor(seed=0), "Executor(seed=0)"),
    ],
)
def test_what_is_shown(make: Callable[[], object], shown: str) -> None:
    assert repr(make()) == shown
    if not shown.startswith(("Checkpoint", "Executor")):
        assert repr(eval(shown, dict(NAMES))) == shown


def test_what_is_changed_later_is_shown_as_it_is() -> None:
    made = optimizer.Momentum(0.5)
    made.momentum = 0.25
    rate = layer.create_parameter([1], "fp32", "rate")
    made.learning_rate = rate
    before = len(fs.default_main_program().global_block.ops)
    assert repr(made) == "Momentum(learning_rate=rate: f32[1], momentum=0.25)"
    assert len(fs.default_main_program().global_block.ops) == before  # == of a variable is an op, and is not asked


def test_a_class_of_the_user_is_shown_as_far_as_it_is_known() -> None:
    class Slow(optimizer.SGD):
        def __init__(self, note: str, factor: float = 2.0, *more: object) -> None:
            super().__init__(0.5 / factor)
            self.text = note

    assert repr(Slow("gently")) == "Slow(...)"
