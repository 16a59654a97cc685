"""Kernels of oneDNN's own library on numbers of 8 bits: the rounding of values, and convolutions and products of bytes.

A value on a `Grid` lies as bytes in memory. A kernel that reads or writes bytes is told their steps; other kernels read and write fp32, and the bytes are
made of it (see `foreshape.machine.kernels.onednn_chain`).
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Protocol, runtime_checkable

from foreshape.core.values.torch_proxy import Tensor
from foreshape.machine.kernels.onednn_grids import ALIGNMENT, FoundGrid, Grid, Kept, step_place
from foreshape.machine.kernels.onednn_library import F32, RESULT, S32, SOURCE, STEP_OF, ZERO_OF, After, Handle, Library, Memory, Primitive, Unimplemented
from foreshape.machine.kernels.onednn_packed import DescribedPrimitive, described, order_of

Dims = Sequence[int]


Constants = dict[int, Handle]


def told(library: Library, name: int, grid: Grid | FoundGrid) -> tuple[dict[int, int], list[int], Constants]:
    """Return the attributes for an operand or a result on a grid, and their values: steps, zero points, and constants. A found grid has no constants."""
    if isinstance(grid, FoundGrid):
        return {name: 0}, [name], {}
    constants = {STEP_OF | name: library.number(grid.step)}
    if grid.zero:
        constants[ZERO_OF | name] = library.number(grid.zero)
    return {name: 0}, [name] if grid.zero else [], constants


def with_found_grid(library: Library, computation: DescribedPrimitive, name: int, count: int) -> DescribedPrimitive:
    """Return a computation reading the step and the zero point of an operand or a result behind its bytes, so many."""
    place, one = step_place(count), ((1,), (1,))
    orders = {STEP_OF | name: library.handle(Memory(*one)), ZERO_OF | name: library.handle(Memory(*one, S32))}
    begins = {**computation.begins, STEP_OF | name: place, ZERO_OF | name: place + ALIGNMENT}
    return computation._replace(names=(*computation.names, *orders), orders={**computation.orders, **orders}, begins=begins)


@runtime_checkable
class ByteStage(Protocol):
    """A stage of a series with kernels for bytes."""

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Kept], wanted: Grid | None) -> tuple[DescribedPrimitive, Kept]:
        """Return the computation for operands on these grids, and the grid of its result, None for fp32.

        Args:
            wanted: the grid of its result, if any.

        Raises:
            Unimplemented: it has no kernel for them.
        """
        ...


class Rounded:
    """fp32 numbers rounded to a grid, halves to even: a kernel, and a stage of a series."""

    __slots__ = ("_by", "_limits", "grid")

    def __init__(self, grid: Grid) -> None:
        import numpy

        self.grid = grid
        self._by = float(numpy.float32(1.0) / numpy.float32(grid.step))
        self._limits = grid.low - grid.zero, grid.high - grid.zero

    def __call__(self, x: Tensor) -> Tensor:
        # four passes over memory: torch's fake quantization takes numbers one by one, in four times as long
        return x.mul(self._by).round_().clamp_(*self._limits).mul_(self.grid.step)

    add = None

    def described(self, library: Library, dims: Sequence[Dims]) -> DescribedPrimitive:
        raise Unimplemented("numbers are rounded where they are made bytes")

    def in_bytes(self, library: Library, dims: Sequence[Dims], grids: Sequence[Kept], wanted: Grid | None) -> tuple[DescribedPrimitive, Kept]:
        return turned(library, dims[0], grids[0], self.grid), self.grid


def turned(library: Library, dims: Dims, before: Kept, after: Kept) -> DescribedPrimitive:
    """Return the description of numbers copied from one grid, bf16 or fp32, to another."""
    if isinstance(after, Grid) and not after.is_whole:
        raise Unimplemented(f"bytes from {after.low} to {after.high}")
    steps: dict[int, int] = {}
    zeros: list[int] = []
    constants: Constants = {}
    for name, grid in ((SOURCE, before), (RESULT, after)):
        if isinstance(grid, Grid | FoundGrid):
            axes, point, values = told(library, name, grid)
            steps, zeros, constants = {**steps, **axes}, [*zeros, *point], {**constants, **values}
    memories = [Memory(tuple(dims), order_of(dims), F32 if grid is None else grid.of) for grid in (before, after)]
    record = Primitive("reordered", (*memories, After(None, (), (*steps.items(),), zeros)))
    out = described(library, record, constants, dims, order_of(dims))
    found = [(name, grid) for name, grid in ((SOURCE, before), (RESULT, after)) if isinstance(grid, FoundGrid)]
    return with_found_grid(library, out, found[0][0], prod(dims)) if found else out
