"""Learning rates in epochs, steps or over the whole run: their formulas, and what they say where nobody has told them how long an epoch is."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer, optimizer
from foreshape.errors import SchemaError
from foreshape.optimizer.schedule import Schedule

EPOCHS, EACH = 3, 4
ALL = EPOCHS * EACH


def seen(schedule: Schedule, steps: int, run: dict[str, Any] | None) -> list[float]:
    """The rates of some steps, as `Optimizer.rate_of` gives them."""
    main, startup = fs.Program(), fs.Program()
    chosen = optimizer.SGD(schedule)
    chosen = chosen.for_run(**run) if run is not None else chosen
    with fs.program_guard(main, startup):
        chosen.minimize(layer.mean(layer.fc(layer.data("x", ["batch", 2]), 1)))
    executor, scope = fs.Executor(), fs.Scope()
    executor.run(startup, scope=scope)
    x = np.ones((1, 2), "float32")
    return [float(executor.run(main, {"x": x}, [chosen.rate_of(main)], scope)[0].item()) for _ in range(steps)]


def half_cosine(part: float, first: float, last: float) -> float:
    return last + (first - last) * (1 + math.cos(math.pi * min(part, 1.0))) / 2


def risen(s: int, steps: float, after: Callable[[float], float]) -> float:
    return after(0.0) * min((s + 1) / steps, 1.0) if s < steps else after(s - steps)


FORMULAS: dict[str, tuple[Schedule, Callable[[int], float]]] = {
    "cosine": (optimizer.cosine(0.5, end=0.1), lambda s: half_cosine(s / ALL, 0.5, 0.1)),
    "cosine_warm": (optimizer.cosine(0.5, epochs=2, warmup=1), lambda s: risen(s, EACH, lambda t: half_cosine(t / EACH, 0.5, 0.0))),
    "cosine_steps": (optimizer.cosine(0.5, steps=8, warmup=3), lambda s: risen(s, 3, lambda t: half_cosine(t / 5, 0.5, 0.0))),
    "one_cycle": (
        optimizer.one_cycle(1.0, rising=0.25),
        lambda s: half_cosine(s / (ALL / 4), 0.04, 1.0) if s < ALL / 4 else half_cosine((s / ALL - 0.25) / 0.75, 1.0, 4e-6),
    ),
    "polynomial": (optimizer.polynomial(0.5, epochs=2, end=0.1, power=2), lambda s: 0.1 + 0.4 * (1 - min(s / 8, 1)) ** 2),
    "piecewise": (optimizer.piecewise([1.0, 0.1, 0.01], epochs=[1, 2.5]), lambda s: 1.0 if s < 4 else 0.1 if s < 10 else 0.01),
    "piecewise_warm": (optimizer.piecewise([1.0, 0.1], epochs=[2], warmup=0.6), lambda s: risen(s, 2.4, lambda t: 1.0 if t < 8 - 2.4 else 0.1)),
    "exponential": (optimizer.exponential(1.0, 0.5), lambda s: 0.5 ** (s / EACH)),
    "exponential_staircase": (optimizer.exponential(1.0, 0.5, steps=3, staircase=True), lambda s: 0.5 ** (s // 3)),
    "warmup": (optimizer.warmup(0.5, epochs=1), lambda s: 0.5 * min((s + 1) / EACH, 1)),
    "warmup_of": (optimizer.warmup(optimizer.exponential(1.0, 0.5), steps=5), lambda s: min((s + 1) / 5, 1) * 0.5 ** (s / EACH)),
    "linear_warmup_of": (
        optimizer.LinearWarmup(optimizer.polynomial(1.0), 2, 0.0, 1.0),
        lambda s: s / 2 if s < 2 else max(1 - s / ALL, 0.0),
    ),
}


@pytest.mark.parametrize("name", FORMULAS)
def test_a_course_is_its_formula(name: str) -> None:
    schedule, formula = FORMULAS[name]
    got = seen(schedule, ALL + 2, {"epochs": EPOCHS, "steps_per_epoch": EACH})
    np.testing.assert_allclose(got, [formula(s) for s in range(ALL + 2)], rtol=1e-4, atol=2e-7)


def test_a_course_that_knows_its_length_needs_no_run() -> None:
    told = seen(optimizer.cosine(0.5, epochs=2, steps_per_epoch=4), 8, None)
    np.testing.assert_allclose(told, seen(optimizer.cosine(0.5, steps=8), 8, None), rtol=1e-6)
    # what the user says goes before what the run says
    np.testing.assert_allclose(told, seen(optimizer.cosine(0.5, epochs=2, steps_per_epoch=4), 8, {"epochs": 9, "steps_per_epoch": 100}), rtol=1e-6)


def test_a_course_in_epochs_says_what_it_lacks() -> None:
    for run in (None, {"epochs": 3, "steps_per_epoch": None}):
        with pytest.raises(SchemaError, match=r"cosine is in epochs, .* give it steps_per_epoch=, or steps="):
            seen(optimizer.cosine(0.5), 1, run)
    with pytest.raises(SchemaError, match=r"polynomial is over the whole run, .* give it epochs= and steps_per_epoch="):
        seen(optimizer.polynomial(0.5, steps_per_epoch=4), 1, None)


def test_a_run_changes_no_optimizer_and_only_what_depends_on_it() -> None:
    plain = optimizer.Adam(1e-3)
    assert plain.for_run(epochs=3, steps_per_epoch=4) is plain
    given = optimizer.Adam(optimizer.cosine(0.1))
    found = given.for_run(epochs=3, steps_per_epoch=4)
    assert found is not given and type(found) is optimizer.Adam and found.for_run(epochs=5, steps_per_epoch=6) is found
    assert given.for_run(epochs=5, steps_per_epoch=6) is not given
    copied: optimizer.Optimizer = pickle.loads(pickle.dumps(given))
    assert type(copied) is optimizer.Adam and copied.for_run(epochs=3, steps_per_epoch=4) is not copied
    with pytest.raises(SchemaError, match="no learning rate in this program"):
        given.rate_of(fs.Program())


def test_a_course_without_sense_is_refused() -> None:
    bad: dict[str, Callable[[], Any]] = {
        "over epochs or over steps, not both": lambda: optimizer.cosine(0.1, epochs=2, steps=3),
        "no use for steps_per_epoch": lambda: optimizer.cosine(0.1, steps=3, steps_per_epoch=4),
        "a warmup of 2 leaves nothing": lambda: optimizer.polynomial(0.1, epochs=2, warmup=2),
        "needs epochs above 0": lambda: optimizer.cosine(0.1, epochs=0),
        "between 0 and 1": lambda: optimizer.one_cycle(0.1, rising=1.0),
        "one of the two": lambda: optimizer.piecewise([0.1, 0.2]),
        "one rate more than boundaries": lambda: optimizer.piecewise([0.1], epochs=[1]),
        "must rise": lambda: optimizer.piecewise([0.1, 0.2, 0.3], epochs=[2, 2]),
        "needs factor above 0": lambda: optimizer.exponential(0.1, 0.0),
        "how long the rate rises": lambda: optimizer.warmup(0.1),
        "a warmup of at least 0": lambda: optimizer.cosine(0.1, warmup=-1),
        "a warmup of 5 leaves nothing": lambda: optimizer.SGD(optimizer.cosine(0.1, warmup=5)).for_run(epochs=5, steps_per_epoch=2),
    }
    for words, make in bad.items():
        with pytest.raises(SchemaError, match=words):
            make()
