"""Local variables of eager code live until their function ends, or their name has another value: as is measured."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from support.measured import allocated, storage_bytes
from torch import nn

import foreshape as fs

F = nn.functional


class Attended(nn.Module):
    """A step of a U-Net: attention written out, and a value of the way down that joins the one of the way up."""

    def __init__(self) -> None:
        super().__init__()
        self.into, self.down, self.up = nn.Conv2d(3, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1), nn.Conv2d(48, 16, 3, padding=1)
        self.norm, self.qkv, self.out = nn.GroupNorm(4, 32), nn.Conv2d(32, 96, 1), nn.Conv2d(32, 32, 1)

    def attention(self, x: torch.Tensor) -> torch.Tensor:
        batch, channels, height, width = x.shape
        qkv = self.qkv(self.norm(x)).reshape(batch, 3, channels, height * width)
        q, k, v = qkv.unbind(1)
        scores = q.transpose(1, 2) @ k / channels**0.5
        weights = torch.softmax(scores, -1)
        y = v @ weights.transpose(1, 2)
        y = y.reshape(batch, channels, height, width)
        return x + self.out(y)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        first = self.into(x)
        h = F.silu(first)
        h = self.attention(self.down(h))
        h = F.interpolate(h, scale_factor=2.0)
        return self.up(torch.cat([h, first], 1))


def neighbours(x: torch.Tensor, k: int) -> torch.Tensor:
    inner = -2 * torch.matmul(x.transpose(2, 1), x)
    squares = torch.sum(x**2, dim=1, keepdim=True)
    distances = -squares - inner - squares.transpose(2, 1)
    at = distances.topk(k=k, dim=-1)[1]
    return at


def graph_feature(x: torch.Tensor, k: int) -> torch.Tensor:
    batch, channels, points = x.shape
    at = neighbours(x, k).view(-1)
    x = x.transpose(2, 1).contiguous()
    base = torch.arange(0, batch).view(-1, 1).expand(batch, points * k).reshape(-1) * points
    feature = x.view(batch * points, -1)[at + base, :]
    feature = feature.view(batch, points, k, channels)
    x = x.view(batch, points, 1, channels).repeat(1, 1, k, 1)
    feature = torch.cat((feature - x, x), dim=3).permute(0, 3, 1, 2).contiguous()
    return feature


class Points(nn.Module):
    """DGCNN (Wang et al., 2019): functions with many large locals."""

    def __init__(self) -> None:
        super().__init__()
        self.one, self.two, self.out = nn.Conv2d(6, 32, 1), nn.Conv2d(64, 32, 1), nn.Linear(64, 10)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = graph_feature(x, 8)
        x = F.leaky_relu(self.one(x), 0.2)
        x1 = x.max(dim=-1)[0]
        x = graph_feature(x1, 8)
        x = F.leaky_relu(self.two(x), 0.2)
        x2 = x.max(dim=-1)[0]
        return self.out(torch.cat((x1, x2), 1).mean(-1))


class Named(nn.Module):
    """Names that are deleted, given anew in a loop, set to None, and of two statements on a line."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(64, 64) for _ in range(3)])

    def one(self, x: torch.Tensor, part: nn.Module) -> torch.Tensor:
        a = part(x)
        b = a * 2.0
        c = b.sin()
        del a
        d = c + 1.0
        return d

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        outs: list[torch.Tensor] = []
        y = x
        for part in self.layers:
            x = self.one(x, part)
            outs.append(x)
            y = x.cos()
        large: Any = torch.cat(outs, 0).exp()
        out = large.sum() + y.sum()
        large = None
        z = x * 3.0; z = z.exp()  # noqa: E702  # fmt: skip
        return out + z.sum()


CASES: list[tuple[type[nn.Module], tuple[int, ...]]] = [(Attended, (2, 3, 32, 32)), (Points, (4, 3, 128)), (Named, (256, 64))]


@pytest.mark.quick_cases("Named-dims4-False")
@pytest.mark.parametrize(("make", "dims", "trains"), [
    pytest.param(make, dims, trains, marks=[pytest.mark.long] if trains and make is not Attended else [])
    for make, dims in CASES for trains in (False, True)
])  # fmt: skip
def test_a_call_takes_what_is_predicted(make: type[nn.Module], dims: tuple[int, ...], trains: bool) -> None:
    module, x = make().train(trains), torch.randn(dims)
    predicted = fs.plan(fs.from_torch(module, x), x, optimizer=fs.optimizer.SGD(0.1) if trains else None).eager()

    def step() -> object:
        with torch.set_grad_enabled(trains):
            result = module(x)
        if trains:
            result.mean().backward()
        return result

    step()
    module.zero_grad()
    most = allocated(step) + storage_bytes([*module.parameters(), *module.buffers(), x])
    assert 0.97 * most <= predicted.peak <= 1.05 * most, (predicted, most)
