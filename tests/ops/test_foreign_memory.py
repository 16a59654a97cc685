"""No kernel reads or writes beside its operands, for any operands that its rule takes.

The calls of all samples, gradients' too, with each dim of each operand changed alone, each element type, and numbers that are infinite, very large
or none: what the rule takes is run with operands that end where memory does.
``PYTHONPATH=src:tests python tests/ops/test_foreign_memory.py [TYPE ...]`` also runs what the rules refuse, and says which kernels trust them.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import pytest
import torch
from support.guarded import run_where_memory_ends, survivors
from support.harness import answer, operators, with_kernels
from support.kernel_calls import Call, backward, forward
from support.open_dims import places, resized
from torch import Tensor

from foreshape.core.spec import Spec
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.language.operator.operator import Operator
from foreshape.language.operator.require import RuleError

CASES = list(with_kernels())
TYPES = (torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32)


def variants(call: Call) -> Iterator[tuple[str, Call]]:
    """The call, and the call with one dim, one element type or the numbers of one operand changed."""
    yield "as it is", call
    for (at, k, axis), size in places(call.specs).items():
        if isinstance(size, int):
            for to in dict.fromkeys((0, 1, size - 1, size + 1, 40 * size)):
                made = resized(call, {(at, k, axis): to}) if to >= 0 and to != size else None
                if made is not None:
                    yield f"{call.cls.schema.operands[at].name}[{k}] axis {axis} of {to}", made
    for at, operand in enumerate(call.cls.schema.operands):
        given, spec = call.arguments[at], call.specs[at]
        if isinstance(given, Tensor) and isinstance(spec, Spec) and not hasattr(given, "kept"):
            if given.is_floating_point():
                yield f"{operand.name} of no numbers", replace(call, arguments=put(call.arguments, at, no_numbers(given)))
            for of in TYPES:
                if of is not given.dtype and of.is_floating_point == given.dtype.is_floating_point:
                    described = Spec(spec.kind, dtype_of_torch(of), spec.dims, spec.lod)
                    yield f"{operand.name} of {of}", replace(call, arguments=put(call.arguments, at, given.to(of)), specs=tuple(put(call.specs, at, described)))


def no_numbers(like: Tensor) -> Tensor:
    """Every second number infinite, very large or none."""
    out = like.clone(memory_format=torch.contiguous_format)
    odd = out.view(-1)[1::2]
    odd.copy_(torch.tensor([torch.nan, torch.inf, -torch.inf, torch.finfo(like.dtype).max]).repeat(len(odd) // 4 + 1)[: len(odd)])
    return out


def put(values: Sequence[Any], at: int, value: Any) -> list[Any]:
    return [*values[:at], value, *values[at + 1 :]]


def is_taken(call: Call) -> bool:
    """Whether the rule takes these operands."""
    try:
        answer(call.operator, call.specs)
    except RuleError:
        return False
    return True


def jobs(cls: type[Operator], taken: bool) -> list[tuple[str, Callable[[], str]]]:
    """The calls of an operator's samples that its rule takes, or those that it refuses."""
    out: list[tuple[str, Callable[[], str]]] = []
    for name, of, sample in CASES:
        if of is not cls:
            continue
        call = forward(cls, sample)
        for one in (call, backward(call)):
            if one is not None:
                for title, variant in variants(one):
                    if is_taken(variant) is taken:
                        words = f"{one.cls.type} of {name}, {title}: {variant.operator} {variant.specs}"
                        out += [(words, partial(run_where_memory_ends, variant, front)) for front in (False, True)]
    return out


@pytest.mark.quick_cases("sequence_softmax")
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="pages without rights are asked of Linux")
@pytest.mark.parametrize("cls", [
    pytest.param(c, id=c.type, marks=() if c.type in ("momentum", "lookup_table_v2", "sequence_softmax") else pytest.mark.long)
    for c in operators()
])  # fmt: skip
def test_kernels_stay_within_operands_that_their_rules_take(cls: type[Operator]) -> None:
    torch.set_num_threads(1)
    made = jobs(cls, True)
    said = survivors([job for _, job in made])
    wrong = [f"{said}: {title}" for (title, _), said in zip(made, said, strict=True) if said.startswith(("died", "ended"))]
    assert not wrong, "\n".join(wrong[:20])


def report(types: Sequence[str]) -> None:
    """Say what comes of the operands that rules take, and which kernels die of those that they refuse."""
    torch.set_num_threads(1)
    for cls in operators():
        if types and cls.type not in types:
            continue
        for taken in (True, False):
            made = jobs(cls, taken)
            seen: set[tuple[str, str]] = set()
            for (title, _), said in zip(made, survivors([job for _, job in made]), strict=True):
                key = (title.partition(" ")[0], said[:60])
                if (said.startswith(("died", "ended")) or (taken and said.startswith("failed"))) and key not in seen:
                    seen.add(key)
                    print(f"{'TAKEN' if taken else 'refused'}: {said[:160]}: {title}", flush=True)


if __name__ == "__main__":
    report(sys.argv[1:])
