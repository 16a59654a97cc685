"""The examples in the reference of the layers run, and their results have the shapes that stand behind them."""

from __future__ import annotations

import ast
import inspect

import pytest

import foreshape as fs
from foreshape import layer

MOST_USED = ("data", "fc", "embedding", "conv1d", "conv2d", "conv2d_transpose", "conv3d", "pool2d", "batch_norm", "layer_norm", "dropout", "gru",
             "softmax_with_cross_entropy")  # fmt: skip


@pytest.mark.parametrize("name", MOST_USED)
def test_the_examples_of_a_layer_run_and_give_the_shapes_that_they_say(name: str) -> None:
    lines = [line.strip().removeprefix(">>> ") for line in inspect.getdoc(getattr(layer, name)).splitlines() if line.strip().startswith(">>> ")]  # type: ignore[union-attr]
    assert any(f"layer.{name}(" in line for line in lines)
    with fs.program():
        names: dict[str, object] = {"layer": layer}
        for line in lines:
            code, _, shape = line.partition("  # ")
            if isinstance(ast.parse(code).body[0], ast.Assign):
                exec(code, names)
            else:
                assert str(eval(code, names).shape) == shape, line
