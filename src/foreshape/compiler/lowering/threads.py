"""The number of threads that a step's work repays: all, or one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod

from foreshape.compiler.lowering.kernel_calls import KernelCall, Step
from foreshape.core.dims import Size, evaluate
from foreshape.errors import ShapeError
from foreshape.language.program.work import multiplications

SMALL_STEP = 4_000_000
"""A step of fewer multiply-adds (and element operations) runs on one thread: to fork and join costs it more than it gains."""


SMALL_KERNEL = 400_000
"""The least multiply-adds on average of the products of a frozen step, which is little else, for several threads."""
WEIGHT = 8
"""The multiply-adds that take as long as to read one element of a weight: for few rows of feeds a step is mostly this."""


def threads_for(ops: Step, values: Mapping[str, int], limit: int) -> int:
    """Return 1 for a small step, or one of small kernels, otherwise ``limit``. The weights of a frozen step count too: it may do little else than read them."""
    if limit == 1:
        return 1
    if ops.frozen:  # all products are asked before the first is counted
        multiplied = [multiplications(i.op) for i in ops.calls]
        enough = max(SMALL_STEP, SMALL_KERNEL * sum(m is not None for m in multiplied))
    else:
        multiplied, enough = None, SMALL_STEP
    total = 0
    for index, i in enumerate(ops.calls):
        if multiplied is None:
            total += work_of(i, values)
        else:
            total += _work(i, products := multiplied[index], values) + (0 if products is None else WEIGHT * _weights(i))
        if total >= enough:
            return limit
    return 1


def work_of_all(ops: Step, values: Mapping[str, int]) -> int:
    """Return the work of a whole step."""
    return sum(work_of(i, values) for i in ops.calls)


def work_of(i: KernelCall, values: Mapping[str, int]) -> int:
    """Return the multiply-adds of one instruction, or its written elements if it multiplies nothing; by estimate."""
    return _work(i, multiplications(i.op), values)


def _work(i: KernelCall, multiplied: Size | None, values: Mapping[str, int]) -> int:
    if multiplied is not None:
        return _number((multiplied,), values)
    return sum(_number(v.spec.dims, values) for n in i.op.output_names() if (v := i.op.block.find(n)) is not None and v.spec.dims is not None)


def _weights(i: KernelCall) -> int:
    """Return the elements of the weights that one instruction reads."""
    variables = [v for n in i.op.input_names() if (v := i.op.block.find(n)) is not None and v.persistable and v.spec.dims is not None]
    return sum(prod([d for d in v.spec.known_dims if isinstance(d, int)]) for v in variables)


def _number(factors: Sequence[Size], values: Mapping[str, int]) -> int:
    """Return the product of sizes; numbers are multiplied, since the product of sizes with symbols takes many times as long."""
    try:
        return prod([evaluate(f, values) for f in factors])
    except ShapeError:  # an estimate without such a size
        return SMALL_STEP
