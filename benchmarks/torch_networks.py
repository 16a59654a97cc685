"""A training step of networks of torch: by `fs.from_torch`, as a module again by `fs.to_torch`, in eager torch, by torch.compile with inductor and Foreshape.

    python benchmarks/torch_networks.py [NETWORK ...] [--seconds 3] [--threads 1] [--batch 8]

One process, in turns; AdamW in each; "compile" is inductor, and "backend" is torch.compile(backend="foreshape"). Ratios to eager torch count: at most 0.9 of
its time and 0.8 of its memory is wanted of an imported ResNet-18, 1.05 of the time of any network, and 1.15 of a module's where eager takes 3 ms or more.
Memory is the parameters, buffers and optimizer state, and the most that torch's allocator has handed out above them within a step; memory of the plan stands
beside. A ResNet-18 is measured if torchvision is installed.
"""

from __future__ import annotations

import argparse
import copy
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

import foreshape as fs

sys.path.insert(0, str(Path(__file__).parents[1] / "tests"))
from support.measured import allocated, sizes_of, step_peak, storage_bytes

RATE = 1e-3
Given = tuple[nn.Module, tuple[Any, ...]]


class Sequences(nn.Module):
    """A recurrent layer, and a number for each sequence."""

    def __init__(self, layer: Callable[..., nn.Module], width: int) -> None:
        super().__init__()
        self.layer, self.out = layer(width, width, batch_first=True), nn.Linear(width, 1)

    def forward(self, x: Any) -> Any:
        return self.out(self.layer(x)[0][:, -1])


def convolutions(batch: int) -> Given:
    parts: list[nn.Module] = []
    for before, after in ((3, 16), (16, 32), (32, 64)):
        parts += [nn.Conv2d(before, after, 3, 2, 1, bias=False), nn.BatchNorm2d(after), nn.ReLU()]
    return nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10)), (torch.randn(batch, 3, 64, 64),)


def transformer(batch: int) -> Given:
    block = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True, norm_first=True, activation="gelu")
    return nn.TransformerEncoder(block, 2, enable_nested_tensor=False), (torch.randn(batch, 64, 128),)


def resnet18(batch: int) -> Given:
    from torchvision.models import resnet18 as made  # type: ignore[import-not-found]

    return made(), (torch.randn(batch, 3, 128, 128),)


NETWORKS: dict[str, Callable[[int], Given]] = {
    "mlp": lambda batch: (nn.Sequential(nn.Linear(256, 512), nn.ReLU(), nn.Linear(512, 10)), (torch.randn(16 * batch, 256),)),
    "convolutions": convolutions,
    "lstm": lambda batch: (Sequences(nn.LSTM, 128), (torch.randn(batch, 64, 128),)),
    "gru": lambda batch: (Sequences(nn.GRU, 128), (torch.randn(batch, 64, 128),)),
    "transformer": transformer,
    **({"resnet18": resnet18} if importlib.util.find_spec("torchvision") is not None else {}),
}


def loss_of(result: Any) -> Any:
    return torch.sin(result).mean()


class WithLoss(nn.Module):
    def __init__(self, network: nn.Module) -> None:
        super().__init__()
        self.network = network

    def forward(self, *inputs: Any) -> Any:
        return loss_of(self.network(*inputs))


class TorchStep:
    """A step of a module, its optimizer one of torch."""

    def __init__(self, module: Any, inputs: tuple[Any, ...], fused: bool = True, is_planned: bool = False) -> None:
        self.module, self.inputs, self.is_planned = module, inputs, is_planned
        self.optimizer = torch.optim.AdamW([p for p in module.parameters() if p.requires_grad], RATE, fused=fused or None)

    def __call__(self) -> float:
        self.optimizer.zero_grad()
        loss = self.module(*self.inputs)
        loss.backward()
        self.optimizer.step()
        return loss.item()

    def peak(self) -> tuple[int, int]:
        self.optimizer.zero_grad()
        state = [t for of in self.optimizer.state.values() for t in of.values() if isinstance(t, torch.Tensor)]
        held = storage_bytes([*self.module.parameters(), *self.module.buffers(), *state, *self.inputs])
        return held + allocated(self), held + max(graph.peak() for graph in fs.torch_report(self.module).graphs) if self.is_planned else 0


class ImportedStep:
    """A step of an imported network."""

    def __init__(self, model: Any, inputs: tuple[Any, ...]) -> None:
        self.main, start = model.program.clone(), fs.Program()
        with fs.program_guard(self.main, start):
            self.loss = self.main.global_block.var(model.loss.name)
            fs.optimizer.AdamW(RATE, weight_decay=0.01).minimize(self.loss)
        self.executor, self.scope, self.feed = fs.Executor(), model.scope, dict(zip(model.feeds, inputs, strict=True))
        self.executor.run(start, scope=self.scope)

    def __call__(self) -> float:
        return float(self.executor.run(self.main, self.feed, [self.loss], self.scope)[0])

    def peak(self) -> tuple[int, int]:
        plan = fs.plan(self.main, [self.loss])
        return step_peak(self.executor, self.main, self.feed, [self.loss], self.scope), plan.peak(**sizes_of(plan, self.executor, self.feed))


def steps_of(network: nn.Module, inputs: tuple[Any, ...]) -> dict[str, Any]:
    whole = WithLoss(network).train()
    dynamic = tuple({0: "batch"} for _ in inputs)
    return {
        "eager": TorchStep(copy.deepcopy(whole), inputs),
        "imported": ImportedStep(fs.from_torch(copy.deepcopy(whole), inputs, dynamic), inputs),
        "to_torch": TorchStep(fs.to_torch(fs.from_torch(copy.deepcopy(whole), inputs, dynamic)).train(), inputs),
        "compile": TorchStep(torch.compile(copy.deepcopy(whole)), inputs),
        "backend": TorchStep(torch.compile(copy.deepcopy(whole), backend="foreshape"), inputs, is_planned=True),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("networks", nargs="*", default=list(NETWORKS))
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--batch", type=int, default=8)
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    ways = ("imported", "to_torch", "compile", "backend")
    print("| network | eager, ms | " + " | ".join(ways) + " | eager, MiB | " + " | ".join(ways) + " | planned by measured |\n|" + "---|" * 12)
    for name in given.networks:
        torch.manual_seed(0)
        steps = steps_of(*NETWORKS[name](given.batch))
        losses = {way: [step() for _ in range(3)][-1] for way, step in steps.items()}
        if max(abs(loss - losses["eager"]) for loss in losses.values()) > 1e-3:
            raise SystemExit(f"{name}: the losses of the third step differ: {losses}")
        peaks = {way: step.peak() for way, step in steps.items()}
        times: dict[str, list[float]] = {way: [] for way in steps}
        until = time.perf_counter() + given.seconds
        while time.perf_counter() < until or len(times["eager"]) < 7:
            for way, step in steps.items():
                began = time.perf_counter()
                step()
                times[way].append(time.perf_counter() - began)
        ratios = [f"{statistics.median(a / b for a, b in zip(times[way], times['eager'], strict=True)):.3f}" for way in ways]
        memory = [f"{peaks[way][0] / peaks['eager'][0]:.3f}" for way in ways]
        planned = ", ".join(f"{peaks[way][1] / peaks[way][0]:.3f}" for way in ("imported", "backend"))
        row = [name, f"{statistics.median(times['eager']) * 1e3:.2f}", *ratios, f"{peaks['eager'][0] / 2**20:.2f}", *memory, planned]
        print(f"| {' | '.join(row)} |", flush=True)


if __name__ == "__main__":
    main()
