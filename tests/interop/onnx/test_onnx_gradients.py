"""Gradients of ONNX's operators as imported, beside the slopes of their results, which are compared with ONNX's own elsewhere."""

import pytest
from support.onnx_cases import cases
from support.onnx_slopes import CLOSE, compare_slopes
from support.some import one_in

from foreshape.errors import ForeshapeError

CASES = cases()


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("name", one_in(20, sorted(CASES)))
def test_a_gradient_is_the_slope_of_the_results(name: str) -> None:
    try:
        found = compare_slopes(CASES[name])
    except ForeshapeError as error:
        if "has no gradient" in str(error):
            raise
        pytest.skip(f"refused: {error}"[:200])
    assert all(apart < CLOSE for apart in found.values()), found
