"""What the tests themselves are made of."""

from __future__ import annotations

from typing import Any

import pytest
from support.counted import assert_calls_grow_with_size, assert_time_grows_with_size, calls
from support.harness import of_each_operator, operators

RELU, SOFTMAX = (next(c for c in operators() if c.type == kind) for kind in ("relu", "softmax"))
FILE, OTHER = (c.__module__.removeprefix("foreshape.language.ops.").replace(".", "/") for c in (RELU, SOFTMAX))


def cases(*wrong: str) -> Any:
    given = [("relu-0", RELU, 0), ("softmax-0", SOFTMAX, 0), ("relu-1", RELU, 1), ("relu-2", RELU, 2)]

    @of_each_operator(given)
    def test(name: str, cls: Any, number: int) -> None:
        assert name not in wrong, f"{cls.type} {number} is wrong"

    return test


def test_a_test_of_all_cases_of_a_file_tells_of_each_that_fails() -> None:
    cases()(FILE)
    one = cases("relu-1", "softmax-0")
    with pytest.raises(AssertionError, match="relu 1 is wrong") as failure:
        one(FILE)
    assert failure.value.__notes__ == ["this is relu-1"]
    with pytest.raises(ExceptionGroup, match=rf"2 of 3 cases of {FILE}: this is relu-0, this is relu-2") as failures:
        cases("relu-0", "relu-2")(FILE)
    assert [str(e).splitlines()[0] for e in failures.value.exceptions] == ["relu 0 is wrong", "relu 2 is wrong"]


def test_a_kind_of_case_that_is_new_is_asked_for_by_the_file_of_its_operator() -> None:
    (mark,) = cases().pytestmark
    assert [case.values for case in mark.args[1]] == [(FILE,), (OTHER,)]


def each(of: list[int]) -> None:
    for x in of:
        x.bit_length()


@pytest.mark.long
def test_work_that_grows_with_the_square_is_noticed() -> None:
    assert calls(lambda: each([0] * 100)) >= 100
    assert_calls_grow_with_size(lambda n: lambda: each([0] * n), 100, 1000)
    with pytest.raises(AssertionError, match="calls"):
        assert_calls_grow_with_size(lambda n: lambda: each([0] * n * n), 10, 100)
    assert_time_grows_with_size(lambda n: lambda: each([0] * 2_000 * n), 16, 32, 64)
    seconds = [0.0]  # a clock that goes by what is done alone: on a busy machine the processor's can hide a square

    def work(amount: float) -> None:
        seconds[0] += amount

    def takes(power: float) -> list[float]:
        return assert_time_grows_with_size(lambda n: lambda: work(n**power), 16, 32, 64, clock=lambda: seconds[0])

    assert takes(1) == [16, 32, 64]
    with pytest.raises(AssertionError, match=r"\[256.0, 1024.0, 4096.0\] seconds"):
        takes(2)
