"""Dense attention within a series: its masks, heads, parts of a joined product, long texts, and sizes without elements; as it is, frozen, and in bf16."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from support.frozen_nets import Net, images, kernels_of

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.kernel_calls import FusedCall
from foreshape.machine.kernels import onednn_attention
from foreshape.machine.kernels.attention import Attention
from foreshape.machine.kernels.onednn_library import library

__all__ = ["kernels_of"]  # by oneDNN's own library and by torch's kernels
HEADS, COLUMNS = 4, 8


def heads_of(x: Any) -> Any:
    return layer.transpose(layer.reshape(layer.fc(x, HEADS * COLUMNS, flatten_last=1), [0, 0, HEADS, COLUMNS]), [0, 2, 1, 3])


def encoder(mask: str) -> Any:
    def describe(x: Any) -> Any:
        q, k, v = heads_of(x), heads_of(x), heads_of(layer.relu(x) if mask == "another source" else x)
        scores = layer.scale(layer.matmul(q, k, transpose_y=True), COLUMNS**-0.5)
        if mask == "a row":
            scores = scores + layer.unsqueeze(layer.scale(layer.reduce_mean(x, [2]), 9.0), [1, 2])
        elif mask == "rows":
            scores = scores + layer.unsqueeze(layer.matmul(x, x, transpose_y=True), [1])
        mixed = layer.reshape(layer.transpose(layer.matmul(layer.softmax(scores), v), [0, 2, 1, 3]), [0, 0, HEADS * COLUMNS])
        return layer.fc(layer.layer_norm(layer.fc(mixed, 24, flatten_last=1), begin_norm_axis=2), 24, flatten_last=1)

    return describe


@pytest.mark.parametrize("mask", ["none", "a row", "rows", "another source"])
def test_it_is_a_part_of_the_series_around_it(mask: str, monkeypatch: pytest.MonkeyPatch) -> None:
    net = Net(encoder(mask), images(2, 6, 24), ["batch", "time", 24])
    executor = net.same()
    kinds = [i.kernel.kind for i in executor.step(net.main, net.fetch).emitted.lowered.calls if isinstance(i, FusedCall)]
    assert ("attention" in kinds) == (library() is None)
    for size in ((1, 1, 24), (3, 17, 24), (2, 0, 24), (0, 4, 24)):
        net.same(images(*size), executor)
    monkeypatch.setattr(onednn_attention, "MOST", 50)  # scores of a text of 6 words in two examples are more: torch's kernel makes them
    net.same(images(2, 6, 24, seed=3), fs.Executor(frozen=True))


@pytest.mark.parametrize("mask", ["none", "a row", "rows", "another source"])
def test_in_bf16_it_is_within_its_rounding(mask: str) -> None:
    if library() is None:
        pytest.skip("oneDNN's library is switched off")
    net = Net(encoder(mask), images(2, 16, 24), ["batch", "time", 24])
    (expected,) = net.run(fs.Executor())
    (seen,) = net.run(fs.Executor(frozen=True, precision="bf16"))
    assert 0 < np.abs(seen - expected).max() <= 0.03 * np.abs(expected).max()


def blanked(hides: Any) -> Any:
    """Describe attention as torch exports it: both operands are scaled, and weights that are NaN, of a row that sees no key, become 0."""

    def describe(x: Any) -> Any:
        q, k, v = (heads_of(x) for _ in range(3))
        q, k = layer.scale(q, COLUMNS**-0.25), layer.scale(layer.transpose(k, [0, 1, 3, 2]), COLUMNS**-0.25)
        hidden = layer.greater_than(layer.unsqueeze(layer.slice(x, [2], [0], [1]), [1]), layer.fill_constant([1], "float32", hides))
        mask = layer.where(layer.transpose(hidden, [0, 1, 3, 2]), float("-inf"), layer.fill_constant([1], "float32", 0.0))
        weights = layer.softmax(layer.matmul(q, k) + mask)
        weights = layer.where(layer.is_nan(weights), 0.0, weights)
        mixed = layer.reshape(layer.transpose(layer.matmul(weights, v), [0, 2, 1, 3]), [0, 0, HEADS * COLUMNS])
        return layer.fc(layer.layer_norm(layer.fc(mixed, 24, flatten_last=1), begin_norm_axis=2), 24, flatten_last=1)

    return describe


@pytest.mark.parametrize("pieces", [False, True])
def test_rows_that_see_no_key_are_zeros_where_the_network_says_so(pieces: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if pieces:
        monkeypatch.setattr(onednn_attention, "MOST", 1)
    x = images(3, 6, 24)
    x[1, :, 0] = 9.0  # all keys of a text are hidden
    net = Net(blanked(0.5), x, ["batch", "time", 24])
    executor = net.same()
    kinds = [i.kernel.kind for i in executor.step(net.main, net.fetch).emitted.lowered.calls if isinstance(i, FusedCall)]
    assert ("attention" in kinds) == (library() is None)
    assert np.isfinite(net.run(executor)[0]).all()
    for size in ((1, 1, 24), (2, 0, 24), (0, 4, 24)):
        net.same(images(*size), executor)
    x[0, 2, 5] = np.nan  # of a value: it reaches the rows that see it
    plain, seen = (net.run(e, x)[0] for e in (fs.Executor(check=False), fs.Executor(frozen=True, check=False)))
    np.testing.assert_array_equal(np.isnan(plain), np.isnan(seen))


def test_without_that_they_stay_nan() -> None:
    x = images(2, 6, 24)
    x[1, :, 0] = 9.0

    def describe(x: Any) -> Any:
        q, k, v = (heads_of(x) for _ in range(3))
        hidden = layer.greater_than(layer.unsqueeze(layer.slice(x, [2], [0], [1]), [1]), layer.fill_constant([1], "float32", 0.5))
        mask = layer.where(layer.transpose(hidden, [0, 1, 3, 2]), float("-inf"), layer.fill_constant([1], "float32", 0.0))
        weights = layer.softmax(layer.matmul(q, k, transpose_y=True) + mask)
        return layer.reshape(layer.transpose(layer.matmul(weights, v), [0, 2, 1, 3]), [0, 0, HEADS * COLUMNS])

    net = Net(describe, x, ["batch", "time", 24])
    for executor in (fs.Executor(check=False), fs.Executor(frozen=True, check=False)):
        seen = net.run(executor)[0]
        assert np.isnan(seen[1]).all() and np.isfinite(seen[0]).all()


@pytest.mark.parametrize("number", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize("keys", [4, 33, 520])
def test_weights_of_any_mask_are_zeros_where_they_are_no_numbers(keys: int, number: float) -> None:
    torch.manual_seed(0)
    q, k, v = (torch.randn(2, 3, n, 8) for n in (33, keys, keys))
    for place in (0, keys // 2, keys - 1):
        mask = torch.zeros(1, 1, 33, keys)
        mask[..., place] = number
        mask[:, :, 5] = -torch.inf
        weights = ((q @ k.mT) * 0.3 + mask).softmax(-1)
        out, _ = Attention(0.3, False, blanks=True).forward(q, k, v, mask)
        torch.testing.assert_close(out, torch.where(weights.isnan(), 0.0, weights) @ v, rtol=1e-4, atol=1e-4)
