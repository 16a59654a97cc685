"""Functions of one tensor as sums of products: two computations of one function have one form.

A `Form` is the factor of each product; a product has factors: the tensor itself, ``x``, or a function of another form. Cutting off is the one function
with numbers of its own: its form is moved and scaled to the tensor's factor 1 and no number besides.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Final, TypeAlias

from foreshape.language.operator.computations import Activation

Form: TypeAlias = Mapping[tuple[Any, ...], float]
_MOST: Final = 8
"""The most products of a form."""
X: Final[Form] = {("x",): 1.0}
GELU_BY_TANH: Final = Activation("gelu", form="tanh")


def number(n: float) -> Form:
    """Return a number, equal for all elements."""
    return {(): n}


def plus(a: Form, b: Form, times: float = 1.0) -> Form | None:
    """Return ``a + times b``; None if it is too long."""
    out = dict(a)
    for factors, coefficient in b.items():
        out[factors] = out.get(factors, 0.0) + times * coefficient
    return out if len(out) <= _MOST else None


def product(a: Form, b: Form) -> Form | None:
    """Return ``a b``; None if it is too long."""
    out: dict[tuple[Any, ...], float] = {}
    for left, coefficient in a.items():
        for right, times in b.items():
            factors = tuple(sorted((*left, *right), key=repr))
            out[factors] = out.get(factors, 0.0) + coefficient * times
    return out if len(out) <= _MOST else None


def power(a: Form, exponent: float) -> Form | None:
    """Return ``a`` to a power; None if it is not 1, 2 or 3."""
    out: Form | None = a if exponent in (1.0, 2.0, 3.0) else None
    for _ in range(1, int(exponent) if out is not None else 1):
        out = None if out is None else product(out, a)
    return out


def function(name: str, a: Form) -> Form:
    """Return a function of ``a`` by its name."""
    return {((name, _key(a)),): 1.0}


def cut_off(a: Form, low: float, high: float) -> Form | None:
    """Return ``min(max(a, low), high)``; None if ``a`` is no tensor with a factor and a number besides."""
    slope, shift = a.get(("x",), 0.0), a.get((), 0.0)
    if slope == 0.0 or not {*a} <= {("x",), ()}:
        return None
    ends = sorted(((low - shift) / slope, (high - shift) / slope))
    return {(("cut off", *map(_rounded, ends)),): slope, (): shift}


def of_activation(activation: Activation, a: Form) -> Form | None:
    """Return an activation of ``a``; None for other ones than these."""
    if activation.name in ("sigmoid", "tanh"):
        return function(activation.name, a)
    if activation.name == "hardtanh":
        return cut_off(a, *activation.numbers)
    if activation.name == "hardsigmoid":
        slope, offset = activation.numbers
        scaled = plus(product(a, number(slope)) or {}, number(offset))
        return None if not scaled else cut_off(scaled, 0.0, 1.0)
    return None


def activation(form: Form) -> Activation | None:
    """Return the activation of this form, if it is one."""
    return _ACTIVATIONS.get(_key(form))


def _rounded(n: float) -> float:
    """Return a number to five digits: as they are written, such as a root of one half, they differ behind these."""
    return float(f"{n:.5g}") + 0.0


def _key(form: Form) -> tuple[Any, ...]:
    return tuple(sorted(((factors, _rounded(coefficient)) for factors, coefficient in form.items() if coefficient), key=repr))


def _times(*factors: Form) -> Form:
    out: Form = number(1.0)
    for factor in factors:
        out = product(out, factor) or {}
    return out


def _activations() -> dict[tuple[Any, ...], Activation]:
    root, inner = math.sqrt(0.5), math.sqrt(2.0 / math.pi)
    by_tanh = {("x",): inner, ("x", "x", "x"): inner * 0.044715}
    forms = {
        Activation("swish"): _times(X, function("sigmoid", X)),
        Activation("hardswish"): _times(X, cut_off({("x",): 1 / 6, (): 0.5}, 0.0, 1.0) or {}),
        Activation("gelu", form="none"): _times(number(0.5), X, plus(number(1.0), function("error", {("x",): root})) or {}),
        GELU_BY_TANH: _times(number(0.5), X, plus(number(1.0), function("tanh", by_tanh)) or {}),
    }
    return {_key(form): activation for activation, form in forms.items()}


_ACTIVATIONS: Final = _activations()
