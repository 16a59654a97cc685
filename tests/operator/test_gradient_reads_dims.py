"""Operands said to be read for their dims alone: a gradient gives the same with none of their numbers."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from support.harness import of_each_operator, with_kernels
from support.kernel_calls import backward, forward, tensors_of, written
from torch import Tensor

from foreshape.language.operator.operator import Operator
from foreshape.language.operator.samples import Sample

DECLARED = [case for case in with_kernels() if case[1].gradient_reads_dims or case[1].gradient_reads_for]


def hollow(x: Tensor) -> Tensor:
    """One element of no meaning, broadcast."""
    worst = float("nan") if x.dtype.is_floating_point or x.dtype.is_complex else 1
    return torch.full((), worst, dtype=x.dtype).expand(x.shape)


@of_each_operator(DECLARED, quick=8)
def test_the_numbers_of_these_operands_do_not_matter(name: str, cls: type[Operator], sample: Sample) -> None:
    call = backward(forward(cls, sample))
    if call is None:
        return
    slots = {o.name for o in call.cls.schema.operands}
    reads_for = {slot: set(results) for slot, results in cls.gradient_reads_for.items()}
    assert slots.issuperset(cls.gradient_reads_dims) and slots.issuperset(reads_for)
    for slot in (*cls.gradient_reads_dims, *reads_for):
        left = tuple(r.name not in reads_for.get(slot, ()) and wanted for r, wanted in zip(call.cls.schema.results, call.requested, strict=True))
        if not any(left) or not tensors_of(call.operand(slot)):
            continue
        found = replace(call, requested=left)
        kept = [at for at, wanted in enumerate(left) if wanted]
        got, want = found.laid(hollow, slot).run(), found.run()
        assert written([got[at] for at in kept]) == written([want[at] for at in kept]), f"{name}: the numbers of {slot} are read"


def test_an_operand_whose_numbers_are_read_is_found() -> None:
    _, cls, sample = next(case for case in with_kernels() if case[1].type == "tanh")
    call = backward(forward(cls, sample))
    assert call is not None
    with pytest.raises(AssertionError):
        assert written(call.laid(hollow, "Out").run()) == written(call.run())
