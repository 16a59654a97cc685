"""The largest batches and token budgets of a forecast, and the order of its figures."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from support.small_texts import Texts, batch, entropy
from torch import nn

import foreshape as fs

OPTIONS: dict[str, Any] = {"loss": entropy, "device": "A100-80GB", "advice": False}


@pytest.mark.parametrize("plan", [[(1, 300), (1, 299)], [(7, 512), (5, 700), (3, 1000)] * 3], ids=str)
def test_a_fitting_example_of_the_longest_length_is_a_token_budget(plan: list[tuple[int, int]]) -> None:
    longest = max(length for _, length in plan)
    alone = fs.forecast(Texts(words=4000), batch, lengths=[(1, longest)] * 3, **OPTIONS)
    forecast = fs.forecast(Texts(words=4000), batch, lengths=plan, limit=int(alone.reserved * 1.5), **OPTIONS)
    assert forecast.largest is not None and forecast.largest.tokens is not None
    assert forecast.largest.batch in (1, 2) and longest <= forecast.largest.tokens <= longest * forecast.largest.batch
    tight = fs.forecast(Texts(words=4000), batch, lengths=plan, limit=alone.reserved // 2, **OPTIONS)
    assert tight.largest is not None and tight.largest[:] == (0, longest, 0) and "padded tokens" not in str(tight)


def test_the_largest_batch_is_no_smaller_than_one_of_a_run_that_fits() -> None:
    plan = [(16, 200), (16, 512), (8, 1500), (32, 64)]
    free = fs.forecast(Texts(words=8000), batch, lengths=plan, **OPTIONS)
    verdicts = [fs.forecast(Texts(words=8000), batch, lengths=plan, limit=free.reserved * part // 32, **OPTIONS) for part in range(16, 36, 2)]
    assert {f.fits for f in verdicts} == {True, False}
    assert all(f.largest is not None and f.largest.batch >= 8 for f in verdicts if f.fits)


@pytest.mark.long
def test_a_token_budget_goes_through_in_other_orders() -> None:
    lengths = [48, 400, 60, 333, 390, 37, 400, 395] * 3
    largest = fs.forecast(Texts(words=4000), batch, lengths=[(8, n) for n in lengths], limit="96MiB", **OPTIONS).largest
    assert largest is not None and largest.tokens
    for seed in range(3):
        order = random.Random(seed).sample(lengths, len(lengths))
        assert fs.forecast(Texts(words=4000), batch, lengths=[(largest.tokens // n, n) for n in order], limit="96MiB", **OPTIONS).fits


@pytest.mark.parametrize("device", ["cpu", "A100-80GB"])
def test_batches_that_are_not_replayed_have_figures_in_order(device: str) -> None:
    forecast = fs.forecast(Texts, batch, lengths=[(8, 100)] * 3 + [(1, 5)] * 450, **{**OPTIONS, "device": device})
    assert len(forecast.steps) == 453 and all(0 < step.allocated <= step.reserved for step in forecast.steps)
    assert forecast.range[0] <= forecast.reserved <= forecast.range[1] and forecast.allocated <= forecast.reserved <= forecast.safe


def test_the_range_is_ordered_and_has_the_expected_bytes() -> None:
    """Greater workspaces can leave segments behind that later batches fit better."""

    class Images(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.second = nn.Conv2d(3, 64, 3), nn.Conv2d(64, 32, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.second(self.first(x).relu()).mean()

    def example(rows: int, side: int | None) -> torch.Tensor:
        return torch.zeros(rows, 3, side or 8, side or 8)

    generator = random.Random(1)
    for _ in range(6):
        plan = [(generator.randrange(1, 30), generator.randrange(16, 90)) for _ in range(8)]
        forecast = fs.forecast(Images, example, lengths=plan, precision=generator.choice(["fp32", "amp-fp16"]), device="A100-80GB", advice=False)  # type: ignore[arg-type]
        assert forecast.range[0] <= forecast.reserved <= forecast.range[1]
