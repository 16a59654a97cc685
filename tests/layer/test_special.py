"""Functions of elements that are needed less often, against Python's own and against their formulas."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import TypeMismatchError


def run(feed: dict[str, Any], *fetch: Any) -> list[Any]:
    return fs.Executor().run(fs.default_main_program(), feed, list(fetch))


def series(f: Callable[[int], float]) -> float:
    return sum(f(k) for k in range(60))


def bessel(order: int, x: float) -> float:
    return series(lambda k: (x / 2) ** (2 * k + order) / (math.factorial(k) * math.factorial(k + order)))


def digamma(x: float) -> float:
    """The derivative of lgamma, by the central difference of fourth order."""
    h = 1e-3
    return (8 * (math.lgamma(x + h) - math.lgamma(x - h)) - (math.lgamma(x + 2 * h) - math.lgamma(x - 2 * h))) / (12 * h)


SMALL, WHOLE, ABOVE = [-0.9, -0.5, 0.0, 0.3, 0.8], [-3.5, -1.2, 0.0, 0.4, 2.7], [1.0, 1.3, 2.5, 6.0]
CASES: list[tuple[str, list[float], Callable[[float], float]]] = [
    ("tan", SMALL, math.tan),
    ("asin", SMALL, math.asin),
    ("acos", SMALL, math.acos),
    ("atan", WHOLE, math.atan),
    ("sinh", WHOLE, math.sinh),
    ("cosh", WHOLE, math.cosh),
    ("asinh", WHOLE, math.asinh),
    ("acosh", ABOVE, math.acosh),
    ("atanh", SMALL, math.atanh),
    ("expm1", [*WHOLE, 1e-12], math.expm1),
    ("lgamma", [*ABOVE, -0.5, -2.7], math.lgamma),
    ("digamma", ABOVE, digamma),
    ("trunc", WHOLE, math.trunc),
    ("frac", WHOLE, lambda x: x - math.trunc(x)),
    ("logit", [0.1, 0.5, 0.9], lambda x: math.log(x / (1 - x))),
]


@pytest.mark.parametrize(("name", "numbers", "function"), CASES, ids=[c[0] for c in CASES])
def test_a_layer_is_its_function(name: str, numbers: list[float], function: Callable[[float], float]) -> None:
    x = layer.data("x", shape=[len(numbers)], dtype="float64")
    (out,) = run({"x": np.array(numbers)}, getattr(layer, name)(x))
    np.testing.assert_allclose(out, [function(v) for v in numbers], rtol=1e-7, atol=1e-12)


@pytest.mark.parametrize(("type", "order", "scaled"), [("i0", 0, False), ("i0e", 0, True), ("i1", 1, False), ("i1e", 1, True)])
def test_bessel_functions_are_their_series(type: str, order: int, scaled: bool) -> None:
    numbers = np.array([-3.0, 0.0, 0.5, 8.0])
    out = fs.default_main_program().global_block.apply(type, {"x": layer.data("x", shape=[4], dtype="float64")})
    want = [bessel(order, v) * (math.exp(-abs(v)) if scaled else 1) for v in numbers]
    np.testing.assert_allclose(run({"x": numbers}, out)[0], want, rtol=1e-10, atol=1e-14)


def test_the_inverse_of_erf_undoes_it() -> None:
    x = layer.data("x", shape=[5], dtype="float64")
    numbers = np.array(SMALL)
    np.testing.assert_allclose(run({"x": numbers}, layer.erf(layer.erfinv(x)))[0], numbers, rtol=1e-12, atol=1e-15)


def test_polygamma_is_its_series() -> None:
    out = fs.default_main_program().global_block.apply("polygamma", {"x": layer.data("x", shape=[2], dtype="float64")}, {"n": 3})
    want = [6 * sum(1 / (v + k) ** 4 for k in range(20000)) for v in (0.7, 2.0)]
    np.testing.assert_allclose(run({"x": np.array([0.7, 2.0])}, out)[0], want, rtol=1e-9)


def test_logit_cuts_off_at_eps_and_is_nan_outside_without() -> None:
    x = layer.data("x", shape=[4], dtype="float64")
    numbers = np.array([-0.5, 0.1, 0.5, 1.5])
    cut, free = run({"x": numbers}, layer.logit(x, epsilon=0.2), layer.logit(x))
    np.testing.assert_allclose(cut, np.log(np.array([0.2, 0.2, 0.5, 0.8]) / np.array([0.8, 0.8, 0.5, 0.2])))
    assert np.isnan(free).tolist() == [True, False, False, True]


def test_what_is_between_two_tensors_may_be_given_as_a_number() -> None:
    x, y = layer.data("x", shape=[2, 3]), layer.data("y", shape=[3])
    feed = {"x": np.arange(6, dtype="float32").reshape(2, 3), "y": np.ones(3, "float32")}
    by_number, by_tensor = run(feed, layer.lerp(x, y, 0.25), layer.lerp(x, y, layer.fill_constant([2, 1], "fp32", 0.25)))
    np.testing.assert_allclose(by_number, 0.75 * feed["x"] + 0.25)
    np.testing.assert_array_equal(by_number, by_tensor)


def test_steps_and_extremes_pass_over_what_is_no_number() -> None:
    x, y = layer.data("x", shape=[5]), layer.data("y", shape=[5])
    nan = math.nan
    feed = {"x": np.array([-1, 0, 2, nan, nan], "float32"), "y": np.array([5, 6, nan, 8, nan], "float32")}
    larger, smaller, step = run(feed, layer.fmax(x, y), layer.fmin(x, y), layer.heaviside(x, y))
    np.testing.assert_array_equal(larger, [5, 6, 2, 8, nan])
    np.testing.assert_array_equal(smaller, [-1, 0, 2, 8, nan])
    np.testing.assert_array_equal(step, [0, 6, 1, 0, 0])


def test_where_extremes_are_equal_the_gradient_is_shared_or_the_first_ones() -> None:
    x, y = layer.data("x", shape=[2, 3]), layer.data("y", shape=[2, 3])
    for v in (x, y):
        v.stop_gradient = False
    of_two = fs.append_backward(layer.reduce_sum(layer.fmax(x, y)), ["x", "y"])
    one = np.ones((2, 3), "float32")
    d_x, d_y = run({"x": one, "y": one}, *(g for _, g in of_two))
    assert d_x.tolist() == one.tolist() and d_y.tolist() == (0 * one).tolist()
    with fs.program_guard(fs.Program(), fs.Program()):
        z = layer.data("z", shape=[2, 3])
        z.stop_gradient = False
        ((_, d_z),) = fs.append_backward(layer.reduce_sum(layer.amax(z, axis=1)), ["z"])
        given = {"z": np.array([[1, 2, 2], [3, 3, 3]], "float32")}
        np.testing.assert_allclose(run(given, d_z)[0], [[0, 0.5, 0.5], [1 / 3, 1 / 3, 1 / 3]], rtol=1e-6)


def test_an_angle_of_integers_is_a_double() -> None:
    y, x = layer.data("y", shape=[4], dtype="int64"), layer.data("x", shape=[4], dtype="int64")
    out = layer.atan2(y, x)
    assert out.dtype is fs.core.spec.FP64
    np.testing.assert_allclose(run({"y": np.array([0, 1, 0, -1]), "x": np.array([1, 0, -1, 0])}, out)[0], [0, math.pi / 2, math.pi, -math.pi / 2])
    with pytest.raises(TypeMismatchError):
        layer.tan(x)


def test_the_type_of_a_parameter_is_given_as_that_of_a_layer() -> None:
    by_word, by_type = layer.create_parameter([2, 3], "fp64", "by_word"), layer.create_parameter([2, 3], fs.core.spec.FP64, "by_type")
    assert by_word.spec is by_type.spec and by_word.dtype is fs.core.spec.FP64
    for word, says in (("int64", "a parameter is floating-point"), ("floats", "an element type must be one of")):
        with pytest.raises(TypeMismatchError, match=says):
            layer.create_parameter([2], word, "none")
