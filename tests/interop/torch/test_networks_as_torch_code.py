"""Whole networks as modules of torch, trained by torch's optimizers beside the modules that they came from, and networks of other formats."""

from __future__ import annotations

import copy
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from support.as_torch_code import check_as_torch
from support.some import each_of_product
from torch import nn
from torch.nn import functional as F

import foreshape as fs
from foreshape import layer


class Block(nn.Module):
    """A decoder's block as in GPT-2."""

    def __init__(self, width: int = 16, heads: int = 2) -> None:
        super().__init__()
        self.heads = heads
        self.ln_1, self.ln_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attn, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        q, k, v = (part.unflatten(2, (self.heads, -1)).transpose(1, 2) for part in self.attn(self.ln_1(x)).chunk(3, 2))
        x = x + self.proj(F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).flatten(2))
        return x + self.down(F.gelu(self.up(self.ln_2(x)), approximate="tanh"))


class Gpt2(nn.Module):
    """A decoder whose last weight is its embedding's."""

    def __init__(self) -> None:
        super().__init__()
        self.wte, self.wpe = nn.Embedding(40, 16), nn.Embedding(12, 16)
        self.blocks, self.ln_f, self.lm_head = nn.Sequential(Block(), Block()), nn.LayerNorm(16), nn.Linear(16, 40, bias=False)
        self.lm_head.weight = self.wte.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        x = self.wte(ids) + self.wpe(torch.arange(ids.shape[1]))
        return self.lm_head(self.ln_f(self.blocks(x))).flatten(0, 1)


class Lstm(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(6, 12, 2, batch_first=True), nn.Linear(12, 40)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0].flatten(0, 1))


def mnist() -> nn.Module:
    """torch's example for MNIST, smaller and without dropout."""
    last = (nn.MaxPool2d(2), nn.Flatten(), nn.Linear(200, 16), nn.ReLU(), nn.Linear(16, 40))
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.ReLU(), nn.Conv2d(4, 8, 3, bias=False), nn.BatchNorm2d(8), nn.ReLU(), *last)


NETWORKS: dict[str, tuple[Callable[[], nn.Module], Callable[[], torch.Tensor], int]] = {
    "gpt2": (Gpt2, lambda: torch.randint(0, 40, (4, 10)), 40),
    "mnist": (mnist, lambda: torch.randn(6, 1, 14, 14), 6),
    "lstm": (Lstm, lambda: torch.randn(4, 7, 6), 28),
}


def adamw_losses(module: Any, x: torch.Tensor, y: torch.Tensor) -> list[float]:
    optimizer = torch.optim.AdamW(module.parameters(), 1e-3)
    losses: list[float] = []
    for _ in range(5):
        optimizer.zero_grad()
        loss = F.cross_entropy(module(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


@pytest.mark.quick_cases("engine-lstm")
@pytest.mark.parametrize(("plain", "name"), each_of_product(2, (False, True), NETWORKS), ids=lambda v: v if isinstance(v, str) else "plain" if v else "engine")
def test_five_losses_by_adamw_are_torchs_to_six_digits(name: str, plain: bool) -> None:
    torch.manual_seed(0)
    make, sample, count = NETWORKS[name]
    module, x = make().train(), sample()
    y = torch.randint(0, 40, (count,))
    net = fs.to_torch(fs.from_torch(copy.deepcopy(module), x), plain=plain).train()
    assert net.state_dict().keys() == module.state_dict().keys(), "a tied weight has both names"
    assert len(list(net.parameters())) == len(list(module.parameters()))
    wanted, seen = adamw_losses(module, x, y), adamw_losses(net, x, y)
    assert wanted[4] < 0.999 * wanted[0]
    assert seen == pytest.approx(wanted, rel=1e-6)
    for key, value in module.named_buffers():
        torch.testing.assert_close(net.get_buffer(key), value, rtol=1e-4, atol=1e-5)
    module.load_state_dict(net.state_dict())


def test_an_onnx_model_and_a_saved_one_become_modules(tmp_path: Path) -> None:
    image = layer.data("image", shape=["batch", 3, 9, 9])
    maps = layer.batch_norm(layer.conv2d(image, 4, 3, padding=1), activation="relu")
    scores = layer.fc(layer.pool2d(maps, 3, stride=3), 5)
    words = layer.data("words", shape=[None, 4], lod_level=1)
    ragged = layer.sequence_pool(layer.fc(words, 3), "sqrt")
    fs.Executor(seed=0).run(fs.default_startup_program())
    fs.save_onnx(tmp_path / "net.onnx", [image], [scores, layer.softmax(scores)])
    fs.save_inference_model(tmp_path / "net", [image], [scores])
    fs.save_inference_model(tmp_path / "rows", [words], [ragged])
    for name in ("net.onnx", "net", "rows"):
        check_as_torch(tmp_path / name)
    net = fs.to_torch(fs.load_inference_model(tmp_path / "net.onnx", scope=fs.Scope()))
    x = torch.randn(2, 3, 9, 9, requires_grad=True)
    net(x)[0].sum().backward()
    assert x.grad is not None and len([p for p in net.parameters() if p.grad is not None]) >= 4
    assert np.isfinite(x.grad).all()
