"""The work of a step of a series: the primitives of oneDNN's own library for operands of some sizes, with values between kernels as fp32, bytes or bf16."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from math import prod
from typing import NamedTuple, Protocol, runtime_checkable

from foreshape.core.values.torch_proxy import Tensor
from foreshape.machine.kernels.onednn_bytes import ByteStage, Rounded, turned
from foreshape.machine.kernels.onednn_grids import HALF, Grid, Kept, aligned, bytes_of
from foreshape.machine.kernels.onednn_library import ADDED, BF16, F32, RESULT, SIZES, SOURCE, WEIGHTS, Library, Unimplemented
from foreshape.machine.kernels.onednn_packed import DescribedPrimitive, PackedWeight, described, order_of
from foreshape.machine.kernels.onednn_packed_bytes import ByteConvolution, ByteProduct
from foreshape.machine.kernels.onednn_stages import Normalized, Paired, Stage


class ChainKernel(NamedTuple):
    """One kernel of a series.

    Values have numbers: first the operands', then each step's result.

    Attributes:
        otherwise: the same by other kernels, for sizes unknown to oneDNN.
        sources: the numbers of its operands.
        slot: the part of the piece of memory for its result, free again after the last read. None for a result of the series.
        rounding: the grid of its result, if any.
    """

    stage: Stage
    otherwise: Callable[..., Tensor]
    sources: tuple[int, ...]
    slot: int | None
    rounding: Rounded | None = None

    def compute(self, *given: Tensor) -> Tensor:
        """Return its result by other kernels."""
        out = self.otherwise(*given)
        return out if self.rounding is None else self.rounding(out)


class PlannedStep(NamedTuple):
    """The primitives of a step, none where its result is its operand as it lies; the dims and the form of its result; the bytes between."""

    primitives: list[tuple[DescribedPrimitive, tuple[int, ...], int]]
    dims: tuple[int, ...]
    grid: Kept
    room: int = 0


@runtime_checkable
class StageOfSeveral(Protocol):
    """A stage of several kernels, of fp32 operands and with an fp32 result."""

    def planned(self, library: Library, dims: Sequence[tuple[int, ...]], sources: Sequence[int], number: int) -> PlannedStep:
        """Return the work for operands of these dims and numbers. Raises as `Stage.described`."""
        ...


@runtime_checkable
class StageInHalf(StageOfSeveral, Protocol):
    """A stage of several kernels, also of bf16 by the forms of its operands."""

    takes_half: bool

    def planned(
        self, library: Library, dims: Sequence[tuple[int, ...]], sources: Sequence[int], number: int, forms: Sequence[Kept] = (), leaves: bool = True
    ) -> PlannedStep: ...


def is_of_bytes(step: ChainKernel) -> bool:
    """Return True for a step on bytes: its series keeps its kernels."""
    several = isinstance(step.stage, StageOfSeveral) and not isinstance(step.stage, StageInHalf)
    return several or step.rounding is not None or isinstance(step.stage, Rounded | ByteConvolution | ByteProduct)


def planned(library: Library, step: ChainKernel, dims: Sequence[tuple[int, ...]], grids: Sequence[Kept], number: int, leaves: bool) -> PlannedStep:
    """Return the work of a step: by a kernel for bytes, or with its operands made fp32 before and its result made bytes behind.

    Args:
        number: of its result.
        leaves: its result leaves the series, as fp32.
    """
    stage, result_grid = step.stage, None if step.rounding is None else step.rounding.grid
    operand_dims, on = [dims[s] for s in step.sources], [grids[s] for s in step.sources]
    if isinstance(stage, StageOfSeveral) and not (isinstance(stage, PackedWeight) and (any(on) or result_grid is not None)):
        if any(form is not None for form in on):
            raise Unimplemented("its operands are bytes")
        plan = stage.planned(library, operand_dims, step.sources, number)
        return _left(library, plan, number) if leaves and plan.grid is not None else plan
    operands, primitives, room = list(step.sources), list[tuple[DescribedPrimitive, tuple[int, ...], int]](), 0
    computation: DescribedPrimitive | tuple[int, ...] | None = None
    grid: Kept = None
    read: Sequence[Kept] = on  # by the kernel; other bytes are made fp32 before
    if isinstance(stage, ByteStage) and (result_grid is not None or any(on) or isinstance(stage, Rounded)):
        centred = [None if isinstance(form, Grid) and form.zero else form for form in on]
        for read in (on, centred, [on[0], *[None] * len(on[1:])]):
            try:
                computation, grid = stage.in_bytes(library, operand_dims, read, result_grid)
                break
            except Unimplemented:
                if isinstance(stage, Rounded):
                    raise
    if computation is None:
        computation, read = stage.described(library, operand_dims), [None] * len(on)
        if not isinstance(computation, DescribedPrimitive):
            return PlannedStep([], computation, on[0])
    for index, form in enumerate(on):
        if form is not None and read[index] is None:
            primitives.append(_in_fp32(turned(library, operand_dims[index], form, None), operands[index], -1 - room))
            operands[index], room = -1 - room, room + aligned(4 * prod(operand_dims[index]))
    assert isinstance(computation, DescribedPrimitive)
    if computation.steps != order_of(computation.dims):
        raise Unimplemented("a kernel's result lies otherwise than the next one reads it")
    grid_operands = [operands[0]] * (len(computation.names) - len(operands))  # step and zero point lie behind the bytes
    primitives.append((computation, (*operands, *grid_operands), number))
    ends = [*([result_grid] if result_grid is not None and grid != result_grid else []), *([None] if leaves and (result_grid or grid) is not None else [])]
    for end in ends:
        described, read_numbers, _ = primitives[-1]
        primitives[-1] = (described, read_numbers, -1 - room)
        primitives.append((turned(library, computation.dims, grid, end), (-1 - room,), number))
        grid, room = end, room + aligned(4 * prod(computation.dims))
    return PlannedStep(primitives, computation.dims, grid, room)


def _left(library: Library, plan: PlannedStep, number: int) -> PlannedStep:
    """Return the work of a step with its result, bytes on a grid, made fp32 at last."""
    place = -1 - plan.room

    def moved(numbers: Sequence[int]) -> tuple[int, ...]:
        return tuple([place if n == number else n for n in numbers])

    primitives = [(described, moved(read), place if result == number else result) for described, read, result in plan.primitives]
    primitives.append(_in_fp32(turned(library, plan.dims, plan.grid, None), place, number))
    return PlannedStep(primitives, plan.dims, None, plan.room + aligned(bytes_of(prod(plan.dims), plan.grid)))


def _in_fp32(described: DescribedPrimitive, operand: int, result: int) -> tuple[DescribedPrimitive, tuple[int, ...], int]:
    return described, (operand,) * len(described.names), result


def planned_in_half(library: Library, step: ChainKernel, dims: Sequence[tuple[int, ...]], forms: Sequence[Kept], number: int, leaves: bool) -> PlannedStep:
    """Return the work of a step between values of bf16. Products and convolutions, and kernels behind them, read and write bf16, and sum in fp32.

    A softmax stays in fp32, and a kernel without one for bf16. Arguments as for `planned`.
    """
    stage, operand_dims, on = step.stage, [dims[s] for s in step.sources], [forms[s] for s in step.sources]
    if isinstance(stage, StageInHalf):
        return stage.planned(library, operand_dims, step.sources, number, on, leaves)
    if isinstance(stage, StageOfSeveral) or step.rounding is not None:
        raise Unimplemented("bytes beside bf16")
    whole: list[Kept] = [None] * len(on)
    read, end = whole, None
    if isinstance(stage, PackedWeight):
        read, end = [HALF, *on[1:]], None if leaves else HALF
    elif on[0] is HALF and not isinstance(stage, Normalized):
        read = [HALF, *on[1:]] if isinstance(stage, Paired) else [HALF] * len(on)
        end = None if leaves and isinstance(stage, Paired) else HALF
    computation = None
    if read is not whole:
        with suppress(Unimplemented):
            computation = _of_forms(library, stage, operand_dims, read, end)
    if computation is None:
        read, end, computation = whole, None, stage.described(library, operand_dims)
    if not isinstance(computation, DescribedPrimitive):
        return PlannedStep([], computation, on[0])
    operands, primitives, room = list(step.sources), list[tuple[DescribedPrimitive, tuple[int, ...], int]](), 0
    for index, (before, after) in enumerate(zip(on, read, strict=True)):
        if before is not after:
            primitives.append((turned(library, operand_dims[index], before, after), (operands[index],), -1 - room))
            operands[index], room = -1 - room, room + aligned(bytes_of(prod(operand_dims[index]), after))
    if computation.steps != order_of(computation.dims):
        raise Unimplemented("a kernel's result lies otherwise than the next one reads it")
    primitives.append((computation, tuple(operands), number))
    if leaves and end is not None:
        primitives[-1] = (computation, tuple(operands), -1 - room)
        primitives.append((turned(library, computation.dims, end, None), (-1 - room,), number))
        end, room = None, room + aligned(4 * prod(computation.dims))
    return PlannedStep(primitives, computation.dims, end, room)


def _of_forms(library: Library, stage: Stage, dims: Sequence[tuple[int, ...]], read: Sequence[Kept], end: Kept) -> DescribedPrimitive | tuple[int, ...]:
    """Return the computation of operands and a result in these forms."""
    elements = {RESULT: F32 if end is None else end.of}
    if isinstance(stage, PackedWeight):
        of_operands = dict(zip((SOURCE, ADDED), (F32 if form is None else form.of for form in read), strict=False))
        return stage.described(library, dims, {**of_operands, **elements, WEIGHTS: BF16})
    base = stage.described(library, dims)
    if not isinstance(base, DescribedPrimitive):
        return base
    elements |= dict(zip(base.names, (F32 if form is None else form.of for form in read), strict=True))
    first = read[0]
    part = None if base.part is None or first is None else (base.part[0] * SIZES[first.of] // 4, base.part[1] * SIZES[first.of] // 4)
    return described(library, base.record.of_elements(elements), base.constants, base.dims, base.steps, part)
