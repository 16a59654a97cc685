"""What is added to a value of the scope goes to its place at once, and only where nobody else wants what was or what is."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.operator import NOT_DIFFERENTIABLE, Operator, computations, result, torch
from foreshape.transforms.passes.update_section import move_under

A, X = np.array([1.0, 2.0, 3.0], "float32"), np.array([10.0, 20.0, 30.0], "float32")


def stepped(add: Any, fused: bool) -> tuple[list[Any], list[Any], str]:
    """Two steps of a program that may update ``a``: what is fetched, what ``a`` is, and the code of the step."""
    main, startup, scope = fs.Program(), fs.Program(), fs.Scope()
    with fs.program_guard(main, startup):
        a = main.global_block.create_variable("a", fs.core.spec.tensor(fs.FP32, 3), persistable=True, stop_gradient=True)
        fetch = add(main.global_block, a, layer.data("x", shape=[3]))
    scope.set("a", A)
    scope.set("b", A)
    executor = fs.Executor(check=not fused)
    fetched = [np.array(v) for _ in range(2) for v in executor.run(main, {"x": X}, fetch, scope)]
    return fetched, [scope.get("a")], str(executor.step(main, fetch).emitted.source)


def add_to(block: Any, a: Any, x: Any) -> None:
    block.append_op("elementwise_add", {"X": a, "Y": x}, {"Out": a})


def alone(block: Any, a: Any, x: Any) -> list[Any]:
    add_to(block, a, x)
    return [x * 3.0]


def read_before(block: Any, a: Any, x: Any) -> list[Any]:
    before = a * 2.0
    add_to(block, a, x)
    return [before]


def read_after(block: Any, a: Any, x: Any) -> list[Any]:
    add_to(block, a, x)
    return [a * 2.0]


def read_on_both_sides(block: Any, a: Any, x: Any) -> list[Any]:
    before = a * 2.0
    add_to(block, a, x)
    return [before, a - 1.0]


def fetched(block: Any, a: Any, x: Any) -> list[Any]:
    add_to(block, a, x)
    return [a]


def of_another_shape(block: Any, a: Any, x: Any) -> list[Any]:
    add_to(block, a, layer.reduce_sum(x, keepdim=True))
    return [x * 3.0]


def filled(block: Any, a: Any, x: Any) -> list[Any]:
    before = a * 2.0
    block.append_op("fill_constant", {}, {"Out": a}, {"shape": [3], "dtype": fs.FP32.code, "value": 7.0})
    return [before]


def of_others(block: Any, a: Any, x: Any) -> list[Any]:
    block.append_op("elementwise_add", {"X": x, "Y": x}, {"Out": a})
    return [x * 3.0]


def second_operand(block: Any, a: Any, x: Any) -> list[Any]:
    block.append_op("elementwise_add", {"X": x, "Y": a}, {"Out": a})
    return [x * 3.0]


def in_a_branch(block: Any, a: Any, x: Any) -> list[Any]:
    condition = layer.reduce_sum(x) > 0.0
    before = len(block.ops)
    add_to(block, a, x)
    block.append_op("elementwise_mul", {"X": a, "Y": a}, {"Out": a})  # reads what was added, and a is something else after it
    move_under(block, block.ops[before:], condition)
    return [x * 3.0]


def in_a_branch_and_read_there(block: Any, a: Any, x: Any) -> list[Any]:
    """What is added stays, and something else reads it besides."""
    condition = layer.reduce_sum(x) > 0.0
    b = block.create_variable("b", fs.core.spec.tensor(fs.FP32, 3), persistable=True, stop_gradient=True)
    before = len(block.ops)
    add_to(block, a, x)
    block.append_op("elementwise_mul", {"X": a, "Y": a}, {"Out": b})
    move_under(block, block.ops[before:], condition)
    return [b]


class Numbers(Operator):
    """A constant of one's own, which is not one number."""

    type = "numbers_for_a_test"
    Out = result()
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self) -> Any:
        return fs.core.spec.tensor(fs.FP32, 3)

    def computes(self) -> computations.Constant:
        return computations.Constant()

    def kernel(self) -> Any:
        return torch.tensor([4.0, 5.0, 6.0])


def numbers(block: Any, a: Any, x: Any) -> list[Any]:
    before = a * 2.0
    block.append_op("numbers_for_a_test", {}, {"Out": a})
    return [before]


def filled_to_a_shape(block: Any, a: Any, x: Any) -> list[Any]:
    block.append_op("fill_constant", {"ShapeTensor": layer.shape(x)}, {"Out": a}, {"shape": [], "dtype": fs.FP32.code, "value": 7.0})
    return [x * 3.0]


EVERY = [alone, read_before, read_after, read_on_both_sides, fetched, of_another_shape, filled, of_others, second_operand, in_a_branch]
EVERY += [in_a_branch_and_read_there, numbers, filled_to_a_shape]


@pytest.mark.parametrize("add", EVERY, ids=lambda f: f.__name__)
def test_an_update_in_place_changes_no_number(add: Any) -> None:
    (values, held, code), (wanted, kept, _) = stepped(add, True), stepped(add, False)
    for seen, expected in zip([*values, *held], [*wanted, *kept], strict=True):
        np.testing.assert_array_equal(seen, expected)
    if add in (alone, read_before, filled):
        assert ".add_(" in code or ".fill_(" in code, code
    if add is of_another_shape:
        assert ".add_(" not in code, code
