"""How many threads a step should have: as many as its work repays."""

from __future__ import annotations

import threading
from collections.abc import Mapping

from foreshape.dims import Size, product, substitute
from foreshape.errors import ShapeError
from foreshape.lowering.instruction import Instruction, Lowered
from foreshape.ops.torch_proxy import torch
from foreshape.program.work import multiplications

SMALL_STEP = 4_000_000
"""A step of fewer multiply-adds (and element operations) runs on one thread: to fork and join costs it more than it gains."""


class _Here(threading.local):
    asked = False


_here = _Here()
_lock = threading.Lock()
_fewer: list[int] = []
"""For each step that runs on fewer threads now, how many there are otherwise."""


def threads_here() -> int:
    """How many threads torch has for this thread's kernels.

    torch gives a thread that is new to it the number that was set last, which is too few if a small step runs elsewhere just then:
    the thread would be slow from then on, and round its sums otherwise.
    """
    if not _here.asked:
        with _lock:
            if torch.get_num_threads() and _fewer:
                torch.set_num_threads(_fewer[-1])
        _here.asked = True
    return torch.get_num_threads()


def on_fewer(threads: int, of: int) -> None:
    """Run what follows in this thread on ``threads`` threads, until `back_on`."""
    with _lock:
        _fewer.append(of)
        torch.set_num_threads(threads)


def back_on(threads: int) -> None:
    """End what `on_fewer` began."""
    with _lock:
        torch.set_num_threads(threads)
        _fewer.remove(threads)


def threads_for(ops: Lowered, values: Mapping[str, int], most: int) -> int:
    """1 for a small step, otherwise ``most``."""
    if most == 1:
        return 1
    total = 0
    for i in ops.instructions:
        total += work_of(i, values)
        if total >= SMALL_STEP:
            return most
    return 1


def work_of(i: Instruction, values: Mapping[str, int]) -> int:
    """The multiply-adds of one instruction, or the elements that it writes where it multiplies nothing; by estimate."""
    found = multiplications(i.op)
    if found is not None:
        return _number(found, values)
    return sum(_number(product(v.spec.known_dims), values) for n in i.op.output_names() if (v := i.op.block.find(n)) is not None and v.spec.dims is not None)


def _number(size: Size, values: Mapping[str, int]) -> int:
    try:
        out = substitute(size, values)
    except ShapeError:  # an estimate that has no such size
        return SMALL_STEP
    return out if isinstance(out, int) else SMALL_STEP
