"""Regions of torch.autocast: results and gradients are torch's, in its element types."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from support.processor import skip_without_bf16_lstm
from torch import Tensor, nn

import foreshape as fs


class Region(nn.Module):
    """A network with a region in bfloat16, and one in single precision within."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.into, self.out, self.norm, self.windows = nn.Linear(4, 8), nn.Linear(8, 4), nn.LayerNorm(8), nn.Conv1d(3, 3, 3, padding=1)

    def forward(self, x: Tensor) -> Any:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            hidden = self.into(x)
            with torch.autocast("cpu", enabled=False):
                hidden = self.norm(hidden.float())
            y = self.out(torch.softmax(hidden, -1))
            z = self.windows(x)
            mixed = torch.cat([y, x], 1) + torch.einsum("bij,bkj->bik", y, z).sum(-1).mean()
            loss = F.mse_loss(y, x)
        return y, z, mixed, loss, F.gelu(y) + x


def test_a_region_of_autocast_is_computed_in_torchs_types() -> None:
    net = Region()
    model = fs.from_torch(net, torch.randn(2, 3, 4), ({0: "batch"},))
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), net(x), rtol=2e-2, atol=2e-2)  # the element types too
    assert [one.dtype for one in model(x)] == [torch.bfloat16, torch.bfloat16, torch.float32, torch.float32, torch.float32]


class NumberOfRegion(nn.Module):
    """A number of the results of another network."""

    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, x: Tensor) -> Tensor:
        found = self.network(x)
        return sum((one.float().sin().mean() for one in (found if isinstance(found, tuple) else (found,))), torch.zeros(()))


@pytest.mark.long
def test_gradients_through_a_region_of_autocast_are_torchs() -> None:
    net = NumberOfRegion(Region())
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
    found = fs.from_torch(net, torch.randn(2, 3, 4), ({0: "batch"},)).gradients(x)
    net(x).backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(found[name], parameter.grad, rtol=3e-2, atol=3e-3)


class Within(nn.Module):
    """Layers within a region of autocast."""

    def __init__(self, run: Callable[..., Tensor], *layers: nn.Module) -> None:
        super().__init__()
        self.run, self.layers = run, nn.ModuleList(layers)

    def forward(self, x: Tensor) -> Tensor:
        with torch.autocast("cpu", dtype=torch.bfloat16):
            return self.run(self.layers, x)


WITHIN: dict[str, tuple[Any, ...]] = {
    "lstm": (lambda m, x: m[0](x)[0], nn.LSTM(4, 4, batch_first=True)),
    "gru": (lambda m, x: m[0](x)[0], nn.GRU(4, 4, batch_first=True)),
    "attention": (lambda m, x: m[0](x, x, x)[0], nn.MultiheadAttention(4, 2, batch_first=True)),
    "encoder": (lambda m, x: m[0](x), nn.TransformerEncoderLayer(4, 2, 8, 0.0, batch_first=True)),
    "batch norm": (lambda m, x: m[1](m[0](x)), nn.Linear(4, 4), nn.BatchNorm1d(3)),
    "ctc": (
        lambda m, x: F.ctc_loss(
            m[0](x).transpose(0, 1).log_softmax(-1), torch.ones(len(x), 1, dtype=torch.int64), torch.full((len(x),), 3), torch.full((len(x),), 1)
        ),
        nn.Linear(4, 4),
    ),
}


@pytest.mark.parametrize("name", [n if n == "lstm" else pytest.param(n, marks=pytest.mark.long) for n in WITHIN])
def test_layers_within_a_region_of_autocast(name: str) -> None:
    if name == "lstm":
        skip_without_bf16_lstm()
    net = Within(*WITHIN[name]).eval()
    model = fs.from_torch(net, torch.randn(2, 3, 4), ({0: "batch"},))
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(1))
    torch.testing.assert_close(model(x), net(x), rtol=2e-2, atol=2e-2)
