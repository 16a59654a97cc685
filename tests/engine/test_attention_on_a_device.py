"""Dense attention on a pretended device: values and gradients are the processor's, by one kernel each way where it takes the operands."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from support.pretended_device import pretended

import foreshape as fs
from foreshape import layer
from foreshape.transforms.passes import lower_precision

BATCH, HEADS = 2, 3
MASKS = ["none", "causal", "padding", "padding -inf", "a row hidden whole", "causal padding", "full", "far"]


def network(mask: str, time: int, keys: int, width: int, turned: bool, precision: str = "fp32") -> tuple[fs.Program, list[str], dict[str, Any]]:
    """Return a program with attention and its gradients, what to fetch, and a feed."""
    rng = np.random.default_rng(5)
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        q = layer.data("q", [BATCH, HEADS, time, width], stop_gradient=False)
        k = layer.data("k", [BATCH, HEADS, *((width, keys) if turned else (keys, width))], stop_gradient=False)
        v = layer.data("v", [BATCH, HEADS, keys, width], stop_gradient=False)
        feed = {x.name: rng.normal(size=x.shape).astype("float32") for x in (q, k, v)}
        scores = layer.scale(layer.matmul(q, k, transpose_y=not turned), width**-0.5)
        added: list[Any] = []
        if "causal" in mask:
            added.append(layer.triu(layer.fill_constant([time, keys], "fp32", -1e9), 1))
        if mask == "full":
            added.append(layer.data("mask", [BATCH, 1, time, keys]))
            feed["mask"] = np.where(rng.random((BATCH, 1, time, keys)) < 0.3, -1e4, 0).astype("float32")
        elif "causal" != mask != "none":
            added.append(layer.data("mask", [BATCH, 1, 1, keys]))
            hidden = -np.inf if "inf" in mask or "whole" in mask else -1e9
            feed["mask"] = np.where(np.arange(keys) >= np.array([keys - 3, keys])[:, None], hidden, 0.0).astype("float32")[:, None, None]
            if mask == "a row hidden whole":
                feed["mask"][0] = -np.inf
            if mask == "far":
                feed["mask"] -= 1e4
        if added:
            scores = scores + (added[0] if len(added) == 1 else added[1] + added[0])
        out = layer.matmul(layer.softmax(scores), v)
        loss = layer.reduce_sum(layer.tanh(out))
    main = lower_precision(main, precision)
    with fs.program_guard(main, fs.Program()):
        pairs = fs.append_backward(main.global_block.var(loss.name), ["q", "k", "v"])
    return main, [out.name, *(g.name for _, g in pairs)], feed


@pytest.mark.parametrize("mask", MASKS)
@pytest.mark.parametrize(("time", "keys", "width", "turned"), [(6, 6, 16, False), pytest.param(33, 33, 8, True, marks=pytest.mark.long), (9, 9, 6, False)])
def test_values_and_gradients_are_those_of_the_processor(mask: str, time: int, keys: int, width: int, turned: bool) -> None:
    main, fetches, feed = network(mask, time, keys, width, turned)
    expected = fs.Executor().run(main, feed, fetches, fs.Scope())
    with pretended() as device:
        executor = fs.Executor(device.name)
        seen = executor.run(main, feed, fetches, fs.Scope())
        device.reset()
        executor.run(main, feed, fetches, fs.Scope())
        by_kernel = width % 8 == 0
        assert device.launches_by_name["_efficient_attention_forward"] == device.launches_by_name["_efficient_attention_backward"] == by_kernel
        assert device.counts().syncs == 1, device.syncs_by_place
        counted = device.counts().peak
    for name, a, b in zip(fetches, seen, expected, strict=True):
        far = mask == "far"  # the processor adds a large number to the scores, which loses their last digits
        np.testing.assert_allclose(a, b, rtol=1e-4, atol=2e-3 if far else 2e-5, err_msg=name)
    assert fs.plan(main, fetches, device="cuda").peak() >= 0.9 * counted  # a block of 512 for each small tensor within a kernel is not in it


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
@pytest.mark.parametrize("mask", ["none", "causal", "causal padding"])
def test_products_of_16_bits_around_a_softmax_are_one_kernel_too(mask: str, precision: str) -> None:
    main, fetches, feed = network(mask, 8, 8, 16, False, precision)
    expected = fs.Executor().run(main, feed, fetches, fs.Scope())
    with pretended() as device:
        seen = fs.Executor(device.name).run(main, feed, fetches, fs.Scope())
        assert device.launches_by_name["_efficient_attention_forward"] == device.launches_by_name["_efficient_attention_backward"] == 1
        assert not device.launches_by_name["bmm"]
    for name, a, b in zip(fetches, seen, expected, strict=True):
        np.testing.assert_allclose(a, b, rtol=0.05, atol=0.05, err_msg=name)
