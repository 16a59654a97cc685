"""Checks of a batch's scores, labels and weights before a measure counts them, and the warning about a measure of nothing."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from foreshape.errors import ExecutionError, SchemaError
from foreshape.language.program.call_site import warn_user


def check_numbers(measure: str, subject: str, values: Any, *, finite: bool = False) -> Any:
    """Return values as fp64. Refuse NaN, and with ``finite`` infinities."""
    out = np.asarray(values, np.float64)
    wrong = ~np.isfinite(out) if finite else np.isnan(out)
    if wrong.any():
        finding = f"{out[wrong][0]} in {int(wrong.sum()):,} of {out.size:,} places"
        raise ExecutionError.must(f"{measure}: the {subject}", "finite" if finite else "numbers other than NaN", finding)
    return out


def class_numbers(measure: str, subject: str, values: Any, classes: int, ignores: bool = True) -> Any:
    """Return class numbers as int64. Refuse others than whole ones in ``[0, classes)``.

    Args:
        ignores: False names the option ``ignore_index`` in the error.
    """
    numbers = check_numbers(measure, subject, values)
    hint = "" if ignores else "; ignore_index= leaves out one that does not count"
    broken = numbers[numbers != np.floor(numbers)]
    if broken.size:
        raise ExecutionError.must(f"{measure}: a class number", "whole", f"{broken[0]:g} in the {subject}{hint}")
    if numbers.size and not 0 <= numbers.min() <= numbers.max() < classes:
        raise ExecutionError.must(f"{measure}: a class number", f"in [0, {classes})", f"{numbers.min():g} to {numbers.max():g}{hint}", f"the {subject} has")
    return numbers.astype(np.int64)


def weights_of(measure: str, weight: Any, count: int) -> Any:
    """Return weights of examples as one for each of ``count`` elements, in the order of the examples; ones without a weight.

    Refuse weights below 0 or not finite, and other numbers of weights.
    """
    if weight is None:
        return np.ones(count)
    flat = check_numbers(measure, "weight", weight, finite=True).reshape(-1)
    if flat.size and flat.min() < 0:
        raise ExecutionError.must(f"{measure}: a weight", "at least 0", f"{flat.min():g}")
    if flat.size != count and (not flat.size or count % flat.size):
        raise ExecutionError.must(f"{measure}: weights", f"one for each of {count} elements, or for each example", f"{flat.size}")
    return flat if flat.size == count else np.repeat(flat, count // flat.size)


def whole_or_none(measure: str, option: str, value: Any) -> int | None:
    """Return an option, a whole number or None."""
    if value is not None and (isinstance(value, bool) or not hasattr(value, "__index__")):
        raise SchemaError.must(f"{measure}: {option}", "a whole number, or None", f"{value!r:.60}")
    return None if value is None else index(value)


def number(measure: str, option: str, value: Any) -> float:
    """Return an option, a finite number."""
    if isinstance(value, (bool, str)) or not hasattr(value, "__float__") or not math.isfinite(value):
        raise SchemaError.must(f"{measure}: {option}", "a finite number", f"{value!r:.60}")
    return float(value)


def same_count(measure: str, **counts: int) -> None:
    """Refuse arrays of different numbers of elements."""
    if len(set(counts.values())) > 1:
        raise ExecutionError.must(f"{measure}: {' and '.join(counts)}", "as many", " and ".join(map(str, counts.values())))


def undefined(measure: str, reason: str) -> float:
    """Return NaN, and warn with the reason."""
    warn_user(f"{measure} is NaN: {reason}")
    return math.nan


NOTHING = "there is no example that counts"
