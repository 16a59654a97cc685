"""Numbers of 64 bits in networks of torch, which attributes of 32 bits do not hold."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.nn import functional

from foreshape.interop.torch.torch_model import from_torch

Rule = Callable[[torch.Tensor], torch.Tensor]

FLOATS: dict[str, Rule] = {
    "add": lambda x: x + 0.1,
    "rsub": lambda x: 0.1 - x,
    "mul": lambda x: x * 0.1,
    "alpha": lambda x: torch.add(x, x * x, alpha=0.1),
    "addcmul": lambda x: torch.addcmul(x, x, x, value=0.1),
    "clamp": lambda x: x.clamp(-0.1, 0.3),
    "clamp_min": lambda x: x.clamp(min=0.1),
    "hardtanh": lambda x: nn.functional.hardtanh(x, -0.1, 0.3),
    "exp2": torch.exp2,
    "pow": lambda x: (x.abs() + 1) ** 0.3 + (x.abs() + 1) ** (1 / 3),
    "norms": lambda x: functional.layer_norm(x, (3,), eps=1e-3) + functional.group_norm(x, 3, eps=1e-3) + functional.rms_norm(x, (3,), eps=1e-3),
    "of a sign": lambda x: functional.leaky_relu(x + 0.01, 0.1) + functional.elu(x, 0.3) + functional.selu(x),
    "of a threshold": lambda x: functional.threshold(x, 0.1, 0.7) + functional.softshrink(x, 0.2) + functional.hardshrink(x, 0.2),
    "smooth": lambda x: functional.softplus(x, 1.3, 2.1) + functional.gelu(x, approximate="tanh"),
    "vector_norm": lambda x: torch.linalg.vector_norm(x, 1.7, -1, keepdim=True) + x.var(0, correction=0),
    "losses": lambda x: functional.huber_loss(x, x * 2, delta=0.7) + functional.smooth_l1_loss(x, x * 2, beta=0.3),
    "cross_entropy": lambda x: functional.cross_entropy(x, torch.tensor([0, 2]), label_smoothing=0.1),
    "attention": lambda x: functional.scaled_dot_product_attention(x, x, x, scale=0.3),
    "power of two": lambda x: x * 2.0**-30 + x * (1 + 2.0**-20),
}
INTEGERS: dict[str, Rule] = {
    "add": lambda x: x + (2**40 + 1),
    "rsub": lambda x: (2**53 + 1) - x,
    "mul": lambda x: x * (2**33 + 1),
    "clamp": lambda x: (x * 2**50).clamp(-(2**40), 2**40 + 1),
    "sign": torch.sign,
}


def module_of(rule: Rule) -> nn.Module:
    class Made(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.x = nn.Parameter(torch.tensor([[-2.0, -0.1, 0.0], [0.1, 0.3, 5.0]], dtype=torch.float64))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return (rule(self.x) * x).sum()

    return Made()


@pytest.mark.quick_cases("losses", "of a sign")
@pytest.mark.parametrize("name", FLOATS)
def test_numbers_of_double_precision_keep_their_bits(name: str) -> None:
    module, x = module_of(FLOATS[name]), torch.linspace(0.5, 2, 3, dtype=torch.float64)
    model = from_torch(module, x, (None,))
    want = module(x)
    want.backward()
    torch.testing.assert_close(model(x), want.detach(), rtol=1e-14, atol=1e-14)
    torch.testing.assert_close(model.gradients(x)["x"], next(module.parameters()).grad, rtol=1e-14, atol=1e-14)


@pytest.mark.quick_cases(one_in=2, turn=1)
@pytest.mark.parametrize("name", INTEGERS)
def test_whole_numbers_of_64_bits_are_exact(name: str) -> None:
    class Made(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return INTEGERS[name](x)

    x = torch.tensor([[-3, 0, 5], [1, 2, 7]])
    assert torch.equal(from_torch(Made(), x)(x), INTEGERS[name](x))
