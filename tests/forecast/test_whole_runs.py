"""`fs.forecast` of whole runs: epochs, figures within a limit, advice, token budgets, buckets."""

from __future__ import annotations

import logging
import warnings
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from support.small_texts import Texts, batch, entropy
from torch import nn

import foreshape as fs
from foreshape.compiler.memory import byte_text


def test_a_first_batch_that_is_the_greatest_comes_again_with_states() -> None:
    """One batch, and one before smaller ones, are as the same batch three times: AdamW has no states before its first update."""
    options: dict[str, Any] = {"loss": entropy, "device": "A100-80GB"}
    thrice = fs.forecast(Texts(), batch, lengths=[(4, 64)] * 3, **options)
    once, first = (fs.forecast(Texts(), batch, lengths=[(4, 64), *others], **options) for others in ([], [(4, 8), (4, 9), (4, 10)]))
    assert once.allocated == first.allocated == thrice.allocated == thrice.steps[1].allocated > thrice.steps[0].allocated
    assert [(step.batch, step.length) for step in first.steps] == [(4, 64), (4, 8), (4, 9), (4, 10), (4, 64)] and len(once.steps) == 3
    assert "second epoch" in first.notes[0] and not any("second epoch" in note for note in thrice.notes)


VARYING = [(8, 48), (8, 400), (8, 60), (8, 333), (8, 390), (8, 37), (4, 400), (8, 395)] * 3


def test_a_run_that_fits_has_no_figure_above_the_free_bytes() -> None:
    """Segments that do not fit later batches are released before a run dies: what it takes within a limit is told, and how often it releases."""
    options: dict[str, Any] = {"loss": entropy, "device": "A100-80GB", "lengths": VARYING, "advice": False}
    free = fs.forecast(Texts(words=8000), batch, **options)
    verdicts = [fs.forecast(Texts(words=8000), batch, limit=free.allocated + part * (free.reserved - free.allocated) // 8, **options) for part in range(10)]
    assert {f.fits for f in verdicts} == {True, False}
    for f in verdicts:
        assert f.fits == (f.safe <= f.available) and not (f.fits and f.dies_at is not None)
        assert f.dies_at is not None or f.reserved <= f.available
        assert f.range[0] <= f.reserved <= f.range[1]
    tight = next(f for f in verdicts if f.fits and f.reserved < free.reserved)
    assert any("releases idle segments" in note for note in tight.notes)


@pytest.mark.long
def test_advice_is_of_the_whole_run_and_says_whether_it_is_enough() -> None:
    options: dict[str, Any] = {"loss": entropy, "device": "A100-80GB", "lengths": VARYING}
    free = fs.forecast(Texts(words=4000), batch, **options)
    tight = fs.forecast(Texts(words=4000), batch, limit=free.allocated // 2, **options)
    halved = next(advice for advice in tight.advice if "accumulate" in advice.change and "+" not in advice.change)
    divisor = int(halved.change.partition("1/")[2].split()[0])
    smaller = [(-(-rows // divisor), length) for rows, length in VARYING]
    alone = fs.forecast(Texts(words=4000), batch, **{**options, "lengths": smaller}, accumulate=divisor, limit=tight.available, advice=False)
    assert (halved.reserved, halved.fits) == (alone.reserved, alone.fits)
    assert [advice.fits for advice in tight.advice] == sorted((advice.fits for advice in tight.advice), reverse=True)
    tiny = fs.forecast(Texts(words=4000), batch, limit=free.allocated // 16, **options)
    joined = [advice for advice in tiny.advice if " + " in advice.change]
    assert not any(advice.fits for advice in tiny.advice if advice not in joined) and joined
    assert joined[0].reserved <= min(advice.reserved for advice in tiny.advice)


def test_a_token_budget_goes_through_with_the_lengths_of_the_run() -> None:
    options: dict[str, Any] = {"loss": entropy, "device": "A100-80GB", "advice": False, "limit": "96MiB"}
    lengths = [length for _, length in VARYING]
    largest = fs.forecast(Texts(words=4000), batch, lengths=VARYING, **options).largest
    assert largest is not None and largest.tokens
    assert fs.forecast(Texts(words=4000), batch, lengths=[(largest.tokens // length, length) for length in lengths], **options).fits


def test_buckets_built_anew_are_listed_once() -> None:
    net = Texts(256, words=2000)
    forecast = fs.forecast(net, batch(1, 4), loss=entropy, optimizer="SGD", ddp={"bucket_cap_mb": 1})
    size = sum(p.numel() * 4 for p in net.parameters())
    assert sum(tensor.bytes for tensor in forecast.peak_tensors if tensor.name == "bucket") == size


def test_batches_of_one_example_have_a_largest_batch() -> None:
    """Operators broadcast an axis of one example, so that bytes of a step with one say nothing about more."""
    options: dict[str, Any] = {"loss": entropy, "device": "A100-80GB", "limit": "96MiB", "advice": False}
    one, two = (fs.forecast(Texts(words=4000), batch, lengths=[(rows, 300)] * 3, **options) for rows in (1, 2))
    assert one.largest == two.largest and one.largest is not None and 1 < one.largest.batch < 64
    assert one.allocated < two.allocated


@pytest.mark.parametrize("device", ["RTX3060", "cpu"])
def test_a_limit_above_the_free_bytes_is_cut_to_them(device: str) -> None:
    free, limited, less = (fs.forecast(Texts(), batch(2, 16), loss=entropy, device=device, limit=limit) for limit in (None, "900TiB", "1GiB"))
    assert limited.available == free.available > less.available == 1 << 30
    assert limited.notes == (f"the limit of 900 TiB is above the free bytes of {device}: {byte_text(free.available)} are taken for it", *free.notes)
    assert (limited.steps, limited.fits) == (free.steps, free.fits) and less.notes == free.notes


def test_forecasts_in_threads_leave_torch_as_it_was() -> None:
    def state() -> list[Any]:
        logger = logging.getLogger("torch._subclasses.fake_tensor")
        return [torch.get_default_dtype(), torch.amp.autocast_mode.autocast.__init__, logger.disabled, list(warnings.filters)]

    def one(precision: Any) -> fs.Forecast:
        return fs.forecast(lambda: Texts(layers=2), batch, lengths=[(2, 16), (3, 24)], loss=entropy, precision=precision, advice=False)

    before, precisions = state(), ["amp-bf16", "bf16", "fp32"] * 3
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(one, precisions))
    assert state() == before
    assert [f.steps for f in together] == [one(precision).steps for precision in precisions]


class Keeping(nn.Module):
    """A layer that keeps its results of so many steps."""

    def __init__(self, steps: int) -> None:
        super().__init__()
        self.layer, self.steps, self.kept = nn.Linear(256, 256), steps, list[torch.Tensor]()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.layer(x)
        self.kept = [*self.kept, y.detach() * 2][-self.steps :]
        return y.square().mean()


@pytest.mark.parametrize("steps", [1, 2, 3, 5, 9])
def test_results_kept_for_some_steps_are_freed_at_their_time(steps: int) -> None:
    """Of equal batches and of others, whose results have other sizes than those of the step that frees them."""
    options: dict[str, Any] = {"optimizer": "SGD", "device": "cpu", "advice": False}

    def example(rows: int, _: int | None) -> torch.Tensor:
        return torch.zeros(rows, 256)

    kib = [fs.forecast(partial(Keeping, n), example, batch=256, **options).allocated >> 10 for n in (steps, steps + 1)]
    assert kib[1] - kib[0] == 256
    plan = [400, 380, 390, 370, 395] * 5
    forecast = fs.forecast(lambda: Keeping(steps), example, lengths=[(rows, 1) for rows in plan], **options)
    plain = fs.forecast(lambda: Keeping(1), example, lengths=[(rows, 1) for rows in plan], **options)
    for number in range(steps, len(plan)):
        assert forecast.steps[number].allocated - plain.steps[number].allocated == sum(plan[number - steps + 1 : number]) * 1024
    assert (f"the module keeps tensors for {steps} steps" in forecast.notes) == (steps > 1)
    assert fs.forecast(lambda: Keeping(steps), example, lengths=[(rows, 1) for rows in plan]).peak_tensors[0].bytes > 0


def test_tensors_kept_for_good_grow_with_the_run() -> None:
    options: dict[str, Any] = {"optimizer": "SGD", "device": "cpu", "advice": False}
    short, long = (fs.forecast(lambda: Keeping(1000), torch.zeros(256, 256), lengths=[256] * n, batch=256, **options) for n in (5, 450))
    assert long.allocated - short.allocated == 445 * 256 * 1024
    assert long.notes[0] == "each step leaves 256 KiB behind for good, so that a longer run takes more"
