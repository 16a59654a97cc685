"""Results whose copies from a device are on their way: it is waited for where one of them is read."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreshape.core.values.late_checks import LateCheck
from foreshape.errors import ExecutionError
from foreshape.runtime.engine.fetched import HostCopies, error_of


class LaterValue:
    """A result of ``Executor.run(..., later=True)``. NumPy and `float` read it, as `get` does."""

    __slots__ = ("_index", "_reading")

    def __init__(self, reading: Callable[[], list[Any]], index: int) -> None:
        self._reading, self._index = reading, index

    def get(self) -> Any:
        """Return the value as `Executor.run` gives it, once it is there.

        Raises:
            ExecutionError: this run met numbers out of range, or one before it without results. Each of the run's values raises it, each time.
        """
        return self._reading()[self._index]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Any:
        import numpy

        return numpy.array(self.get(), dtype=dtype, copy=copy)

    def __float__(self) -> float:
        return float(self.get())


def later_values(fetched: Sequence[Any], count: int, device: Any, checks: list[LateCheck], results: Callable[[Sequence[Any]], list[Any]]) -> list[LaterValue]:
    """Begin to copy fetched values to the host.

    Args:
        fetched: of the step; on the processor they are results already.
        count: the number of results.
        device: of the step; None for the processor.
        checks: of this run. Their numbers are copied with the values, and belong to them.
        results: from values of the host to the results.
    """
    copies = HostCopies()
    values = [copies.value(v) for v in fetched]
    numbers = copies.numbers(checks)
    copies.mark()
    read: list[list[Any] | ExecutionError] = []
    if device is None:
        read.append(results(values))

    def reading() -> list[Any]:
        if not read:
            copies.wait()
            read.append(error_of(checks, numbers) or results(values))
        if isinstance(read[0], ExecutionError):
            raise read[0].with_traceback(None)
        return read[0]

    return [LaterValue(reading, index) for index in range(count)]
