"""Checks of a batch's scores, labels and weights before a measure counts them, and the warning about a measure of nothing."""

from __future__ import annotations

import math
from operator import index
from typing import Any

import numpy as np

from foreshape.errors import ExecutionError, SchemaError
from foreshape.program.call_site import warn_user


def check_numbers(measure: str, what: str, values: Any, *, finite: bool = False) -> Any:
    """Return values as fp64. Refuse NaN, and with ``finite`` infinities."""
    out = np.asarray(values, np.float64)
    wrong = ~np.isfinite(out) if finite else np.isnan(out)
    if wrong.any():
        seen = f"{out[wrong][0]} in {int(wrong.sum()):,} of {out.size:,} places"
        raise ExecutionError.must(f"{measure}: the {what}", "finite" if finite else "numbers other than NaN", seen)
    return out


def class_numbers(measure: str, what: str, values: Any, classes: int, ignores: bool = True) -> Any:
    """Return class numbers as int64. Refuse others than whole ones in ``[0, classes)``.

    Args:
        ignores: False names the option ``ignore_index`` in the error.
    """
    given = check_numbers(measure, what, values)
    hint = "" if ignores else "; ignore_index= leaves out one that does not count"
    broken = given[given != np.floor(given)]
    if broken.size:
        raise ExecutionError.must(f"{measure}: a class number", "whole", f"{broken[0]:g} in the {what}{hint}")
    if given.size and not 0 <= given.min() <= given.max() < classes:
        raise ExecutionError.must(f"{measure}: a class number", f"in [0, {classes})", f"{given.min():g} to {given.max():g}{hint}", f"the {what} has")
    return given.astype(np.int64)


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


def whole_or_none(measure: str, option: str, given: Any) -> int | None:
    """Return an option, a whole number or None."""
    if given is not None and (isinstance(given, bool) or not hasattr(given, "__index__")):
        raise SchemaError.must(f"{measure}: {option}", "a whole number, or None", f"{given!r:.60}")
    return None if given is None else index(given)


def number(measure: str, option: str, given: Any) -> float:
    """Return an option, a finite number."""
    if isinstance(given, (bool, str)) or not hasattr(given, "__float__") or not math.isfinite(given):
        raise SchemaError.must(f"{measure}: {option}", "a finite number", f"{given!r:.60}")
    return float(given)


def same_count(measure: str, **counts: int) -> None:
    """Refuse arrays of different numbers of elements."""
    if len(set(counts.values())) > 1:
        raise ExecutionError.must(f"{measure}: {' and '.join(counts)}", "as many", " and ".join(map(str, counts.values())))


def undefined(measure: str, reason: str) -> float:
    """Return NaN, and warn with the reason."""
    warn_user(f"{measure} is NaN: {reason}")
    return math.nan


NOTHING = "there is no example that counts"
