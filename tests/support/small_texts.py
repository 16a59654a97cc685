"""A small network of texts in torch, its batches and its loss."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn


class Block(nn.Module):
    def __init__(self, width: int, rate: float = 0.0) -> None:
        super().__init__()
        self.norm, self.qkv, self.out, self.rate = nn.LayerNorm(width), nn.Linear(width, 3 * width), nn.Linear(width, width), rate

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        n, t, w = x.shape
        q, k, v = self.qkv(self.norm(x)).view(n, t, 3, w // 16, 16).transpose(1, 3).unbind(2)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        return x + F.dropout(self.out(y.transpose(1, 2).reshape(n, t, w)), self.rate, self.training)


class Texts(nn.Module):
    def __init__(self, width: int = 64, layers: int = 1, words: int = 500, rate: float = 0.0) -> None:
        super().__init__()
        self.words = nn.Embedding(words, width)
        self.blocks = nn.ModuleList(Block(width, rate) for _ in range(layers))
        self.head = nn.Linear(width, words)

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.words(ids)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def batch(rows: int, length: int | None) -> tuple[torch.Tensor, torch.Tensor]:
    ids = torch.ones(rows, length or 32, dtype=torch.int64)
    return ids, ids


def entropy(scores: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
    return F.cross_entropy(scores.flatten(0, 1), target.flatten())
