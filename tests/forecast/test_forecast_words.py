"""The words of a forecast: which bytes are taken with released segments, the causes of a range, advice, old cards."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.small_texts import Texts, batch, entropy

import foreshape as fs
from foreshape.compiler.memory import byte_text

VARYING = [(8, 48), (8, 400), (8, 60), (8, 333), (8, 390), (8, 37), (4, 400), (8, 395)] * 3
OPTIONS: dict[str, Any] = {"loss": entropy, "device": "A100-80GB", "advice": False}


@pytest.mark.long
def test_bytes_with_and_without_released_segments_are_told_apart() -> None:
    free = fs.forecast(Texts(words=8000), batch, lengths=VARYING, **OPTIONS)
    assert f"reserved {byte_text(free.reserved)} expected, {byte_text(free.safe)} safe\n" in str(free) and free.unlimited == free.reserved
    parts = [free.allocated + part * (free.reserved - free.allocated) // 16 for part in range(17)]
    forecasts = [fs.forecast(Texts(words=8000), batch, lengths=VARYING, limit=limit, **OPTIONS) for limit in parts]
    kinds: set[bool] = set()
    for f in (f for f in forecasts if f.unlimited > f.reserved):
        kinds.add(f.fits)
        words = "released within the limit; " if f.fits else "safe if none is released"
        assert words in str(f) and f.unlimited == free.reserved and f.fits == (f.safe <= f.available)
        assert "cuDNN" not in str(f) and not any("1 times" in note for note in f.notes)
        least, greatest = map(byte_text, f.range)
        assert (f"reserved from {least} to {greatest}, by the release of idle segments\n" in str(f)) == (least != greatest)
    assert True in kinds


def test_a_range_of_equal_figures_is_not_told() -> None:
    net = torch.nn.Sequential(torch.nn.Conv2d(3, 4, 3), torch.nn.Flatten(), torch.nn.Linear(4 * 36, 4000))
    forecast = fs.forecast(net, torch.zeros(2, 3, 8, 8), device="A100-80GB", advice=False)
    assert ("reserved from" in str(forecast)) == (byte_text(forecast.range[0]) != byte_text(forecast.range[1]))


def test_accumulated_batches_have_at_least_one_example() -> None:
    forecast = fs.forecast(Texts(words=4000), batch, lengths=[(16, 300), (1, 100), (16, 300)], limit="110MiB", **{**OPTIONS, "advice": True})
    halved = [advice.change for advice in forecast.advice if "accumulate" in advice.change]
    assert halved and all("of these, at least one example" in change for change in halved)


@pytest.mark.parametrize(("device", "is_told"), [("V100-16GB", True), ("T4-16GB", True), ("A100-40GB", False), ("24GiB", False)])
def test_bf16_on_old_cards_has_a_note_and_fp16_is_the_advice(device: str, is_told: bool) -> None:
    for precision in ("bf16", "amp-bf16", "fp32"):
        forecast = fs.forecast(Texts(), batch(2, 16), loss=entropy, device=device, precision=precision, advice=False)  # type: ignore[arg-type]
        assert any("bf16 is emulated" in note for note in forecast.notes) == (is_told and precision != "fp32")
    tight = fs.forecast(Texts(words=4000), batch(8, 300), loss=entropy, device=device, limit="100MiB")
    assert any(("amp-fp16" if is_told else "amp-bf16") in advice.change for advice in tight.advice)
