"""Which of many like cases the quick suite has; the others are long. Chosen by name, so that it is the same ones each time."""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from typing import Any, TypeVar
from zlib import crc32

import pytest

_Case = TypeVar("_Case")


def is_quick(name: str, one_in: int, turn: int = 0) -> bool:
    """Whether a case is among the one in so many that are quick."""
    return crc32(name.encode()) % one_in == turn


def one_in(count: int, cases: Iterable[_Case], name: Callable[[_Case], str] = str) -> list[Any]:
    """Cases for `pytest.mark.parametrize`, of which one in so many is quick."""
    return [pytest.param(c, id=name(c), marks=() if is_quick(name(c), count) else pytest.mark.long) for c in cases]


def each(count: int, cases: Iterable[_Case]) -> list[Any]:
    """Cases for `pytest.mark.parametrize`, of which the first is quick, and each so many further."""
    return [pytest.param(c, marks=pytest.mark.long if at % count else ()) for at, c in enumerate(cases)]


def each_of_product(count: int, *parts: Iterable[Any]) -> list[Any]:
    """As `each`, for several parameters: of every combination of their values."""
    return [pytest.param(*c, marks=pytest.mark.long if at % count else ()) for at, c in enumerate(itertools.product(*parts))]


def examples(count: int) -> int:
    """How many examples hypothesis draws: a third of them in the quick suite, all in `make test-long`."""
    return count if os.environ.get("FORESHAPE_EXAMPLES") == "all" else max(20, count // 3)
