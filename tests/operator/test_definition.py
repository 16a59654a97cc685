"""What an operator's class must declare, or be refused as it is defined."""

from __future__ import annotations

from typing import Any

import pytest

import foreshape as fs
from foreshape import layer
from foreshape.errors import SchemaError
from foreshape.language.operator.operator import Operator
from foreshape.language.ops import NOT_DIFFERENTIABLE, gradient, operand, result
from foreshape.transforms.backward import append_backward


@pytest.mark.parametrize(
    ("results", "into", "says"),
    [
        ({"Out": "X"}, False, "its kernel must have the keyword-only parameter into"),
        ({"Out": None}, True, "no result says with may_share"),
        ({"Out": "X", "Other": "X"}, True, "seen Out and Other"),
    ],
)
def test_a_claim_and_the_kernel_that_makes_it_true_come_together(results: dict[str, str | None], into: bool, says: str) -> None:
    def kernel(self: Any, X: Any) -> Any:
        return X

    def kernel_into(self: Any, X: Any, *, into: Any = None) -> Any:
        return X

    declared: dict[str, Any] = {n: result(may_share=of) for n, of in results.items()}
    hooks = {"infer_shape": lambda self, X: X, "kernel": kernel_into if into else kernel, "gradient": NOT_DIFFERENTIABLE}
    with pytest.raises(SchemaError, match=says):
        type("Claiming", (Operator,), {"type": "claiming", "__doc__": "A claim.", "X": operand(), **declared, **hooks})


def test_a_gradient_op_may_have_other_names_for_what_it_takes() -> None:
    block = fs.default_main_program().global_block
    x, y, m = (layer.data(n, shape=dims) for n, dims in (("x", ["n", 3]), ("y", [3, 4]), ("m", ["n", 2, 3, 5])))
    x.stop_gradient = m.stop_gradient = False
    product = block.apply("einsum", {"Operands": [x, y]}, {"equation": "ij,jk->ik"})[0]
    masked = block.apply("fused_softmax_mask", {"X": m, "Mask": layer.data("mask", shape=["n", 1, 3, 5])})
    append_backward(layer.mean(product) + layer.mean(masked), [x, m])
    ops = {op.type: op for op in block.ops}
    assert set(ops["einsum_grad"].inputs) == {"x_shape", "InnerCache", "Out@GRAD"}
    assert ops["einsum_grad"].inputs["x_shape"] == ops["einsum"].outputs["XShape"]
    assert set(ops["fused_softmax_mask_grad"].inputs) == {"Softmax", "Out@GRAD"}
    assert ops["fused_softmax_mask_grad"].inputs["Softmax"] == (masked.name,)


def test_a_gradient_op_names_only_what_it_takes() -> None:
    hooks = {
        "infer_shape": lambda self, X: X,
        "kernel": lambda self, X: X,
        "backward": gradient("Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"}, called={"Out": "Softmax"})(lambda self, d: d),
    }
    with pytest.raises(SchemaError, match="its gradient does not take Out, which it calls Softmax"):
        type("Calling", (Operator,), {"type": "calling", "__doc__": "A call.", "X": operand(), "Out": result(), **hooks})
