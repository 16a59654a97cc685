"""Questions of a network about remainders of sizes, as whether to pad: one way for all sizes where the results are those of both."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.functional import interpolate, pad

import foreshape as fs


class Chunks(nn.Module):
    """Words in chunks of four, the last one padded if it is shorter."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.mix = nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        words, more = x.shape[1], (4 - x.shape[1] % 4) % 4
        if more > 0:
            x = pad(x, (0, more))
        mixed = self.mix(x.unflatten(1, (-1, 4))).flatten(1)
        if more > 0:
            mixed = mixed[:, :words]
        return mixed


class Windows(nn.Module):
    """Sums of windows of an image, resized to a multiple of them if it is not one."""

    def forward(self, x: Tensor) -> Tensor:
        height, width = x.shape[2:]
        new = (height + 3) // 4 * 4, (width + 1) // 2 * 2
        if new[0] != height or new[1] != width:
            x = interpolate(x, new, mode="bilinear", align_corners=False)
        return x.unflatten(3, (-1, 2)).unflatten(2, (-1, 4)).sum((3, 5))


CASES: list[Any] = [
    pytest.param(Chunks(), torch.randn(2, 8), {0: "batch", 1: "words"}, [(3, 9), (2, 11), (1, 12)], id="multiples"),
    pytest.param(Chunks(), torch.randn(2, 6), {0: "batch", 1: "words"}, [(3, 9), (2, 11), (1, 12)], id="others", marks=pytest.mark.long),
    pytest.param(Windows(), torch.randn(2, 1, 8, 6), {2: "height", 3: "width"}, [(2, 1, 12, 7), (2, 1, 9, 8), (2, 1, 5, 5), (2, 1, 4, 4)], id="windows"),
]


@pytest.mark.long
@pytest.mark.parametrize(("net", "x", "axes", "others"), CASES)
def test_all_sizes_are_taken_where_both_ways_give_the_same(net: nn.Module, x: Tensor, axes: dict[int, str], others: list[tuple[int, ...]]) -> None:
    model = fs.from_torch(net, x, (axes,))
    for dims in others:
        given = torch.randn(dims)
        torch.testing.assert_close(model(given), net(given).detach())


@pytest.mark.long
def test_gradients_go_the_same_way() -> None:
    class Loss(Chunks):
        def forward(self, x: Tensor) -> Tensor:
            return nn.functional.dropout(super().forward(x).sin(), 0.0, self.training).sum()

    net = Loss()
    model = fs.from_torch(copy.deepcopy(net), torch.randn(2, 8), ({0: "batch", 1: "words"},))
    for words in (7, 12):
        x = torch.randn(3, words)
        net.zero_grad()
        net(x).backward()
        torch.testing.assert_close(model.gradients(x)["mix.weight"], net.mix.weight.grad)


class Unlike(nn.Module):
    """Its two ways differ, by a hair in the one case."""

    def __init__(self, by: float) -> None:
        super().__init__()
        self.by = by

    def forward(self, x: Tensor) -> Tensor:
        return x * 2 if x.shape[1] % 4 == 0 else x * (2 + self.by)


@pytest.mark.quick_cases("1.0")
@pytest.mark.parametrize("by", [1e-3, 1.0])
def test_a_demand_stays_where_the_ways_differ(by: float) -> None:
    model = fs.from_torch(Unlike(by), torch.randn(2, 8), ({1: "words"},))
    with pytest.raises(fs.GuardError, match="took another way"):
        model(torch.randn(2, 9))
    x = torch.randn(2, 12)
    torch.testing.assert_close(model(x), x * 2)


def test_a_demand_stays_where_the_network_takes_no_other_sizes() -> None:
    class Strict(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            if x.shape[1] % 4:
                raise ValueError("words must be a multiple of 4")
            return x.unflatten(1, (-1, 4)).sum(2)

    model = fs.from_torch(Strict(), torch.randn(2, 8), ({1: "words"},))
    with pytest.raises(fs.GuardError, match="4 divides words"):
        model(torch.randn(2, 9))
