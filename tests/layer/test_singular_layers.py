"""Layers where rows are of zeros, equal or hidden whole: finite numbers and gradients, fused and not, frozen and not."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels import flash

BATCH, TIME, WIDTH = 3, 5, 8
RNG = np.random.RandomState(0)
X = RNG.standard_normal((BATCH, TIME, WIDTH)).astype("float32")
SEEN = np.arange(TIME) < np.array([[TIME], [2], [0]])
"""``[batch, keys]``: of the last example nothing."""


class Attending:
    """Attention over a mask of one element type, and its gradients."""

    def __init__(self, mask: str, **options: Any) -> None:
        self.main, self.startup = fs.Program(), fs.Program()
        self.hidden = SEEN if mask == "bool" else np.where(SEEN, 0.0, -np.inf).astype("float32")[:, None, None]
        with fs.program_guard(self.main, self.startup):
            self.x = layer.data("x", ["batch", "time", WIDTH])
            self.x.stop_gradient = False
            self.m = layer.data("m", ["batch", "keys"] if mask == "bool" else ["batch", 1, 1, "keys"], "bool" if mask == "bool" else "fp32")
            self.out = layer.multi_head_attention(self.x, heads=2, mask=self.m, **options)
            loss = layer.reduce_sum(layer.square(self.out))
            self.fetch = [self.out, *(g for _, g in fs.append_backward(loss, parameters=[self.x, *self.main.parameters()]))]
        self.scope = fs.Scope()
        fs.Executor(seed=3).run(self.startup, scope=self.scope)

    def run(self, fused: bool = True) -> list[np.ndarray]:
        """The numbers. What is fetched besides, lets attention stay several calls."""
        between = [op.output("Out") for op in self.main.global_block.ops if op.type == "softmax"]
        found = fs.Executor(seed=3).run(self.main, {"x": X, "m": self.hidden}, [*self.fetch, *(between if not fused else [])], self.scope)
        return found[: len(self.fetch)]


@pytest.mark.quick_cases(one_in=2)
@pytest.mark.parametrize("options", [{}, {"causal": True}, {"dropout": 0.3}, {"causal": True, "dropout": 0.3}], ids=str)
def test_a_float_mask_that_hides_a_whole_row_is_as_a_bool_mask(options: dict[str, Any]) -> None:
    wanted = Attending("bool", **options)
    masked = Attending("float", **options)
    for fused in (True, False):
        for a, b in zip(wanted.run(), masked.run(fused), strict=True):
            assert np.isfinite(b).all()
            np.testing.assert_allclose(a, b, rtol=2e-4, atol=2e-5)


def test_such_a_mask_of_a_frozen_network(tmp_path: Any) -> None:
    masked = Attending("float", causal=True)
    fs.save_inference_model(tmp_path / "net", [masked.x, masked.m], [masked.out], fs.Executor(), masked.main, masked.scope)
    for frozen in (False, True):
        executor, scope = fs.Executor(frozen=frozen), fs.Scope()
        program, names, fetches = fs.load_inference_model(tmp_path / "net", executor, scope)
        found = executor.run(program, dict(zip(names, (X, masked.hidden), strict=True)), fetches, scope)[0]
        np.testing.assert_allclose(found, masked.run()[0], rtol=2e-4, atol=2e-5)


def test_masks_made_once_are_not_bounded_again() -> None:
    x = layer.data("x", ["batch", "time", WIDTH])
    made = layer.attention_mask(x, mask=layer.data("m", ["batch", "time"], "bool"), causal=True)
    for mask in (made, layer.create_parameter([1, 2, TIME, TIME], "fp32"), layer.data("seen", ["batch", "time"], "int64")):
        layer.multi_head_attention(x, heads=2, mask=mask)
    ops = fs.default_main_program().global_block.ops
    assert "clip" not in [op.type for op in ops]
    layer.multi_head_attention(x, heads=2, mask=layer.triu(layer.fill_constant([1, 1, TIME, TIME], "fp32", -np.inf), 1))
    assert [op.type for op in ops].count("clip") == 1


@pytest.mark.parametrize("keys", [1, 3, 5, 8, 15, 16, 20])
@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_a_query_without_numbers_is_not_taken_for_a_masked_one(keys: int, number: float) -> None:
    """torch's kernel for CPUs gives zeros where none of a few scores is a number, so that a NaN would go unseen."""
    q, k, v = (torch.from_numpy(RNG.standard_normal((1, 1, keys, 4)).astype("float32")) for _ in range(3))
    q[0, 0, 0, 0] = number
    out, _ = flash.forward(q, k, v, None, False, 0.5)
    wanted = torch.softmax(q @ k.mT * 0.5, -1) @ v
    np.testing.assert_allclose(out, wanted, rtol=1e-4, atol=1e-5)


ZEROS_AND_EQUAL = {"x": np.array([[0, 0, 0], [1, 2, 3], [1, 0, 2]], "float32"), "k": np.array([[0, 0, 0], [1, 2, 3], [0, 0, 0]], "float32")}


@pytest.mark.parametrize("name", ["info_nce", "cos_sim", "contrastive", "triplet"])
def test_rows_of_zeros_and_equal_rows(name: str) -> None:
    x, k = (layer.data(n, ["batch", 3]) for n in ZEROS_AND_EQUAL)
    x.stop_gradient = k.stop_gradient = False
    loss = {"info_nce": lambda: layer.info_nce_loss(x, k, symmetric=True), "cos_sim": lambda: layer.cos_sim(x, k),
            "contrastive": lambda: layer.contrastive_loss(x, k, layer.fill_like(layer.reduce_sum(x, 1, keepdim=True), 1.0)),
            "triplet": lambda: layer.triplet_margin_loss(x, k, layer.scale(k, 1.0, bias=1e-6), epsilon=1e-6)}[name]()  # fmt: skip
    gradients = fs.append_backward(layer.reduce_sum(loss), [x, k])
    values = fs.Executor().run(feed=ZEROS_AND_EQUAL, fetch=[loss, *(g for _, g in gradients)], scope=fs.Scope())
    assert all(np.isfinite(v).all() and np.abs(v).max() < 100 for v in values)
    if name in ("info_nce", "cos_sim"):  # no direction, no slope
        assert not values[1][0].any() and not values[2][0].any() and not values[2][2].any()
    if name == "info_nce":  # of a row of zeros all keys are alike
        np.testing.assert_allclose(values[0][0], np.log(3), rtol=1e-5)
