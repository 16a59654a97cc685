"""Modules and callers of forecasts: casts in a function, plain tensors, one batch size alone, named devices, modes of the caller."""

from __future__ import annotations

import contextlib
from typing import Any

import pytest
import torch
from support.small_texts import Texts, batch, entropy
from torch import nn

import foreshape as fs

OPTIONS: dict[str, Any] = {"loss": entropy, "device": "A100-80GB", "advice": False}


def taken(module: Any, **changes: Any) -> int:
    return fs.forecast(module, batch, batch=4, **{**OPTIONS, **changes}).allocated


@pytest.mark.parametrize("cast", ["bfloat16", "half", "to", "cuda", "to_cuda", "channels_last"])
def test_a_function_may_cast_its_module(cast: str) -> None:
    casts: dict[str, Any] = {
        "bfloat16": lambda: Texts().bfloat16(),
        "half": lambda: Texts().half(),
        "to": lambda: Texts().to(torch.bfloat16),
        "cuda": lambda: Texts().cuda(),
        "to_cuda": lambda: Texts().to(torch.device("cuda:0")),
        "channels_last": lambda: Texts().to(memory_format=torch.channels_last),
    }
    before = nn.Module._apply
    assert taken(casts[cast]) == taken(Texts, precision="bf16" if cast in ("bfloat16", "half", "to") else "fp32")
    assert nn.Module._apply is before


def test_tied_weights_stay_tied_by_a_cast() -> None:
    def tied(dtype: Any) -> nn.Module:
        net = Texts(words=4000)
        net.head.weight = net.words.weight
        return net.to(dtype)

    assert taken(lambda: tied(torch.bfloat16)) == taken(lambda: tied(torch.float32), precision="bf16")


class Attributes(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer, self.mask = nn.Linear(256, 256), torch.ones(256, 256)
        self.others: dict[str, Any] = {"scales": [torch.ones(256), (self.layer.weight * 2)[0]]}

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (self.layer(x) @ self.mask * self.others["scales"][0]).mean()


def test_plain_tensors_of_a_module_are_counted_and_left_as_they_are() -> None:
    net = Attributes()
    forecasts = [fs.forecast(module, torch.zeros(4, 256), device="A100-80GB", advice=False) for module in (net, Attributes)]
    for forecast in forecasts:
        masks = [tensor for tensor in forecast.peak_tensors if tensor.name == "mask"]
        assert [(tensor.kind, tensor.bytes) for tensor in masks] == [("buffer", 256 * 256 * 4)]
    assert bool((net.mask == 1).all()) and type(net.mask) is torch.Tensor


class Fixed(nn.Module):
    """A layer for batches of 8 alone."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.layer(x).view(8, -1, 64, 1).square().mean()


def test_a_module_for_one_batch_size_alone_is_traced_with_it() -> None:
    def example(rows: int, length: int | None) -> torch.Tensor:
        return torch.zeros(rows, length or 20, 64)

    one = fs.forecast(Fixed, example(8, 401), optimizer="SGD", device="A100-80GB", advice=False)
    run = fs.forecast(Fixed, example, lengths=[(8, 200), (8, 401), (8, 50), (8, 300)], optimizer="SGD", device="A100-80GB", advice=False)
    assert one.largest is None and run.largest is None and run.allocated == one.allocated
    assert "the module cannot run on other numbers of examples" in run.notes[0] == one.notes[0]
    with pytest.raises(fs.MemoryPlanError, match=r"test_callers_modules.py:\d+: RuntimeError: shape"):
        fs.forecast(Fixed, example, lengths=[(8, 200), (9, 401)])


class Placed(nn.Module):
    """A module whose code names a GPU."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(64, 64, device="cuda")

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        more = torch.zeros(64, device="cuda", requires_grad=True) + torch.ones(64).to("cuda:0") + torch.ones(64).cuda()
        return (self.layer(x) + more).mean()


@pytest.mark.parametrize("device", ["A100-80GB", "cpu"])
def test_a_gpu_named_by_the_users_code_is_the_forecast_device(device: str) -> None:
    forecast = fs.forecast(Placed, lambda rows, _: torch.zeros(rows, 64, device="cuda"), batch=4, device=device, advice=False)
    assert forecast.allocated > 0


@pytest.mark.parametrize("mode", [torch.no_grad, torch.inference_mode, lambda: torch.device("meta"), lambda: torch.device("cuda")])
def test_modes_of_the_caller_change_nothing(mode: Any) -> None:
    plain, net = taken(Texts), Texts()
    with mode():
        assert taken(Texts) == taken(net) == plain
        with contextlib.suppress(AssertionError, NotImplementedError):  # torch without CUDA
            example = batch(4, 32)
            assert fs.forecast(net, example, **OPTIONS).allocated == plain
