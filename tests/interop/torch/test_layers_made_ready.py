"""Layers taken by torch.export in another form alone: lazy ones, clusters of classes, gradients by frequency."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foreshape as fs


def test_lazy_layers_get_their_parameters_from_the_example() -> None:
    net = nn.Sequential(nn.LazyConv1d(4, 3), nn.LazyBatchNorm1d(), nn.ReLU(), nn.Flatten(), nn.LazyLinear(3))
    model = fs.from_torch(net, torch.randn(2, 3, 6), ({0: "batch"},))
    x = torch.randn(5, 3, 6)
    assert model(x).shape == (5, 3)
    torch.testing.assert_close(model.scope.tensor("1.num_batches_tracked"), torch.tensor(1))  # the first call alone counts
    assert all(part.training for part in net.modules())


class LossOfClusters(nn.Module):
    """A loss of classes in clusters."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.loss = nn.AdaptiveLogSoftmaxWithLoss(8, 20, [5, 10])

    def forward(self, x: Tensor, target: Tensor) -> Any:
        return tuple(self.loss(x, target))


@pytest.mark.long
def test_clusters_of_classes_take_any_targets() -> None:
    net = LossOfClusters()
    model = fs.from_torch(net, (torch.randn(3, 8), torch.tensor([1, 7, 19])), ({0: "batch"}, {0: "batch"}))
    for target in (torch.tensor([0, 4, 2, 1]), torch.tensor([12, 6])):
        x = torch.randn(len(target), 8)
        torch.testing.assert_close(model(x, target), net(x, target), rtol=1e-4, atol=1e-5)


class RowsByFrequency(nn.Module):
    """A number of rows of a table, whose gradients are divided by how often they are taken."""

    def __init__(self, bags: bool) -> None:
        super().__init__()
        self.table = nn.EmbeddingBag(9, 4, scale_grad_by_freq=True) if bags else nn.Embedding(9, 4, padding_idx=0, scale_grad_by_freq=True)

    def forward(self, ids: Tensor) -> Tensor:
        return self.table(ids).sin().sum()


def test_gradients_are_divided_by_frequency() -> None:
    net, ids = RowsByFrequency(False), torch.tensor([[1, 2, 2, 0], [3, 2, 1, 0]])
    net(ids).backward()
    found = fs.from_torch(net, torch.tensor([[1, 2, 3, 4]] * 2), ({0: "batch"},)).gradients(ids)["table.weight"]
    torch.testing.assert_close(found, net.table.weight.grad)
    assert "scale_grad_by_freq" in str(fs.from_torch(RowsByFrequency(True), ids, (None,)).missing)
