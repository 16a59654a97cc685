"""A step that is run again and again is the one that the program is now."""

from __future__ import annotations

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.core.values.torch_proxy import torch
from foreshape.runtime.engine.prepared_run import repeated


def test_what_is_repeated_is_what_run_gives() -> None:
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", input_size=3)
        y = layer.scale(x, scale=2.0)
    executor, scope = fs.Executor(), fs.Scope()
    run = repeated(executor, program, [y.name], scope)
    for rows in (2, 5, 2):
        given = np.arange(3.0 * rows, dtype="f").reshape(rows, 3)
        np.testing.assert_array_equal(run({"x": given})[0], 2 * given)
    with pytest.raises(fs.FeedError, match="x"):
        run({"x": np.ones((2, 4), "f")})
    with torch.autocast("cpu", dtype=torch.bfloat16):  # a mode of torch's is kept out, as `run` does
        assert run({"x": given})[0].dtype == np.float32
    assert y.op is not None
    y.op.set_attribute("scale", 4.0)
    np.testing.assert_array_equal(run({"x": given})[0], 4 * given)
