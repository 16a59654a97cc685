"""Attention that hides later rows and padding: one kernel each way takes the row of the padding, and the whole mask is not made."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
import torch
from support.some import each_of_product

import foreshape as fs
from foreshape import layer
from foreshape.compiler.lowering.fusion import fuse
from foreshape.compiler.lowering.kernel_calls import OpCall
from foreshape.compiler.lowering.lower import lower
from foreshape.language.operator.computations import Sum

BATCH, HEADS, WIDTH = 3, 2, 8


def numbers(*shape: int, seed: int = 0) -> Any:
    return np.random.RandomState(seed + sum(shape)).standard_normal(shape).astype("float32")


def described(mask_dims: list[Any], far: float, row_first: bool, time: int, keys: int, wants: str = "qkv") -> tuple[fs.Program, list[Any]]:
    """The program with its gradients, and the mask that it describes at the end of what is fetched."""
    main = fs.Program()
    with fs.program_guard(main, fs.Program()):
        q, k, v = (layer.data(n, ["batch", HEADS, time if n == "q" else keys, WIDTH], stop_gradient=False) for n in "qkv")
        row, later = layer.data("mask", mask_dims), layer.triu(layer.fill_constant([1, 1, time, keys], "fp32", far), 1)
        mask = row + later if row_first else later + row
        out = layer.matmul(layer.softmax(layer.matmul(layer.scale(q, 0.3), k, transpose_y=True) + mask), v)
        given = layer.data("weight", list(out.shape))
        of = [x for x in (q, k, v) if x.name in wants]
        return main, [out, *(g for _, g in fs.append_backward(out, of, loss_gradient=given)), mask]


def feed_of(mask: Any, time: int, keys: int) -> dict[str, Any]:
    fed = {n: numbers(BATCH, HEADS, time if n == "q" else keys, WIDTH, seed=ord(n)) for n in "qkv"}
    return {**fed, "mask": mask, "weight": numbers(BATCH, HEADS, time, WIDTH, seed=9)}


def compared(main: fs.Program, fetch: list[Any], feed: dict[str, Any], within: float = 2e-5) -> tuple[str, list[Any]]:
    """The source of the fused step, which gives what the ops give one by one, and its arguments of the attention."""
    fused = fs.Executor(check="fused")
    found = fused.run(main, feed, fetch, fs.Scope())
    for a, b in zip(found, fs.Executor(check=True).run(main, feed, fetch, fs.Scope()), strict=True):
        np.testing.assert_allclose(a, b, rtol=within, atol=within)
    return fused.step(main, fetch).emitted.source, found


def sums_made(main: fs.Program, fetch: list[Any]) -> int:
    """How many sums a step makes in full."""
    made = fuse(lower(main.global_block, [v.name for v in fetch])).calls
    return sum(i.op.operator is not None and isinstance(i.op.operator.computes(), Sum) and isinstance(i, OpCall) for i in made)


def padding(keys: int, *lengths: int, low: float = -1e9, at_end: bool = True) -> Any:
    there = np.arange(keys) < np.array(lengths)[:, None]
    return np.where(there if at_end else there[:, ::-1], 0.0, low).astype("float32")[:, None, None]


@pytest.mark.quick_cases(one_in=3)
@pytest.mark.parametrize(
    ("kind", "sizes", "row_first"),
    each_of_product(3, ("end", "start", "all of one", "far less", "far more", "learned numbers"), ((7, 7), (9, 4), (4, 9), (130, 300)), (True, False)),
)
def test_padding_and_what_is_later_are_hidden_by_the_kernel(kind: str, sizes: tuple[int, int], row_first: bool) -> None:
    time, keys = sizes
    lengths = (keys, keys // 2, 1)
    mask = {
        "end": padding(keys, *lengths),
        "start": padding(keys, *lengths, at_end=False),
        "all of one": padding(keys, keys, 0, 2, at_end=False),
        "far less": padding(keys, keys, 0, 1, low=-3e38, at_end=False),
        "far more": -padding(keys, keys // 2, 0, 1, low=-1e30),
        "learned numbers": numbers(BATCH, 1, 1, keys),
    }[kind]
    main, fetch = described(["batch", 1, 1, keys], -1e9, row_first, time, keys)
    source, _ = compared(main, fetch[:-1], feed_of(mask, time, keys), 1e-4)
    assert source.count("= attention") == source.count("= gradient") == 1
    assert len(re.findall(r"= attention\d*\((.*?)\)", source)[0].split(",")) == 4 and sums_made(main, fetch[:-1]) == 0
    assert "triu" not in source


@pytest.mark.parametrize("dims", [(5,), (1, 5), (HEADS, 1, 5), (1, HEADS, 1, 5), (BATCH, HEADS, 1, 5), (1, 1, 1, 1)])
def test_rows_for_all_examples_or_heads(dims: tuple[int, ...]) -> None:
    mask = np.where(numbers(*dims) > 0.2, 0.0, -1e9).astype("float32")
    main, fetch = described(["batch" if n == BATCH else n for n in dims], -1e9, len(dims) == 4, 7, 5)
    compared(main, fetch[:-1], feed_of(mask, 7, 5))
    assert sums_made(main, fetch[:-1]) == 0


@pytest.mark.parametrize("far", [-1e9, -np.inf])
def test_where_nothing_at_all_can_be_seen_no_number_is_made(far: float) -> None:
    mask = padding(5, 5, 2, 0, low=-np.inf)
    mask[1, ..., 0] = -np.inf  # its first row sees what is later, where that is not infinitely far away
    main, fetch = described(["batch", 1, 1, 5], far, True, 7, 5)
    fed = feed_of(mask, 7, 5)
    found = fs.Executor().run(main, fed, fetch[:-1], fs.Scope())
    given: Any = {n: torch.from_numpy(x).double().requires_grad_(n in "qkv") for n, x in fed.items()}
    scores = 0.3 * given["q"] @ given["k"].mT + (given["mask"] + torch.full((7, 5), far).triu(1))
    out = scores.softmax(-1) @ given["v"]
    out.backward(given["weight"])
    for value, expected in zip(found, [out.detach(), *(given[n].grad for n in "qkv")], strict=True):
        np.testing.assert_allclose(value, expected, rtol=2e-5, atol=2e-5)
    assert np.isnan(found[0][2]).all() and np.isfinite(found[0][0]).all() and np.isnan(found[0][1, :, 0]).all() == (far == -np.inf)


def test_a_whole_mask_that_is_fetched_is_made_and_one_that_is_no_row_is_taken_as_it_is() -> None:
    main, fetch = described(["batch", 1, 1, 5], -1e9, True, 7, 5)
    compared(main, fetch, feed_of(padding(5, 5, 3, 1), 7, 5))
    assert sums_made(main, fetch) == 1
    main, fetch = described(["batch", 1, 7, 5], -1e9, True, 7, 5)
    compared(main, fetch[:-1], feed_of(numbers(BATCH, 1, 7, 5), 7, 5))
    assert sums_made(main, fetch[:-1]) == 1
    main, fetch = described(["batch", 1, 1, 5], -4.0, True, 7, 5)  # not far away
    compared(main, fetch[:-1], feed_of(padding(5, 5, 3, 1), 7, 5))
    assert sums_made(main, fetch[:-1]) == 1


def test_the_bytes_of_the_mask_are_not_those_of_all_pairs_of_rows() -> None:
    with fs.program_guard(main := fs.Program(), fs.Program()):
        x = layer.data("x", ["batch", "time", 16])
        mask = layer.attention_mask(x, mask=layer.data("is_word", ["batch", "time"], "bool"), causal=True)
        h = layer.multi_head_attention(layer.multi_head_attention(x, heads=2, mask=mask), heads=2, mask=mask)
        loss = layer.mean(layer.square(h))
        fs.append_backward(loss)
    plan = fs.plan(main, [loss])
    by_example = [plan.peak(batch=33, time=n) - plan.peak(batch=32, time=n) for n in (256, 512)]
    assert by_example[1] < 2.1 * by_example[0]
