"""Networks that ask for sizes and values in ways that torch.export answers for one size, or refuses: they stay open here."""

from __future__ import annotations

import builtins
import math
from collections.abc import Callable
from math import sqrt
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foreshape as fs


def _folded(x: Tensor, kernel: int, stride: int, padding: int) -> Tensor:
    return F.fold(F.unfold(x, kernel, stride=stride, padding=padding), x.shape[2:], kernel, stride=stride, padding=padding)


def _signal(x: Tensor, length: int) -> Tensor:
    window = torch.hann_window(8) + 0.1
    return torch.istft(torch.stft(x.flatten(1), 8, 3, 8, window, return_complex=True) * 0.5, 8, 3, 8, window, length=length)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "len": lambda x: torch.arange(len(x)) + len(x),
    "causal": lambda x: nn.Transformer.generate_square_subsequent_mask(len(x)),
    "whole window": lambda x: (F.max_pool1d(x[:, 0], x.size(3)), F.avg_pool2d(x, x.size()[2:]), F.max_pool2d(x, kernel_size=x.shape[2:])),
    "roots": lambda x: (x / math.sqrt(x.shape[0]), x * x.shape[2] ** -0.5, x * sqrt(x.shape[3]), x + 2.5 * len(x), x / (len(x) - 1 + 1e-3)),
    "rounded": lambda x: (x[: math.floor(len(x) * 0.5)], x[: math.ceil(x.shape[0] / 2)]),
    "steps": lambda x: (torch.linspace(0, 1, x.shape[0]), torch.linspace(0.5, x.shape[2] - 0.5, x.shape[2])),
    "distribution": lambda x: torch.distributions.Categorical(logits=x).entropy(),
    "normal": lambda x: torch.distributions.Normal(x, x.exp()).log_prob(x + 1),
    "variance": lambda x: F.gaussian_nll_loss(x, x + 1, x.abs(), full=True),
    "signals": lambda x: (_signal(x, 2 * x.shape[2] * x.shape[3]), _signal(x, 40), _signal(x, 90)),
    "resized": lambda x: [F.interpolate(x, (x.shape[2] // 3, x.shape[3] // 4), mode=m) for m in ("nearest", "bilinear", "bicubic")],
    "matrices": lambda x: [torch.linalg.matrix_norm(x, k, (-1, -2), keepdim=k == 2) for k in ("fro", "nuc", 1, 2, -math.inf)],
    "traced": lambda x: x[:2] if not torch.jit.is_tracing() and x.shape[0] == 3 else x[: (x.shape[0] + 1) // 2],
    "traced tensor": lambda x: x[: torch.min(torch.tensor(x.shape)) if torch.jit.is_tracing() else x.shape[0] // 2],
    "whole numbers": lambda x: x.reshape(int(x.shape[0]), -1, int("1") * x.shape[3])[:, : int(x.shape[2] * 0.5), : int(len(x) * 0.7 + isinstance(1, int))],
    "divided": lambda x: x[: torch.div(x.shape[0], 2, rounding_mode="trunc"), :, torch.div(x.shape[2], 3, rounding_mode="floor") :],
    "around the middle": lambda x: torch.arange(64.0)[32 - torch.tensor(x.shape[2]) : 32 + torch.tensor(x.shape[2])],
    "folded": lambda x: (_folded(x, 2, 2, 0), _folded(x, 3, 2, 1)),
    "folded otherwise": lambda x: (_folded(x, 3, 1, 1), _folded(x, 3, 3, 0)),
}


class Asking(nn.Module):
    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name

    def forward(self, x: Tensor) -> Any:
        return CASES[self.name](x)


LONG = ("signals", "folded otherwise", "resized", "rounded", "normal", "variance", "steps", "traced tensor")


@pytest.mark.quick_cases("divided", "len", "roots")
@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in CASES])
def test_sizes_and_values_that_are_asked_for_stay_open(name: str) -> None:
    before = F.max_pool1d, torch.linspace, torch.distributions.Distribution._validate_args
    model = fs.from_torch(Asking(name).eval(), torch.randn(3, 2, 6, 8), ({0: "batch", 2: "height", 3: "width"},))
    assert (F.max_pool1d, torch.linspace, torch.distributions.Distribution._validate_args) == before
    assert globals()["math"] is math and "len" not in globals() and "int" not in globals() and len is builtins.len
    for shape in ((3, 2, 6, 8), (5, 2, 11, 7), (1, 2, 4, 4)):
        x = torch.randn(shape, generator=torch.Generator().manual_seed(1))
        torch.testing.assert_close(model(x), Asking(name)(x), rtol=1e-5, atol=1e-6)


def test_the_slope_of_a_clamped_variance_is_torchs() -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.variance = nn.Parameter(torch.tensor([-1.0, 0.01, 0.2, 3.0]).abs())

        def forward(self, x: Tensor) -> Tensor:
            return F.gaussian_nll_loss(x, x + 1, self.variance, eps=0.1)

    module, x = Loss(), torch.ones(4)
    module(x).backward()
    torch.testing.assert_close(fs.from_torch(module, x, (None,)).gradients(x)["variance"], module.variance.grad)


class Choosing(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        chosen = x[x > 0.5]
        if chosen.numel() == 0:
            return chosen
        return torch.cat([chosen + 1, chosen])


def test_a_size_decided_by_values_is_taken_for_another_than_zero_with_a_warning() -> None:
    with pytest.warns(fs.ForeshapeWarning, match=r"a size decided by values is zero, in .*test_asked_values.py:\d+: the import goes the way of others"):
        model = fs.from_torch(Choosing(), torch.rand(7))
    for x in (torch.linspace(0, 1, 7), torch.zeros(7)):
        torch.testing.assert_close(model(x), Choosing()(x))


class ReadsWhileTraced(nn.Module):
    """Asks a tensor for a size where it is traced, as torchvision's detectors do."""

    def forward(self, x: Tensor) -> Tensor:
        chosen = x[x > 0.5]
        return chosen * (torch._shape_as_tensor(chosen)[0] if torch.jit.is_tracing() else chosen.shape[0])


def test_code_that_reads_values_only_where_it_is_traced_goes_its_other_way() -> None:
    model = fs.from_torch(ReadsWhileTraced(), torch.rand(7))
    for x in (torch.linspace(0, 1, 7), torch.zeros(5)):
        torch.testing.assert_close(model(x), ReadsWhileTraced()(x))
