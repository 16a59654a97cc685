"""fp32 numbers rounded by their range, found in the run, as bytes: a stage of a series, whose products read the bytes."""

from __future__ import annotations

from collections.abc import Sequence
from math import prod

from foreshape.core.values.torch_proxy import Tensor
from foreshape.machine.kernels.onednn_bytes import turned
from foreshape.machine.kernels.onednn_grids import ALIGNMENT, FOUND_GRID, aligned, step_place
from foreshape.machine.kernels.onednn_library import NOTHING_AFTER, OTHER, RESULT, S32, After, Function, Library, Memory, Unimplemented
from foreshape.machine.kernels.onednn_packed import DescribedPrimitive
from foreshape.machine.kernels.onednn_stages import FEW, computed, lying
from foreshape.machine.kernels.onednn_steps import PlannedStep
from foreshape.machine.kernels.rows_of_bytes import by_range

_LEAST = -3.4028234663852886e38
_ONE = Memory((1, 1), (1, 1))
_Work = tuple[DescribedPrimitive, tuple[int, ...], int]


class RangeRounded:
    """Numbers rounded to 256 levels from the least to the largest of them, 0 among them: a kernel, and a stage of a series.

    A number that is not finite makes the step NaN, so all results of products are NaN; so do finite ones whose sum is beyond fp32.
    """

    add = None

    def __call__(self, x: Tensor) -> Tensor:
        """Return the rounded numbers as fp32."""
        whole, step, zero = by_range(x)
        return whole.to(x.dtype).sub_(zero).mul_(step)

    def described(self, library: Library, dims: Sequence[Sequence[int]]) -> DescribedPrimitive:
        raise Unimplemented("it is several kernels")

    def planned(self, library: Library, dims: Sequence[tuple[int, ...]], sources: Sequence[int], number: int) -> PlannedStep:
        """Return the kernels for step and zero point, and the one making the bytes."""
        x, (source,) = dims[0], sources
        count = prod(x)
        high, low, faults, point, partial = (-1 - ALIGNMENT * index for index in range(5))
        step, zero = step_place(count), step_place(count) + ALIGNMENT
        work: list[_Work] = []
        for kind, result, function in (("max", high, ("relu", 0.0, 0.0)), ("min", low, ("hardtanh", _LEAST, 0.0)), ("sum", faults, ("linear", 0.0, 0.0))):
            work += _reduced(library, x, kind, source, result, function, partial)
        share = After(_ONE, [("linear", 1.0 / 255.0, 0.0)])  # with NaN where a number is not finite
        work.append((_alone(library, "binary", "subtract", _ONE, _ONE, _ONE, after=share)._replace(begins={RESULT: step}), (high, low, faults), number))
        negative = After(None, [("linear", -1.0, 0.0)])
        work.append((_alone(library, "binary", "divide", _ONE, _ONE, _ONE, after=negative)._replace(begins={OTHER: step}), (low, number), point))
        work.append((_alone(library, "reordered", _ONE, _ONE._replace(element=S32))._replace(begins={RESULT: zero}), (point,), number))
        work.append((turned(library, x, None, FOUND_GRID), (source, number, number), number))
        return PlannedStep(work, x, FOUND_GRID, 4 * ALIGNMENT + aligned(4 * prod(x[:-1])))


def _alone(library: Library, kind: str, *arguments: object, after: After = NOTHING_AFTER) -> DescribedPrimitive:
    return computed(library, (1, 1), kind, *arguments, after=after)


def _reduced(library: Library, dims: Sequence[int], kind: str, source: int, result: int, function: Function, partial: int) -> list[_Work]:
    """Return the kernels of an extreme or a sum of all numbers with a function of it; of many numbers, by rows first, for several threads."""
    count, rows = prod(dims), prod(dims[:-1])
    after = After(None, [function])
    if count < FEW or rows == 1:
        return [(computed(library, (1, 1), "reduced", kind, lying((1, count)), _ONE, after=after, read=(1, count)), (source,), result)]
    by_row = computed(library, (rows, 1), "reduced", kind, lying((rows, dims[-1])), lying((rows, 1)), read=dims)
    return [(by_row, (source,), partial), (_alone(library, "reduced", kind, lying((1, rows)), _ONE, after=after), (partial,), result)]
