"""Kernel calls made of persistables when a step is bound: products, convolutions, normalizations, and series of them."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from foreshape.core.dims import Size
from foreshape.machine.kernels.call_record import CallRecord, StepName, X, Y, call, method, of_operands
from foreshape.machine.kernels.fused import Effects, FusedKernel, Order

CHANNELS_LAST: Order = (0, 2, 3, 1)
_ROWS = Effects(contiguous=(0,))


def linear(name: str, adds: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return a product of rows with a packed matrix, of this name, with its following functions; ``adds``: the second operand is added to its result."""
    kind, record = _product(name, adds)
    return FusedKernel(kind, record, effects=Effects(contiguous=(0, 1)) if adds else _ROWS, workspace=workspace, packed=name)


def dynamic(name: str, adds: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return a product of rows rounded in the run with a packed matrix of bytes; ``adds``: the second operand is added to its result."""
    kind, record = _product(name, adds)
    return FusedKernel(kind, record, effects=Effects(contiguous=(0, 1)) if adds else _ROWS, workspace=workspace, packed=name, alone=True)


def convolution(name: str, adds: bool, workspace: Callable[[], Size]) -> FusedKernel:
    """Return a convolution with packed filters; ``adds``: the second operand is added to its result."""
    order = {0: CHANNELS_LAST, 1: CHANNELS_LAST} if adds else {0: CHANNELS_LAST}
    effects = Effects(axis_order=order, result_order={0: CHANNELS_LAST})
    kind, record = _product(name, adds)
    return FusedKernel(kind, record, effects=effects, workspace=workspace, packed=name)


def _product(name: str, adds: bool) -> tuple[str, CallRecord]:
    """Return the kind and the record of a product."""
    return ("product add", method(StepName(name), "add", X, Y)) if adds else ("product ", call(StepName(name), X))


def normalization(name: str, workspace: Callable[[], Size]) -> FusedKernel:
    """Return a normalization of rows by packed scale and shift."""
    return FusedKernel("normalization ", call(StepName(name), X), effects=_ROWS, workspace=workspace, packed=name)


def rounding(name: str, workspace: Callable[[], Size], alone: bool = False) -> FusedKernel:
    """Return the rounding of numbers to a grid; ``alone``: it is no stage of a series."""
    return FusedKernel("rounding ", call(StepName(name), X), workspace=workspace, packed=name, alone=alone)


def series(name: str, operand_ranks: Sequence[int], result_ranks: Sequence[int], workspace: Callable[[], Size], with_offsets: bool = False) -> FusedKernel:
    """Return a series of kernels; operands and results of four dims are images with their channels innermost.

    ``with_offsets``: the offsets of its rows are the last operand.
    """
    effects = Effects(
        contiguous=tuple(index for index, rank in enumerate(operand_ranks) if rank != 4),
        axis_order={index: CHANNELS_LAST for index, rank in enumerate(operand_ranks) if rank == 4},
        result_order={index: CHANNELS_LAST for index, rank in enumerate(result_ranks) if rank == 4},
    )
    record = of_operands(StepName(name), len(operand_ranks) + with_offsets)
    return FusedKernel("product ", record, effects=effects, workspace=workspace, packed=name)
