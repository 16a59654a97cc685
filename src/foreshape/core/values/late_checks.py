"""Checks of numbers that are on a device: they are read with what is fetched, since a kernel that asked at once would wait for the device."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from inspect import currentframe
from types import CodeType
from typing import Any, NamedTuple

from foreshape.core.values.emitted_code import STEP_FILE, op_at
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError


class LateCheck(NamedTuple):
    """A check whose numbers are not read yet.

    Attributes:
        numbers: tensors of one whole number or truth value each.
        error: the error for these numbers; None if they are right.
        code, line: of the step's text, where its kernel is called.
    """

    numbers: tuple[Tensor, ...]
    error: Callable[..., ExecutionError | None]
    code: CodeType | None
    line: int

    @property
    def op(self) -> Any:
        """Return the op of the kernel."""
        return None if self.code is None else op_at(self.code, self.line)


class _LateChecks(threading.local):
    pending: list[LateCheck] | None = None
    """The checks of the step running in this thread, set by its executor; None: each check is made at once."""
    copies: list[tuple[Tensor, Tensor]]
    """Tensors of a device that were read within the step, each with its copy on the host, which a fetch need not read again."""

    def __init__(self) -> None:
        self.copies = []


late_checks = _LateChecks()


def check_later(error: Callable[..., ExecutionError | None], *numbers: Tensor) -> None:
    """Raise the error for these numbers of a device when the step's results are read; at once where no executor runs it.

    Args:
        error: gives the error for the numbers; None if they are right.
        numbers: tensors of one whole number or truth value each.
    """
    pending = late_checks.pending
    if pending is None:
        problem = error(*[int(n.item()) for n in numbers])
        if problem is not None:
            raise problem
        return
    frame = currentframe()
    while frame is not None and frame.f_code.co_filename != STEP_FILE:
        frame = frame.f_back
    pending.append(LateCheck(numbers, error, *((None, 0) if frame is None else (frame.f_code, frame.f_lineno))))


def within(index: Tensor, size: int, error: Callable[[int, int], ExecutionError], low: int = 0) -> Tensor:
    """Return whole numbers on a device, limited to low..size-1, for kernels that would end all work there. If one is outside, `error` comes later.

    Args:
        error: gives the error for the least and the largest of the numbers.
    """
    if not index.numel():
        return index
    least, largest = index.aminmax()
    if size <= low:
        raise error(int(least), int(largest))

    def outside(least: int, largest: int) -> ExecutionError | None:
        return None if low <= least and largest < size else error(least, largest)

    check_later(outside, least, largest)
    return index.clamp(low, size - 1)


def classes_within(index: Tensor, classes: int, ignored: int) -> Tensor:
    """Return class numbers on a device, limited to 0..classes-1 but for the ignored one. The error for others comes later."""
    if not index.numel():
        return index
    allowed = torch.where(index == ignored, index, index.clamp(0, classes - 1))

    def outside(differ: int, low: int, high: int) -> ExecutionError | None:
        return no_class(classes, low, high) if differ else None

    check_later(outside, (allowed != index).any(), *index.aminmax())
    return allowed


def no_class(classes: int, low: float, high: float) -> ExecutionError:
    """Return the error for class numbers of which one is outside of 0..classes-1."""
    return ExecutionError.must("a class number", f"in [0, {classes})", f"{low} to {high}")


def limited(index: Tensor, size: int, low: int = 0) -> Tensor:
    """Return whole numbers on a device limited to low..size-1, where another kernel checks them; those of the processor as they are."""
    return index if index.is_cpu or size <= low else index.clamp(low, size - 1)


def numbers_of(checks: Sequence[LateCheck]) -> Tensor:
    """Return all numbers of checks, on their device: int64 ``[n]``."""
    return torch.stack([n.reshape(()).to(torch.int64) for check in checks for n in check.numbers])


def with_numbers(checks: Sequence[LateCheck], numbers: Tensor) -> list[LateCheck]:
    """Return checks of other numbers, as `numbers_of` gives them."""
    parts = iter(numbers.unbind())
    return [check._replace(numbers=tuple([next(parts) for _ in check.numbers])) for check in checks]


def first_failure(checks: Sequence[LateCheck], numbers: Sequence[int]) -> tuple[ExecutionError, Any] | None:
    """Return the error of the first check that fails for its part of the numbers, with its op."""
    begin = 0
    for check in checks:
        end = begin + len(check.numbers)
        error = check.error(*numbers[begin:end])
        if error is not None:
            return error, check.op
        begin = end
    return None
