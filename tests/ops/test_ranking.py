"""Ranks, running results and counts, against numpy and against counting by hand."""

from __future__ import annotations

import warnings
from collections import Counter
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import ExecutionError

RNG = np.random.RandomState(6)


def run(feed: dict[str, Any], *fetch: Any) -> list[Any]:
    return fs.Executor().run(fs.default_main_program(), feed, list(fetch))


def data(name: str, of: np.ndarray) -> Any:
    return layer.data(name, shape=list(of.shape), dtype=str(of.dtype))


@pytest.mark.parametrize("axis", [0, 1, -1])
def test_the_most_frequent_is_counted(axis: int) -> None:
    a = RNG.randint(0, 4, (5, 6, 7))
    out, at = run({"x": a}, *layer.mode(data("x", a), axis))
    for place in np.ndindex(*out.shape):
        row = np.moveaxis(a, axis, -1)[place]
        often = Counter(row.tolist())
        want = min(v for v, n in often.items() if n == max(often.values()))
        assert out[place] == want and at[place] == np.flatnonzero(row == want)[-1]


@pytest.mark.parametrize("k", [1, 3, 5])
def test_the_kth_smallest_is_where_it_is_said_to_be(k: int) -> None:
    a = RNG.standard_normal((4, 5, 3))
    out, at = run({"x": a}, *layer.kthvalue(data("x", a), k, axis=1, keepdim=True))
    np.testing.assert_array_equal(out, np.sort(a, 1)[:, k - 1 : k])
    np.testing.assert_array_equal(np.take_along_axis(a, at, 1), out)


@pytest.mark.parametrize("axis", [None, 0, [0, 2], [-1, 1]])
@pytest.mark.parametrize("size", [4, 5])
def test_medians_pass_over_what_is_no_number(axis: Any, size: int) -> None:
    a = RNG.standard_normal((3, size, 4))
    a[RNG.random_sample(a.shape) < 0.3] = np.nan
    a[:, 0, 0] = np.nan
    (out,) = run({"x": a}, layer.nanmedian(data("x", a), axis))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", RuntimeWarning)  # of rows that have no number
        np.testing.assert_allclose(out, np.nanmedian(a, tuple(axis) if isinstance(axis, list) else axis))


def test_the_median_of_integers_loses_its_fraction_towards_zero() -> None:
    a = np.array([[1, 2], [-1, -2], [5, 9]])
    assert run({"x": a}, layer.nanmedian(data("x", a), 1))[0].tolist() == [1, -1, 7]


@pytest.mark.parametrize("right", [False, True])
def test_numbers_are_placed_in_sorted_rows(right: bool) -> None:
    rows, values = np.sort(RNG.randint(0, 9, (3, 5)), -1), RNG.randint(-1, 10, (3, 4))
    x, y = data("x", rows), data("y", values)
    each, one = run({"x": rows, "y": values}, layer.searchsorted(x, y, right=right), layer.searchsorted(x[0], y, right=right, dtype="int32"))
    side = "right" if right else "left"
    np.testing.assert_array_equal(each, [np.searchsorted(r, v, side) for r, v in zip(rows, values, strict=True)])
    np.testing.assert_array_equal(one, np.searchsorted(rows[0], values, side))
    assert one.dtype == np.int32


def test_numbers_are_counted_and_weighed() -> None:
    a, w = RNG.randint(0, 6, 20), RNG.standard_normal(20)
    x, y = data("x", a), data("y", w)
    counts, weights = run({"x": a, "y": w}, layer.bincount(x, minlength=9), layer.bincount(x, y))
    np.testing.assert_array_equal(counts, np.bincount(a, minlength=9))
    np.testing.assert_allclose(weights, np.bincount(a, w))
    with pytest.raises(ExecutionError, match="at least 0; seen -2"):
        run({"x": a - a.min() - 2, "y": w}, layer.bincount(x))


def test_of_nothing_nothing_is_counted_whatever_the_least_length() -> None:
    x = layer.data("x", shape=["n"], dtype="int64")
    assert run({"x": np.zeros(0, "int64")}, layer.bincount(x, minlength=3))[0].shape == (0,)


@pytest.mark.parametrize("dtype", ["float32", "float64", "int32", "int64"])
@pytest.mark.parametrize(("bins", "low", "high"), [(5, 0, 0), (4, -3, 3), (7, 1, 9)])
def test_ranges_are_counted(dtype: str, bins: int, low: int, high: int) -> None:
    a = (RNG.standard_normal((4, 15)) * 5).astype(dtype)
    (out,) = run({"x": a}, layer.histogram(data("x", a), bins, low, high))
    np.testing.assert_array_equal(out, np.histogram(a, bins, (low, high) if low != high else None)[0])


def test_a_histogram_without_a_finite_range_is_an_error_of_the_run() -> None:
    x = layer.data("x", shape=[2])
    with pytest.raises(ExecutionError, match="must be finite"):
        run({"x": np.array([np.nan, 1], "float32")}, layer.histogram(x, 3))


def test_running_results() -> None:
    a = RNG.standard_normal((4, 5))
    x = data("x", a)
    products, sums, of_all = run({"x": a}, layer.cumprod(x), layer.logcumsumexp(x, 0), layer.logcumsumexp(x))
    most, at, least, _ = run({"x": a}, *layer.cummax(x, 0), *layer.cummin(x, 0, dtype="int32"))
    np.testing.assert_allclose(products, np.cumprod(a, -1))
    np.testing.assert_allclose(sums, np.log(np.cumsum(np.exp(a), 0)), rtol=1e-9)
    np.testing.assert_allclose(of_all, np.log(np.cumsum(np.exp(a))), rtol=1e-9)
    np.testing.assert_array_equal(most, np.maximum.accumulate(a, 0))
    np.testing.assert_array_equal(np.take_along_axis(a, at, 0), most)
    np.testing.assert_array_equal(least, np.minimum.accumulate(a, 0))


def test_running_sums_of_nothing_are_the_lowest_number() -> None:
    x = layer.data("x", shape=[3])
    out = fs.default_main_program().global_block.apply("logcumsumexp", {"X": x}, {"exclusive": True, "reverse": True})
    (got,) = run({"x": np.array([1, 2, -np.inf], "float32")}, out)
    np.testing.assert_allclose(got, [2.0, np.finfo("float32").min, np.finfo("float32").min])


@pytest.mark.parametrize("reverse", [False, True])
def test_the_gradient_of_running_sums_before_each_element(reverse: bool) -> None:
    a, weight = RNG.standard_normal((2, 4)), RNG.standard_normal((2, 4))
    weight[:, -1 if reverse else 0] = 0.0  # where nothing is summed
    x = data("x", a)
    x.stop_gradient = False
    sums = fs.default_main_program().global_block.apply("logcumsumexp", {"X": x}, {"exclusive": True, "reverse": reverse})
    given = data("weight", weight)
    ((_, gradient),) = fs.append_backward(sums, ["x"], loss_gradient=given)
    (got,) = run({"x": a, "weight": weight}, gradient)
    exp = np.exp(a)
    want = np.zeros_like(a)
    for k in range(4):
        for i in range(4):
            before = slice(i + 1, None) if reverse else slice(0, i)
            if weight[:, i].any() and k in range(*before.indices(4)):
                want[:, k] += weight[:, i] * exp[:, k] / exp[:, before].sum(1)
    np.testing.assert_allclose(got, want, rtol=1e-9, atol=1e-12)


def test_questions_about_whole_tensors() -> None:
    a = np.array([[1.0, 2.0, np.inf]])
    x, y, z = data("x", a), data("y", a), data("z", a[0])
    near = layer.add(y, 1e-6)
    answers = run(
        {"x": a, "y": a, "z": a[0]}, layer.equal_all(x, y), layer.equal_all(x, near), layer.equal_all(x, z), layer.allclose(x, near),
        layer.allclose(x, near, rtol=0.0, atol=1e-9), layer.isclose(x, near),
    )  # fmt: skip
    assert [bool(v) for v in answers[:5]] == [True, False, False, True, False] and answers[5].all()
    assert all(v.shape == () for v in answers[:5])
