"""What goes step by step: torch's scans and maps, and recurrent layers with projections, at other lengths and batches than traced."""

from __future__ import annotations

import copy
import importlib
from typing import Any

import pytest
import torch
from torch import nn

import foreshape as fs

scan: Any = importlib.import_module("torch._higher_order_ops.scan").scan
each: Any = importlib.import_module("torch._higher_order_ops.map").map


class Scanned(nn.Module):
    batch_first = False

    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        def step(h: Any, row: Any) -> Any:
            h = torch.tanh(self.inner(h) + row)
            return h, h * 2

        last, rows = scan(step, torch.zeros_like(x[0]), x)
        mapped = each(lambda row: torch.sin(self.inner(row)) + 1, x)
        return rows.sin().mean() + last.sum() + mapped.mean(), rows, mapped, last


class Projected(nn.Module):
    def __init__(self, **form: Any) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 4, proj_size=2, **form)
        self.batch_first = self.layer.batch_first

    def forward(self, x: Any) -> Any:
        out, (h, c) = self.layer(x)
        return out.sin().mean() + h.square().mean() + c.mean(), out, h, c


CASES = {
    "scan": Scanned,
    "projected": Projected,
    "projected both ways": lambda: Projected(num_layers=2, bidirectional=True, batch_first=True, bias=False),
}


@pytest.mark.quick_cases("False-projected")
@pytest.mark.parametrize("case", [pytest.param(n, marks=pytest.mark.long) if " " in n else n for n in CASES])
@pytest.mark.parametrize("opened", [pytest.param(True, marks=pytest.mark.long), False])
def test_steps_are_torchs(case: str, opened: bool) -> None:
    torch.manual_seed(2)
    module = CASES[case]()
    time, batch = (1, 0) if module.batch_first else (0, 1)

    def given(steps: int, sequences: int) -> Any:
        return torch.randn((sequences, steps, 3) if module.batch_first else (steps, sequences, 3))

    example = given(4, 3)
    model = fs.from_torch(copy.deepcopy(module), (example,), ({time: "time", batch: "batch"} if opened else {batch: "batch"},))
    assert not model.missing
    for x in (example, given(12 if opened else 4, 5)):
        wanted = module(x)
        for made, like in zip(model(x), wanted, strict=True):
            torch.testing.assert_close(made, like.detach(), rtol=1e-5, atol=1e-5)
        module.zero_grad()
        wanted[0].backward()
        found = model.gradients(x)
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(found[name], parameter.grad, rtol=1e-4, atol=1e-6)
