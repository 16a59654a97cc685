"""Every optimizer with every kind of learning rate that docs/optimizers.md names, and with what the page says that all of them take."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape import optimizer as o

EPOCHS, BATCH = 3, 4
VALUES = np.random.default_rng(0).standard_normal((12, 4)).astype("float32")

OPTIMIZERS: dict[str, Callable[..., o.Optimizer]] = {
    "SGD": o.SGD, "Momentum": o.Momentum, "Adam": o.Adam, "lazy Adam": functools.partial(o.Adam, lazy_mode=True), "AdamW": o.AdamW, "Adamax": o.Adamax,
    "Adagrad": o.Adagrad, "DecayedAdagrad": o.DecayedAdagrad, "Adadelta": o.Adadelta, "RMSProp": o.RMSProp,
    "centered RMSProp": functools.partial(o.RMSProp, momentum=0.9, centered=True), "Ftrl": o.Ftrl, "Lamb": o.Lamb, "Lars": o.Lars, "Lion": o.Lion,
    "ProximalGD": o.ProximalGD,
}  # fmt: skip
RATES: dict[str, Callable[[], Any]] = {
    "a number": lambda: 0.01,
    "cosine": lambda: o.cosine(0.01),
    "cosine with a warmup": lambda: o.cosine(0.01, warmup=1, end=0.001),
    "one_cycle": lambda: o.one_cycle(0.04),
    "polynomial": lambda: o.polynomial(0.01, epochs=2),
    "piecewise": lambda: o.piecewise([0.01, 0.001, 0.0001], epochs=[1, 2]),
    "exponential": lambda: o.exponential(0.01, 0.5),
    "warmup": lambda: o.warmup(0.01, epochs=1),
    "warmup of exponential": lambda: o.warmup(o.exponential(0.01, 0.5), epochs=1),
    "warmup of cosine": lambda: o.warmup(o.cosine(0.01), epochs=1),
    "ExponentialDecay": lambda: o.ExponentialDecay(0.01, 2, 0.5),
    "NaturalExpDecay": lambda: o.NaturalExpDecay(0.01, 2, 0.5),
    "InverseTimeDecay": lambda: o.InverseTimeDecay(0.01, 2, 0.5),
    "PolynomialDecay": lambda: o.PolynomialDecay(0.01, 4, cycle=True),
    "PiecewiseDecay": lambda: o.PiecewiseDecay([2, 4], [0.01, 0.001, 0.0001]),
    "CosineDecay": lambda: o.CosineDecay(0.01, 2, 3),
    "NoamDecay": lambda: o.NoamDecay(16, 4),
    "LinearWarmup": lambda: o.LinearWarmup(o.CosineDecay(0.01, 2, 3), 2, 0.001, 0.01),
}
WITHOUT_ZERO = ("a number", "exponential", "piecewise", "ExponentialDecay", "NaturalExpDecay", "InverseTimeDecay", "PiecewiseDecay")
"""Those that fall, and never to 0: what FTRL can do with."""
OF_ITS_OWN = {"Lamb": "lamb_weight_decay", "Lars": "lars_weight_decay"}
TWICE, ONCE, NONE = 2, 1, 0
STATE = {"SGD": NONE, "Momentum": ONCE, "Adam": TWICE, "AdamW": TWICE, "Lion": ONCE, "Lamb": TWICE, "Lars": ONCE, "Adagrad": ONCE, "Ftrl": TWICE}

CASES = [(name, rate) for name in OPTIMIZERS for rate in RATES if name != "Ftrl" or rate in WITHOUT_ZERO]
QUICK = {(name, list(RATES)[at % len(RATES)]) for at, name in enumerate(OPTIMIZERS)} | {("SGD", rate) for rate in list(RATES)[-2:]}


def network() -> fs.Variable:
    x = layer.data("x", ["batch", 4])
    return layer.mean(layer.square(layer.fc(layer.fc(x, 3, "tanh"), 1) - 1.0))


def trained(optimizer: o.Optimizer, **options: Any) -> fs.History:
    fs.reset()
    return fs.train(network(), {"x": VALUES}, optimizer=optimizer, epochs=EPOCHS, batch_size=BATCH, progress=False, **options)


@functools.cache
def rates_of(rate: str) -> list[float]:
    """The learning rate at the end of each epoch, as descent by gradients shows it."""
    return trained(o.SGD(RATES[rate]())).column("learning rate")


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(("name", "rate"), [pytest.param(n, r, marks=[] if (n, r) in QUICK else pytest.mark.long) for n, r in CASES])
def test_an_optimizer_with_a_learning_rate(name: str, rate: str) -> None:
    history = trained(OPTIMIZERS[name](RATES[rate]()))
    assert history.column("learning rate") == pytest.approx(rates_of(rate), abs=1e-9)
    assert np.isfinite(history.losses).all() and history.losses[-1] < 1.05 * history.losses[0]


@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in ("AdamW", "Lamb", "Lars") else pytest.mark.long) for n in OPTIMIZERS])
def test_an_optimizer_takes_what_the_page_says_that_all_take(name: str) -> None:
    rate = RATES["exponential"]()
    options = {OF_ITS_OWN.get(name, "weight_decay"): 0.01, "clip": o.ClipByGlobalNorm(1.0), "freeze": ["fc_1.b_0"],
               "groups": [o.Group("*.b_0", weight_decay=0), o.Group("fc_0.*", learning_rate_factor=0.1)]}  # fmt: skip
    history = trained(OPTIMIZERS[name](rate, **options), accumulate=2)
    assert np.isfinite(history.losses).all() and history.losses[-1] < 1.05 * history.losses[0]
    assert np.array_equal(fs.default_scope().get("fc_1.b_0"), np.zeros(1, "float32"))


def test_the_page_says_what_an_optimizer_keeps() -> None:
    for name, times in STATE.items():
        fs.reset()
        made = fs.training_program(network(), OPTIMIZERS[name](0.01))
        block = made.program.global_block
        parameters = sum(int(v.spec.elements) for v in block.vars.values() if v.is_parameter)  # pyright: ignore[reportArgumentType]
        kept = [block.var(n).spec.elements for n in made.state if "pow_acc" not in n]
        assert sum(map(int, kept)) == times * parameters, name  # pyright: ignore[reportArgumentType]


def test_ftrl_and_a_rate_that_comes_to_zero() -> None:
    with pytest.raises(fs.ExecutionError, match=r"the loss mean_0\.tmp_0 is nan"):
        trained(o.Ftrl(RATES["polynomial"]()))
