"""Every plain configuration of a convolution in training: described, planned, run fused, op by op and within a limit."""

from __future__ import annotations

from itertools import product
from typing import Any

import numpy as np
import pytest

import foreshape as fs
from foreshape import layer
from foreshape.language.program import Program
from foreshape.runtime.engine import Executor, Scope
from foreshape.transforms.backward import append_backward

CONFIGURATIONS = list(product(("conv2d", "conv2d_transpose"), ("float32", "float64"), (1, 3, 5), (0, 1), (1, 2), (1, 2, 4), ("open", "batch", "fixed")))
"""Operator, element type, kernel, padding, stride, groups, and which sizes of the images are open."""


EVERY = 11
"""In each run of the suite one configuration in so many is tried."""


@pytest.mark.quick_cases(one_in=4, turn=3)
@pytest.mark.parametrize("configuration", [
    pytest.param(c, id="-".join(map(str, c)), marks=pytest.mark.long if at % EVERY else ()) for at, c in enumerate(CONFIGURATIONS)
])  # fmt: skip
def test_it_is_described_planned_and_run(configuration: tuple[Any, ...]) -> None:
    type, of, kernel, padding, stride, groups, sizes = configuration
    image = [2, 4, 9, 8]
    shape: list[Any] = {"open": ["batch", 4, "height", "width"], "batch": ["batch", 4, 9, 8], "fixed": image}[sizes]
    program = Program()
    with fs.program_guard(program):
        x = layer.data("x", shape=shape, dtype=of)
        w = layer.data("w", shape=[4, 8 // groups if type == "conv2d_transpose" else 4 // groups, kernel, kernel], dtype=of)
        x.stop_gradient = w.stop_gradient = False
        attributes = {"strides": [stride] * 2, "paddings": [padding] * 2, "groups": groups}
        out = program.global_block.apply(type, {"Input": x, "Filter": w}, attributes)
        loss = layer.reduce_sum(layer.multiply(out, out))
        gradients = [g for _, g in append_backward(loss, [x, w])]
    plan = fs.plan(program, [loss, *gradients])
    assert not plan.unknown()
    given = {n: {"batch": 2, "height": 9, "width": 8}[n] for n in plan.symbols}
    assert plan.peak(**given) >= np.zeros(image, of).nbytes
    rng = np.random.default_rng(3)
    feed = {"x": rng.standard_normal(image).astype(of), "w": rng.standard_normal([int(d) for d in w.dims]).astype(of)}
    runs = [Executor(check=check, memory_limit="1 GiB").run(program, feed, [loss, *gradients], Scope()) for check in (False, "fused", True)]
    for other in runs[1:]:
        for a, b in zip(runs[0], other, strict=True):
            np.testing.assert_allclose(a, b, rtol=1e-3 if of == "float32" else 1e-9, atol=1e-3 if of == "float32" else 1e-9)
    x_t, w_t = (_torch(feed[n]) for n in ("x", "w"))
    import torch

    convolve = torch.nn.functional.conv2d if type == "conv2d" else torch.nn.functional.conv_transpose2d
    want = convolve(x_t, w_t, None, stride, padding, groups=groups).square().sum()
    want.backward()
    for seen, wanted in zip(runs[0], (want, x_t.grad, w_t.grad), strict=True):
        near = 2e-3 if of == "float32" else 1e-8
        np.testing.assert_allclose(np.reshape(seen, -1), wanted.detach().numpy().reshape(-1), rtol=near, atol=near)


def _torch(array: Any) -> Any:
    import torch

    return torch.from_numpy(array).requires_grad_()
