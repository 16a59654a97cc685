"""Attention with masks of every kind beside torch's: values and gradients, also of rows that see nothing."""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

import foreshape as fs


class Attentions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.project, self.learned = nn.Linear(8, 24), nn.Parameter(torch.randn(5, 5))

    def forward(self, x: torch.Tensor, seen: torch.Tensor, added: torch.Tensor, least: torch.Tensor) -> torch.Tensor:
        q, k, v = self.project(x).view(x.shape[0], 5, 3, 2, 4).permute(2, 0, 3, 1, 4).unbind(0)
        total = F.scaled_dot_product_attention(q, k, v, is_causal=True, scale=0.3)
        for mask in (None, seen, added, least, self.learned):
            total = total * 0.7 + F.scaled_dot_product_attention(q, k, v, mask)
        return (total * total.sin()).sum()


def test_attention_with_masks_of_every_kind() -> None:
    torch.manual_seed(0)
    seen = torch.rand(3, 1, 5, 5) > 0.4
    seen[..., 0] = True
    least = torch.zeros(3, 1, 5, 5).masked_fill(~seen, torch.finfo(torch.float32).min)
    seen[0, 0, 2] = seen[1, 0, 0] = False  # rows that see nothing: torch gives zeros
    added = torch.zeros(3, 1, 5, 5).masked_fill(~seen, float("-inf"))
    module, inputs = Attentions(), (torch.randn(3, 5, 8), seen, added, least)
    model = fs.from_torch(module, inputs)
    loss = module(*inputs)
    loss.backward()
    torch.testing.assert_close(model(*inputs), loss.detach(), rtol=1e-5, atol=1e-5)
    gradients = model.gradients(*inputs)
    for name, parameter in module.named_parameters():
        torch.testing.assert_close(gradients[name], parameter.grad, rtol=1e-4, atol=1e-5)
