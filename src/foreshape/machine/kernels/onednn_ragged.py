"""Kernels of ragged rows, of which there is another number in most calls.

They compute the rows in two parts: up to a multiple of `PART`, or of a 32nd of their number, and the rest. Few kernels do for all numbers of rows so: a
kernel takes longer to make than to run. A series has a few rows of zeros behind the others instead, where these take less than a second part.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size, reaches
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ShapeError
from foreshape.machine.kernels.onednn_chain import ChainLine, Series
from foreshape.machine.kernels.onednn_library import Library
from foreshape.machine.kernels.onednn_packed import PackedProduct
from foreshape.machine.kernels.onednn_packed_bytes import ByteProduct
from foreshape.machine.kernels.onednn_steps import ChainKernel

PART = 32
FILLED = 512
"""With fewer rows, and more than `PART`, a series fills them up to a multiple of at most `MULTIPLE`."""
MULTIPLE = 16
LARGE = 1 << 20
"""The least bytes of weights whose reading takes the time of a single row: kernels besides series read faster."""


def first_of(count: int) -> int:
    """Return the rows of the first part; 0 for one part."""
    remainder = count % max(PART, (1 << count.bit_length()) >> 6)
    return count - remainder if remainder else 0


class RaggedProduct(PackedProduct):
    """A `PackedProduct` of rows in two parts."""

    def __call__(self, x: Tensor, other: Tensor | None = None) -> Tensor:
        """Return the result as `PackedProduct` does."""
        count = len(x) if x.dim() == 2 else 0
        first = first_of(count)
        if not first:
            return super().__call__(x, other)
        if other is not None and (other.dim() != 2 or len(other) != count):
            raise ShapeError.must("what is added", f"{[count, self._shape[1]]}, as the result is", f"{list(other.shape)}")
        y: Tensor = torch.empty((count, self._shape[1]), dtype=torch.float32, device="cpu")
        for rows in (slice(first), slice(first, None)):
            part, added, place = x[rows].contiguous(), None if other is None else other[rows], y[rows]
            result = self.kernel_of(part, added)(part, added, place)
            if result is not place:
                place.copy_(result)
        return y

    add = __call__


class RaggedSeries(Series):
    """A `Series` of rows in two parts: each of its steps computes every row by itself."""

    def __init__(self, library: Library, steps: Sequence[ChainKernel], count: int, in_half: bool = False) -> None:
        super().__init__(library, steps, count, in_half)
        fp32 = [s.stage for s in steps if isinstance(s.stage, PackedProduct) and not isinstance(s.stage, ByteProduct)]
        self._is_large = sum(stage.nbytes for stage in fp32) > LARGE

    def __call__(self, *given: Tensor) -> Any:
        count = len(given[0])
        if any(len(x) != count for x in given):
            raise ShapeError.must("operands", f"of {count} rows, as the first is", ", ".join(str(list(x.shape)) for x in given))
        if count == 1 and self._is_large:
            return self.otherwise(given)
        first = first_of(count)
        if not first:
            return super().__call__(*given)
        if count < FILLED:
            return self._filled(given, count)
        parts = [[x[rows].contiguous() for x in given] for rows in (slice(first), slice(first, None))]
        lines = [line for part in parts if isinstance(line := self.line_of(part), ChainLine)]
        if len(lines) < len(parts):
            return self.otherwise(given)
        out: list[Tensor] = [torch.empty((count, dims[1]), dtype=torch.float32, device="cpu") for dims, _ in lines[0].outs]
        for line, part, rows in zip(lines, parts, (slice(first), slice(first, None)), strict=True):
            line(part, into=[y[rows] for y in out])
        return out[0] if len(out) == 1 else out

    def _filled(self, given: Sequence[Tensor], count: int) -> Any:
        lacking = lacking_of(count)
        if not lacking:
            return super().__call__(*given)
        padded = [with_zeros(x, lacking) for x in given]
        line = self.line_of(padded)
        if not isinstance(line, ChainLine):
            return self.otherwise(given)
        results = line(padded)
        return results[:count].clone() if isinstance(results, Tensor) else [y[:count].clone() for y in results]


def lacking_of(count: int) -> int:
    """Return the rows of zeros behind so many rows, fewer than `FILLED`."""
    return 0 if count <= PART else -count % (MULTIPLE if count > FILLED // 2 else MULTIPLE // 2)


def with_zeros(rows: Tensor, count: int) -> Tensor:
    """Return rows with so many more of zeros behind them."""
    return torch.cat([rows, rows.new_zeros(count, rows.shape[1])]) if count else rows


def filling_bytes(rows: Size, copied: Size, inner: Size) -> Size:
    """Return the workspace for rows behind the others.

    Args:
        rows: the number of rows.
        copied: the bytes of a row of all operands and results.
        inner: the bytes of a row of all values in between.
    """
    return (reaches(rows, PART + 1) - reaches(rows, FILLED)) * ((rows + MULTIPLE) * copied + MULTIPLE * inner)
