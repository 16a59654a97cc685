"""A small step over the values of one scope: its instructions with their addresses, run by one call."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from foreshape.compiler.lowering.small_steps import SmallStep
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.machine.kernels.instructions import WIDTH, blas, compiled


def as_function(step: SmallStep, values: Sequence[Any], otherwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return a step as a function from its inputs to its results, as `otherwise` is.

    Args:
        values: the tensors of the step's persistables.
        otherwise: the same by other kernels: for inputs with gaps, and where a check refuses.
    """
    parameters: list[Tensor] = [values[index] for index in step.persistables]
    if any(not t.is_contiguous() or not t.is_cpu for t in parameters):
        return otherwise
    run, feeds, results, nbytes = compiled(), step.feeds, step.results, step.nbytes
    table, numbers, count = np.array(step.table, np.int64), np.array(step.numbers, np.float64), len(step.table) // WIDTH
    rows, factors, fixed = table.ctypes.data, numbers.ctypes.data, [blas(), *(t.data_ptr() for t in parameters)]
    memories = ctypes.c_int64 * (2 + len(parameters) + len(feeds) + len(results))
    empty, fp32, uint8 = torch.empty, torch.float32, torch.uint8

    def call(*tensors: Tensor) -> Any:
        inputs = [tensors[index] for index in feeds]
        for x in inputs:
            if not x.is_contiguous():
                return otherwise(*tensors)
        piece = empty(nbytes, dtype=uint8)
        out = [empty(dims, dtype=fp32) for dims in results]
        if run(memories(fixed[0], piece.data_ptr(), *fixed[1:], *[x.data_ptr() for x in inputs], *[y.data_ptr() for y in out]), rows, factors, count):
            del piece, out
            return otherwise(*tensors)
        return out

    setattr(call, "of", (parameters, table, numbers))  # noqa: B010 (the memory must stay)
    return call
