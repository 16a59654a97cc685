"""Attention some of whose weights are dropped: one call each way, with the numbers that are drawn op by op, and only where nobody needs what is between."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from support.measured import allocator_events, most_and_last
from support.some import each_of_product

import foreshape as fs
from foreshape import layer
from foreshape.machine.kernels import dropped_attention, dropping

HEADS = 3
Net = Callable[[Any, Any, Any, Any], fs.Variable]


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed + sum(shape)).standard_normal(shape).astype("float32")


def usual(q: Any, k: Any, v: Any, mask: Any = None, drop: Callable[[fs.Variable], fs.Variable] | None = None) -> fs.Variable:
    scores = layer.matmul(layer.scale(q, 0.3), k, transpose_y=True)
    weights = layer.softmax(scores if mask is None else scores + mask)
    return layer.matmul(layer.dropout(weights, 0.4) if drop is None else drop(weights), v)


def turned(q: Any, k: Any, v: Any, mask: Any) -> Any:
    scores = layer.scale(layer.matmul(q, layer.transpose(k, [0, 1, 3, 2] if len(k.shape) == 4 else [0, 2, 1])), 0.3)
    return layer.matmul(layer.dropout(layer.softmax(scores if mask is None else scores + mask), 0.4), v)


def with_seed(q: Any, k: Any, v: Any, mask: Any) -> Any:
    return usual(q, k, v, mask, lambda w: layer.dropout(w, 0.4, seed=5))


def later_hidden(q: Any, k: Any, v: Any, mask: Any) -> Any:
    hidden = layer.triu(layer.fill_constant([1, 1, 7, 5], "fp32", -1e9), 1)
    return usual(q, k, v, hidden if mask is None else mask + hidden)


def drawn_before_and_after(q: Any, k: Any, v: Any, mask: Any) -> Any:
    """Others draw between what is dropped and what is mixed."""
    scores = layer.matmul(layer.dropout(q, 0.2), k, transpose_y=True)
    weights = layer.dropout(layer.softmax(scores), 0.4)
    return layer.dropout(layer.matmul(weights, layer.dropout(v, 0.2)), 0.2)


def compared(net: Net, feed: dict[str, Any], train: bool = True, more: Callable[[], list[Any]] | None = None) -> tuple[str, list[Any]]:
    """The source of the step, which gives the same as op by op with the same seed, twice in a row."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        inputs = [layer.data(n, ["batch", *feed[n].shape[1:]], stop_gradient=False) for n in "qkv"]
        mask = layer.data("mask", ["batch" if feed["mask"].shape[0] > 1 else 1, *feed["mask"].shape[1:]]) if "mask" in feed else None
        out = net(inputs[0], inputs[1], inputs[2], mask)
        fetch: list[Any] = [out]
        if train:
            feed = {**feed, "weight": numbers(*feed["q"].shape[:-1], feed["v"].shape[-1], seed=9)}
            fetch += [g for _, g in fs.append_backward(out, inputs, loss_gradient=layer.data("weight", list(out.shape)))]
        fetch += more() if more else []
    fused, plain = fs.Executor(seed=3), fs.Executor(seed=3, check=True)
    found: list[Any] = []
    for _ in range(2):
        found = fused.run(main, feed, fetch, fs.Scope())
        for a, b in zip(found, plain.run(main, feed, fetch, fs.Scope()), strict=True):
            np.testing.assert_allclose(a, b, rtol=2e-5, atol=2e-5)
    return fused.step(main, fetch).emitted.source, found


def calls(source: str) -> tuple[int, int]:
    return source.count("= attention"), source.count("= gradient")


def heads(t: int = 7, s: int = 5, d: int = 8, batch: int = 2) -> dict[str, Any]:
    return {"q": numbers(batch, HEADS, t, d), "k": numbers(batch, HEADS, s, d, seed=1), "v": numbers(batch, HEADS, s, d, seed=2)}


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize(
    ("net", "mask"),
    each_of_product(3, (usual, turned, with_seed, later_hidden, drawn_before_and_after), (None, (2, 1, 1, 5), (1, 1, 7, 5), (2, HEADS, 7, 5))),
)
def test_the_same_numbers_are_dropped(net: Net, mask: tuple[int, ...] | None) -> None:
    feed = heads() | ({} if mask is None else {"mask": numbers(*mask)})
    source, found = compared(net, feed)
    assert calls(source) == (1, 1) and "softmax" not in source and not np.isnan(found[1]).any()
    assert calls(compared(net, feed, train=False)[0]) == (1, 0)


@pytest.mark.parametrize("piece", [1, 40, 80, 300, 1 << 19])
def test_pieces_make_no_difference(piece: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dropped_attention, "PIECE", piece)
    assert calls(compared(usual, heads(batch=3) | {"mask": numbers(3, 1, 1, 5)})[0]) == (1, 1)


@pytest.mark.quick_cases("sizes0", "sizes3")
@pytest.mark.parametrize("sizes", [(1, 1, 1), (9, 1, 17), (33, 70, 3), (0, 5, 8)])
def test_sizes_and_no_heads(sizes: tuple[int, int, int]) -> None:
    feed = heads(*sizes)
    for given in (feed, {n: x[:, 0] for n, x in feed.items()}, {n: x[:0] for n, x in feed.items()}):
        assert calls(compared(usual, given)[0]) == (1, 1)
        assert calls(compared(turned, given)[0]) == (1, 1)


def test_what_is_kept_can_be_fetched() -> None:
    def mask_of() -> list[Any]:
        return [next(op for op in fs.default_main_program().global_block.ops if op.type == "dropout").outputs["Mask"][0]]

    assert calls(compared(usual, heads(), more=mask_of)[0]) == (1, 1)


def test_weights_that_others_read_are_made() -> None:
    weights: list[Any] = []

    def read_again(q: Any, k: Any, v: Any, mask: Any) -> Any:
        out = usual(q, k, v, mask, lambda w: weights.append(layer.dropout(w, 0.4)) or weights[-1])
        return out + layer.reduce_sum(weights[-1])

    assert calls(compared(read_again, heads())[0]) == (0, 0)


def test_what_is_kept_between_the_passes_is_a_byte_for_each_weight() -> None:
    time, batch = 96, 8
    feed = {n: numbers(batch, HEADS, time, 8, seed=at) for at, n in enumerate("qkv")}
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        inputs = [layer.data(n, ["batch", HEADS, time, 8], stop_gradient=False) for n in "qkv"]
        loss = layer.reduce_sum(layer.square(usual(inputs[0], inputs[1], inputs[2])))
        fetch = [loss.name, *(g.name for _, g in fs.append_backward(loss, inputs))]
    executor, plan = fs.Executor(seed=1, threads=1), fs.plan(main, fetch)
    planned = executor.step(main, fetch).plan.peak(batch=batch)
    weights = batch * HEADS * time * time
    executor.run(main, feed, fetch)
    most, _ = most_and_last(allocator_events(lambda: executor.run(main, feed, fetch))[0])
    assert most + sum(x.nbytes for x in feed.values()) <= planned
    assert plan.peak(batch=batch) > planned - 4 * weights


def test_what_is_kept_is_drawn_alike_in_pieces_of_any_size(monkeypatch: pytest.MonkeyPatch) -> None:
    def drawn(keep: float) -> Any:
        return dropping.draw_kept((7, 500), keep, "cpu", torch.Generator().manual_seed(3))

    whole = drawn(0.3)
    assert whole.dtype == torch.uint8 and abs(float(whole.float().mean()) - 0.3) < 0.04
    assert bool((drawn(1.0) == 1).all()) and bool((drawn(0.0) == 0).all()) and not torch.equal(whole, drawn(0.4))
    monkeypatch.setattr(dropping, "PIECE", 64)
    assert torch.equal(drawn(0.3), whole)
