"""Changes in place of a network's code: as torch makes them, without a second trace of the network where views have a way back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.interop.torch import module_import
from foreshape.interop.torch.torch_model import from_torch


def parts(x: torch.Tensor) -> Any:
    y = torch.zeros(4, 6) + x.sum()
    flat, row, turned = y.view(24), y[1], y.t()
    y[1:3, ::2] = x[0, 0]
    flat[3:5].add_(1)
    row.mul_(2)
    turned[0].sub_(3)
    return y, flat, row * 1, turned.relu_(), y[:, 1]


def of_views(x: torch.Tensor) -> Any:
    y = x.clone()
    z = y.unsqueeze(1).permute(2, 0, 1)
    z[0] = 5.0
    y[:, 1].clamp_(0.1, 0.2)
    w = y.reshape(-1)
    w.neg_()
    y.transpose(0, 1)[2].copy_(x[:, 0])
    return y, z, w


def by_masks(x: torch.Tensor) -> Any:
    y = x * 1
    z = y[:, 1:3]
    y[y > 0.5] = -1.0
    z[:, torch.tensor([0])] = 7.0
    y.masked_fill_(x < 0.1, 3.0)
    y.index_add_(1, torch.tensor([0, 0]), x[:, :2])
    return y, z


def unseen(x: torch.Tensor) -> Any:
    y = x * 2
    return y + y.add_(1), y.relu_().sum(1), torch.where(y.t_() > 1, 1.0, 0.0)


def by_torch_itself(x: torch.Tensor) -> Any:
    y = torch.zeros(3, 3) + x.sum()
    y.diagonal().add_(10.0)
    a, b = x.repeat(1, 2).chunk(2, 1)
    a.add_(1)
    return y, torch.zeros(3, 3).fill_diagonal_(2.0), a, b


def by_expansion(x: torch.Tensor) -> Any:
    y = x.sum(1, keepdim=True)
    z = y.expand(-1, 3)
    y.add_(1)
    return z * 1, y


WITHOUT_A_SECOND_TRACE: dict[str, Callable[[torch.Tensor], Any]] = {
    "parts": parts,
    "views": of_views,
    "masks": by_masks,
    "unseen": unseen,
    "expansion": by_expansion,
}


class Of(nn.Module):
    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, x: torch.Tensor) -> Any:
        return self.function(x)


@pytest.mark.quick_cases("masks", "expansion")
@pytest.mark.parametrize("name", [*WITHOUT_A_SECOND_TRACE, "torch"])
def test_memory_changed_in_place_is_seen_through_every_view(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def traced_again(*_: Any) -> None:
        raise AssertionError("the network was traced a second time")

    if name != "torch":
        monkeypatch.setattr(module_import, "decomposed", traced_again)
    module = Of(WITHOUT_A_SECOND_TRACE.get(name, by_torch_itself))
    model = from_torch(module, torch.rand(4, 3))
    for rows in (4, 6):
        x = torch.rand(rows, 3)
        want = torch.utils._pytree.tree_leaves(module(x.clone()))
        for w, s in zip(want, torch.utils._pytree.tree_leaves(model(x)), strict=True):
            torch.testing.assert_close(s, w)


class Counting(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.BatchNorm1d(3)
        self.register_buffer("seen", torch.zeros(2, 3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = self.norm(self.norm(x))
        self.seen[0] += x.detach().sum(0)
        self.seen.view(-1)[3:].mul_(2).add_(1)
        return y.sum() + self.seen.sum()


def test_buffers_that_change_keep_their_last_values(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module_import, "decomposed", None)
    module = Counting().train()
    model = from_torch(module, torch.rand(4, 3))
    assert sorted(model.buffers) == ["norm.num_batches_tracked", "norm.running_mean", "norm.running_var", "seen"]
    for rows in (4, 5):
        x = torch.rand(rows, 3)
        torch.testing.assert_close(model(x), module(x).detach())
    for name, buffer in module.named_buffers():
        torch.testing.assert_close(model.scope.tensor(name), buffer, msg=lambda text, name=name: f"{name}: {text}")


def test_a_changed_input_is_refused() -> None:
    with pytest.raises(fs.SchemaError, match="the network changes x in each call"):
        from_torch(Of(lambda x: x[0].add_(1)), torch.rand(4, 3))
