"""Optimizers of torch in forecasts: beside real updates on the processor, and refused ones by their names."""

from __future__ import annotations

from itertools import accumulate
from typing import Any

import pytest
import torch
from support.small_texts import Texts, batch, entropy
from torch import nn

import foreshape as fs


def layers() -> nn.Module:
    return nn.Sequential(nn.Linear(1024, 1024, bias=False), nn.ReLU(), nn.Linear(1024, 1024, bias=False))


def measured(name: str) -> int:
    """Return the most bytes of torch's allocator in three real steps."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU], profile_memory=True) as record:
        net: Any = layers()
        optimizer = getattr(torch.optim, name)(net.parameters(), lr=1e-3)
        for _ in range(3):
            optimizer.zero_grad()
            net(torch.zeros(1, 1024)).mean().backward()
            optimizer.step()
    events: Any = record.profiler.kineto_results.events()
    return max(accumulate(event.nbytes() for event in events if event.name() == "[memory]"))


@pytest.mark.parametrize("name", ["Adafactor", "ASGD", "Muon", "NAdam"])
def test_bytes_of_an_update_are_the_processors(name: str) -> None:
    forecast = fs.forecast(layers, torch.zeros(1, 1024), optimizer=name, device="cpu", advice=False)
    assert forecast.allocated == pytest.approx(measured(name), rel=0.03)


def test_adafactor_takes_few_states_and_can_be_advised() -> None:
    figures = {name: fs.forecast(layers, torch.zeros(1, 1024), optimizer=name, device="A100-80GB").allocated for name in ("SGD", "Adafactor", "AdamW")}
    assert figures["SGD"] < figures["Adafactor"] < figures["AdamW"]
    tight = fs.forecast(lambda: nn.Sequential(*(layers() for _ in range(8))), torch.zeros(1, 1024), device="A100-80GB", limit=150 << 20)
    assert "Adafactor" in {advice.change for advice in tight.advice}


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("Muon", "optimizer Muon cannot update this module: Muon only supports 2D parameters"),
        ("LBFGS", "optimizer LBFGS calls the module again within its step"),
        ("SparseAdam", "optimizer SparseAdam cannot update this module: SparseAdam does not support dense gradients"),
    ],
)
def test_an_optimizer_that_cannot_update_the_module_is_refused_by_name(name: str, words: str) -> None:
    with pytest.raises(fs.MemoryPlanError, match=words):
        fs.forecast(Texts, batch(2, 8), loss=entropy, optimizer=name)
