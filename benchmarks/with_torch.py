"""The workloads in PyTorch: eager with autograd and torch.optim, as its users write it. Variants: eager, fused, compile."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
import workloads
from torch import nn
from torch.nn import functional as F

T = torch.from_numpy


def _parameter(value: np.ndarray) -> nn.Parameter:
    return nn.Parameter(T(value.copy()))


def _linear(weight: np.ndarray, bias: np.ndarray) -> nn.Linear:
    made = nn.Linear(*weight.shape)
    made.weight, made.bias = _parameter(weight.T.copy()), _parameter(bias)
    return made


def _stack(w: workloads.Workload) -> nn.Module:
    layers: list[nn.Module] = []
    for k in range(w.settings["layers"]):
        layers += [_linear(w.parameters[f"w{k}"], w.parameters[f"b{k}"]), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def _images(w: workloads.Workload) -> nn.Module:
    layers: list[nn.Module] = []
    for k, (i, o, stride) in enumerate(workloads.CONVOLUTIONS):
        convolution = nn.Conv2d(i, o, 3, stride, 1)
        convolution.weight, convolution.bias = _parameter(w.parameters[f"c{k}w"]), _parameter(w.parameters[f"c{k}b"])
        layers += [convolution, nn.ReLU()]
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), _linear(w.parameters["fw"], w.parameters["fb"]))


class _Encoder(nn.Module):
    def __init__(self, w: workloads.Workload) -> None:
        super().__init__()
        self.layers = nn.ModuleList(self._layer(w, k) for k in range(w.settings["layers"]))
        self.head = _linear(w.parameters["fw"], w.parameters["fb"])

    @staticmethod
    def _layer(w: workloads.Workload, k: int) -> nn.Module:
        p, s = w.parameters, w.settings
        made = nn.TransformerEncoderLayer(s["width"], s["heads"], s["inner"], dropout=0.0, batch_first=True)
        attention = made.self_attn
        attention.in_proj_weight.data = torch.cat([T(p[f"{k}w{n}"].T.copy()) for n in "qkv"])
        attention.in_proj_bias.data = torch.cat([T(p[f"{k}b{n}"]) for n in "qkv"])
        attention.out_proj.weight.data, attention.out_proj.bias.data = T(p[f"{k}wo"].T.copy()), T(p[f"{k}bo"].copy())
        for target, n in ((made.linear1, "1"), (made.linear2, "2")):
            target.weight.data, target.bias.data = T(p[f"{k}w{n}"].T.copy()), T(p[f"{k}b{n}"].copy())
        return made

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for one in self.layers:
            x = one(x)
        return self.head(x.mean(1))


def build(w: workloads.Workload, variant: str) -> Callable[[int], float]:
    """Make the module and the optimizer; returns the step."""
    torch.set_num_threads(2)
    module = {"stack": _stack, "images": _images, "encoder": _Encoder}[w.kind](w)
    fused = {"fused": True} if variant == "fused" else {}
    parameters = list(module.parameters())
    optimizer: torch.optim.Optimizer
    if w.optimizer == "adam":
        optimizer = torch.optim.Adam(parameters, w.rate, **fused)
    else:
        optimizer = torch.optim.SGD(parameters, w.rate, momentum=w.settings.get("momentum", 0.0), **fused)

    def loss_of(x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(module(x), y)

    compute = torch.compile(loss_of) if variant == "compile" else loss_of
    data = w.data

    def step(i: int) -> float:
        x, y = data[i % len(data)]
        optimizer.zero_grad()
        loss = compute(T(x), T(y))
        loss.backward()
        optimizer.step()
        return loss.item()

    return step
