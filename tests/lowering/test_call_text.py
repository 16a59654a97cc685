"""Records of calls, and the Python that they are written in."""

from __future__ import annotations

from typing import Any

import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.call_text import call_text, function_of, namer
from foreshape.compiler.lowering.kernel_calls import FusedCall, Value
from foreshape.machine.kernels.call_record import (
    BySize,
    NamedConstant,
    Negative,
    NumberedOperand,
    ObjectAttribute,
    StepName,
    Subscript,
    TupleRecord,
    Unless,
    X,
    Y,
    call,
    method,
    names_in,
    of_operands,
)
from foreshape.machine.kernels.fused import FusedKernel

ADD = NamedConstant("add", torch.add)


def text(record: Any) -> str:
    with fs.program_guard(program := fs.Program(), fs.Program()):
        layer.relu(layer.data("x", [3]))
    return call_text(FusedCall(program.global_block.ops[-1], [Value("x", 4), [Value("y", 5), None]], [], kernel=FusedKernel("", record)), namer({}, 7))


@pytest.mark.parametrize(
    ("record", "expected"),
    [
        (of_operands(ADD, 2), "add7(v4, [v5, None])"),
        (call(ADD, X, StepName("p1_t"), alpha=Negative(StepName("p2_number"))), "add7(v4, p1_t, alpha=-p2_number)"),
        (method(method(X, "flatten", 0, -2), "t"), "v4.flatten(0, -2).t()"),
        (Subscript(ObjectAttribute(X, "shape"), slice(1, None)), "v4.shape[1:]"),
        (Subscript(X, (slice(None), slice(2, 3))), "v4[:, 2:3]"),
        (call(ADD, TupleRecord((X,)), TupleRecord(()), [1, 2], "none", (), None), "add7((v4,), (), [1, 2], 'none', (), None)"),
        (BySize(call(ADD, X), Y, 9), "(add7(v4) if v4.numel() >= 9 else [v5, None])"),
        (Unless((call(ADD, X), call(ADD)), call(ADD, Y)), "add7(v4) and add7() or add7([v5, None])"),
    ],
)
def test_a_record_is_written_as_python(record: Any, expected: str) -> None:
    assert text(record) == expected


def test_a_record_is_a_function_of_its_operands() -> None:
    record = BySize(method(X, "neg"), call(ADD, X, NumberedOperand(1)), 3)
    run = function_of(FusedKernel("", record), 2)
    assert run(torch.ones(3), torch.ones(3)).tolist() == [-1.0] * 3
    assert run(torch.ones(2), torch.ones(2)).tolist() == [2.0] * 2


def test_the_names_of_a_record_are_whole_names() -> None:
    record = call(ADD, method(StepName("p11_t"), "add", X), alpha=StepName("p2_number"), beta=NamedConstant("p3_t", 1))
    assert [*names_in(record)] == ["p11_t", "p2_number"]
