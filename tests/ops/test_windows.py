"""Poolings and convolutions against loops that are written as PaddlePaddle's kernels are described."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.core.spec import FP32, tensor
from foreshape.language.infer.rules import answer
from foreshape.language.operator.registry import get
from foreshape.language.operator.require import RuleError
from foreshape.transforms.backward import append_backward


def run(type: str, attrs: dict[str, Any], *inputs: Any) -> tuple[Any, Any]:
    """What the rule and the kernel of an operator give; operands that are left out are absent."""
    cls = get(type)
    inputs += (None,) * (len(cls.schema.operands) - len(inputs))
    operator = cls.describe(attrs).operator
    assert operator is not None
    found = answer(operator, tuple(None if x is None else tensor(FP32, *x.shape) for x in inputs)).results[0]
    with torch.inference_mode():
        value = cls.kernel(operator, *(None if x is None else torch.from_numpy(x) for x in inputs))
    return found, value.numpy()


def pooled(x: np.ndarray, kind: str, k: list[int], s: list[int], pads: list[list[int]], ceil: bool, exclusive: bool) -> np.ndarray:
    """One window after the other, the first even beyond its padding; an empty one is 0 in a mean and the least number as a maximum."""
    out = [max(0, (n + sum(p) - w + (step - 1 if ceil else 0)) // step) + 1 for n, w, step, p in zip(x.shape[2:], k, s, pads, strict=True)]
    y = np.zeros((*x.shape[:2], *out), x.dtype)
    for i, j in np.ndindex(*out):
        starts = [i * s[0] - pads[0][0], j * s[1] - pads[1][0]]
        reach = [min(a + w, n + p[0]) for a, w, n, p in zip(starts, k, x.shape[2:], pads, strict=True)]
        whole = (reach[0] - starts[0]) * (reach[1] - starts[1])
        (a, b), (c, d) = ((max(f, 0), max(min(t, n), 0)) for f, t, n in zip(starts, reach, x.shape[2:], strict=True))
        part = x[:, :, a:b, c:d].reshape(*x.shape[:2], -1)
        if kind == "max":
            y[:, :, i, j] = part.max(-1) if part.size else np.finfo(x.dtype).min
        else:
            y[:, :, i, j] = part.sum(-1) / (part.shape[-1] if exclusive else whole) if part.size else 0
    return y


def test_pooling_agrees_with_loops_for_every_padding_and_rounding() -> None:
    rng = np.random.RandomState(1)
    compared = empty = reaching = 0
    for _ in range(400):
        sizes, k, s = (rng.randint(1, high, 2).tolist() for high in (9, 6, 5))
        pads = rng.randint(0, 4, (2, 2)).tolist()
        ceil, exclusive = bool(rng.randint(2)), bool(rng.randint(2))
        kind = ("max", "avg")[rng.randint(2)]
        if rng.randint(2):
            pads = [[p[0]] * 2 for p in pads]
        if not exclusive and any(p[1] > p[0] for p in pads):
            continue  # a window that ends behind the first padding has another divisor there: left as it is
        x = rng.standard_normal((2, 3, *sizes)).astype(np.float32)
        attrs = {"ksize": k, "strides": s, "paddings": [p for pad in pads for p in pad], "pooling_type": kind, "ceil_mode": ceil, "exclusive": exclusive}
        if any(n + sum(p) + (step - 1 if ceil else 0) + step - 1 < w for n, p, w, step in zip(sizes, pads, k, s, strict=True)):
            with pytest.raises(RuleError, match="must fit into the padded image"):
                run("pool2d", attrs, x)
            continue
        want = pooled(x, kind, k, s, pads, ceil, exclusive)
        spec, got = run("pool2d", attrs, x)
        assert spec.dims == want.shape == got.shape, attrs
        np.testing.assert_allclose(got, want, rtol=1e-5, atol=1e-6, err_msg=str((sizes, attrs)))
        compared += 1
        reaching += any(n + sum(p) < w for n, p, w in zip(sizes, pads, k, strict=True))
        empty += int(kind == "max" and bool((want == np.finfo(np.float32).min).any()))
    assert compared > 150 and empty > 3 and reaching > 10


def test_the_gradient_of_a_maximum_goes_to_the_first_of_equals() -> None:
    cls = get("pool2d_grad")
    for ceil, pads in ((False, [0, 0]), (True, [0, 0]), (False, [0, 1, 0, 1])):
        x = torch.from_numpy(np.random.RandomState(2).randint(0, 3, (2, 3, 6, 7)).astype(np.float32))
        attrs = {"ksize": [2, 3], "strides": [2, 2], "paddings": pads, "pooling_type": "max", "ceil_mode": ceil}
        operator = cls.describe(attrs).operator
        assert operator is not None
        _, y = run("pool2d", attrs, x.numpy())
        with torch.inference_mode():
            got = cls.kernel(operator, x, (), torch.from_numpy(y), torch.ones(y.shape)).numpy()
        want = np.zeros(x.shape, np.float32)
        for n, c, i, j in np.ndindex(*y.shape):
            window = x[n, c, 2 * i : 2 * i + 2, 2 * j : 2 * j + 3].numpy()
            a, b = np.unravel_index(window.argmax(), window.shape)
            want[n, c, 2 * i + a, 2 * j + b] += 1
        np.testing.assert_array_equal(got, want)


def test_a_transposed_convolution_is_the_adjoint_of_a_convolution() -> None:
    """<conv(x), y> == <x, conv_transpose(y)>, which fixes every element, also where the two ends are padded differently."""
    rng = np.random.RandomState(3)
    compared = 0
    for _ in range(60):
        k, s, sizes = rng.randint(1, 5, 2).tolist(), rng.randint(1, 4, 2).tolist(), rng.randint(3, 9, 2).tolist()
        pads = rng.randint(0, 3, 4).tolist()
        attrs: dict[str, Any] = {"strides": s, "paddings": pads}
        x = rng.standard_normal((2, 3, *sizes)).astype(np.float32)
        w = rng.standard_normal((4, 3, *k)).astype(np.float32)
        try:
            out: np.ndarray = run("conv2d", attrs, x, w)[1]
            y = rng.standard_normal(out.shape).astype(np.float32)
            back: np.ndarray = run("conv2d_transpose", attrs | {"output_size": sizes}, y, w, None)[1]
        except RuleError:
            continue
        if back.shape == x.shape:
            np.testing.assert_allclose((out * y).sum(dtype=np.float64), (x * back).sum(dtype=np.float64), rtol=1e-3, atol=1e-3)
            compared += 1
    assert compared > 20


def test_an_only_window_beyond_the_image_sees_zeros_frozen_and_trained(tmp_path: Path) -> None:
    """PaddlePaddle rounds the room of windows towards zero, so that one may reach beyond the image by less than its stride."""
    rng = np.random.RandomState(2)
    for window, stride, sizes in ((3, 2, (2, 7)), (5, 4, (2, 3)), (4, 4, (9, 1))):
        for form in ("convolution", "depthwise", "mean", "maximum"):
            with fs.program_guard(fs.Program(), fs.Program()):
                x = layer.data("x", ["batch", 4, "height", "width"], stop_gradient=False)
                if form in ("convolution", "depthwise"):
                    y = layer.conv2d(x, 4, window, stride=stride, groups=4 if form == "depthwise" else 1, bias=False)
                else:
                    y = layer.pool2d(x, window, "avg" if form == "mean" else "max", stride=stride)
                out = layer.relu(layer.conv2d(layer.relu(y), 3, 1))
                gradients = [g for _, g in append_backward(layer.mean(out), ["x"])]
                feed, executor, scope = rng.standard_normal((2, 4, *sizes)).astype("float32"), fs.Executor(seed=1), fs.Scope()
                executor.run(fs.default_startup_program(), scope=scope)
                plain, gradient = executor.run(fs.default_main_program(), feed, [out, *gradients], scope)
                behind = [(0, max(0, window - n)) for n in sizes]
                filled = np.pad(feed, [(0, 0), (0, 0), *behind])
                if form in ("convolution", "depthwise"):
                    whole, wide = executor.run(fs.default_main_program(), filled, [out, *gradients], scope)
                    np.testing.assert_allclose(plain, whole, atol=1e-6)
                    np.testing.assert_allclose(gradient, wide[:, :, : sizes[0], : sizes[1]], atol=1e-7)
                fs.save_inference_model(str(tmp_path / "model"), [x], [out], scope=scope)
                np.testing.assert_allclose(fs.Predictor(str(tmp_path / "model")).run(feed)[0], plain, atol=1e-5)
