"""Gradients of torch through plain code of kernels that are written otherwise for speed."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import foreshape as fs


class Warped(nn.Module):
    """Images read at places that depend on them, with a pooling, a transposed convolution and a loss of class numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.places, self.inner, self.wider, self.classes = nn.Linear(48, 6), nn.Conv2d(3, 4, 3, padding=1), nn.ConvTranspose2d(4, 2, 2, 2), nn.Linear(32, 5)

    def forward(self, x: Any, label: Any) -> Any:
        grid = F.affine_grid(self.places(x.flatten(1)).view(-1, 2, 3), [x.shape[0], 3, 4, 4], align_corners=False)
        h = F.max_pool2d(F.relu(self.inner(F.grid_sample(x, grid, align_corners=False))), 2)
        return F.nll_loss(F.log_softmax(self.classes(self.wider(h).flatten(1)), 1), label)


def test_plain_code_has_the_gradients_of_the_module() -> None:
    torch.manual_seed(0)
    module, given = Warped(), (torch.randn(3, 3, 4, 4), torch.tensor([0, 4, 2]))
    plain: Any = fs.to_torch(fs.from_torch(module, given, ({0: "batch"}, {0: "batch"})), plain=True)
    found = []
    for net in (module, plain.train()):
        loss = net(*given)
        loss = loss if isinstance(loss, torch.Tensor) else loss[0]
        loss.backward()
        found.append({n: p.grad for n, p in net.named_parameters()})
    assert found[0].keys() == found[1].keys()
    for name, wanted in found[0].items():
        torch.testing.assert_close(found[1][name], wanted, atol=1e-5, rtol=1e-4)
