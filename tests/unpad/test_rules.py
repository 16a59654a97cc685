"""The rules of the proof, compared with numbers over small sizes."""

from __future__ import annotations

from functools import cache
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.some import examples

import foreshape as fs
from foreshape import layer
from foreshape.transforms.unpad.contents import Content, constant
from foreshape.transforms.unpad.index_forms import LENGTH, TEXTS, TIME, IndexForm, Side
from foreshape.transforms.unpad.per_element import PlaceFacts, combined

PLACES = [(0, 0), (1, 0), (2, 0)]
"""One of the texts, and two of the time."""
FACTORS = [*PLACES, TEXTS, TIME, LENGTH]
MONOMIALS: Any = st.lists(st.sampled_from(FACTORS), max_size=2).map(lambda m: tuple(sorted(m, key=str)))


def value(form: IndexForm, numbers: dict[Any, int]) -> int:
    return sum(c * int(np.prod([numbers[f] for f in monomial], dtype="int64")) for monomial, c in form.terms)


@given(st.dictionaries(MONOMIALS, st.integers(-3, 3), max_size=4), st.sampled_from(["right", "left"]), st.sets(st.sampled_from(PLACES[1:])), st.booleans())
def test_a_proved_bound_is_never_above_the_least_number(terms: dict[Any, int], side: Side, masked: set[Any], has_rows: bool) -> None:
    form = IndexForm.from_terms(terms)
    bound = form.least(side, PLACES[1:], masked, has_rows)
    if bound is None:
        return
    for texts, length, padding in product((1, 2), (1, 2, 3) if has_rows else (0, 1, 2, 3), (0, 1, 2)):
        time = length + padding
        own = range(length) if side == "right" else range(padding, time)
        padded = range(length, time) if side == "right" else range(padding)
        for batch, first, second in product(range(texts), *(padded if p in masked else own for p in PLACES[1:])):
            numbers = {PLACES[0]: batch, PLACES[1]: first, PLACES[2]: second, TEXTS: texts, TIME: time, LENGTH: length}
            assert bound <= value(form, numbers), (form, numbers)


def test_bounds_that_masks_need_are_proved() -> None:
    """Else a rule that proves nothing would pass the test above."""
    place, length, time = (IndexForm.factor(f) for f in (PLACES[1], LENGTH, TIME))
    one = IndexForm.number(1)
    assert (length - place).least("right", PLACES[1:], ()) == 1
    assert (place - length).least("right", PLACES[1:], [PLACES[1]]) == 0
    assert (place + length - time).least("left", PLACES[1:], ()) == 0
    assert (length - one).least("right", (), ()) == -1
    assert (length - one).least("right", (), (), has_rows=True) == 0


NUMBERS: Any = st.floats(-20, 20, width=32).map(lambda x: 0.0 if abs(x) < 1e-3 else x)  # bounds are those of numbers that do not overflow
INTERVALS: Any = st.tuples(NUMBERS, NUMBERS).map(lambda ends: (min(ends), max(ends)))
PAIRED = {
    "add": layer.add, "subtract": layer.subtract, "multiply": layer.multiply, "divide": layer.divide, "maximum": layer.maximum, "minimum": layer.minimum,
    "less": layer.less_than, "at most": layer.less_equal, "more": layer.greater_than, "at least": layer.greater_equal, "equal": layer.equal,
    "differs": layer.not_equal,
}  # fmt: skip
SINGLE = {
    "square": layer.square, "abs": layer.abs, "tanh": layer.tanh, "sigmoid": layer.sigmoid, "erf": layer.erf, "relu": layer.relu, "softplus": layer.softplus,
    "log1p": lambda x: layer.log1p(layer.abs(x)), "floor": layer.floor, "ceil": layer.ceil, "round": layer.round, "gelu": layer.gelu, "silu": layer.silu,
    "cos": layer.cos, "sin": layer.sin, "exp": layer.exp, "scale": lambda x: layer.scale(x, -2.5, 3.0), "clip": lambda x: layer.clip(x, -1.5, 2.0),
    "sqrt": layer.sqrt, "rsqrt": layer.rsqrt, "reciprocal": layer.reciprocal, "log": layer.log, "to integers": lambda x: layer.cast(x, "int64"),
    "to truth": lambda x: layer.cast(x, "bool"), "log2": layer.log2, "softsign": layer.softsign,
}  # fmt: skip


@cache
def described(name: str) -> tuple[fs.Program, fs.Executor]:
    with fs.program() as program:
        x = layer.data("x0", ["n"])
        PAIRED[name](x, layer.data("x1", ["n"])) if name in PAIRED else SINGLE[name](x)
    return program, fs.Executor()


@pytest.mark.quick_cases(one_in=4)
@pytest.mark.parametrize("name", [*PAIRED, *SINGLE])
@settings(max_examples=examples(25))
@given(data=st.data())
def test_the_numbers_of_a_result_are_within_its_bounds(name: str, data: st.DataObject) -> None:
    bounds = data.draw(st.lists(INTERVALS, min_size=2, max_size=2))
    shares = data.draw(st.lists(st.lists(st.floats(0, 1, width=32), min_size=3, max_size=3), min_size=2, max_size=2))
    values = [
        np.array([low, high, *[low + s * (high - low) for s in share]], "float32").clip(low, high) for (low, high), share in zip(bounds, shares, strict=True)
    ]
    if name in PAIRED:
        values = [np.repeat(values[0], 5), np.tile(values[1], 5)]
    program, executor = described(name)
    op = program.global_block.ops[-1]
    contents = [constant(low) if low == high else Content(low, high) for low, high in bounds[: 2 if name in PAIRED else 1]]
    if name == "log1p":  # the rule is for the numbers of abs
        low, high = bounds[0]
        contents = [Content(0.0, max(-low, high))]
    content = combined(op, contents, PlaceFacts(op, list(op.input_names()), "right", (), ()))
    feed = {f"x{k}": v for k, v in enumerate(values[: len(contents)])}
    results = np.asarray(executor.run(program, feed, [next(iter(op.output_names()))], fs.Scope())[0]).astype("float64")
    if content.finite:
        assert np.isfinite(results).all()
    finite = results[~np.isnan(results)]
    slack = np.where(np.isfinite(finite), 1e-5 * np.maximum(1.0, np.abs(finite)), 0.0)
    assert (finite >= content.low - slack).all() and (finite <= content.high + slack).all(), (content, results)
