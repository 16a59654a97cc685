"""What an operator's class must declare, or be refused as it is defined."""

from __future__ import annotations

from typing import Any

import pytest

from foreshape.errors import SchemaError
from foreshape.operator.operator import Operator
from foreshape.ops import NOT_DIFFERENTIABLE, operand, result


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
