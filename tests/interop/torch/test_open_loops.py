"""Loops of a network's code over an open size: one loop of the program, for any number of rounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foreshape as fs


class Over(nn.Module):
    """A recurrence written as a loop over the words, ``[batch, words, 4]``."""

    def __init__(self, name: str) -> None:
        super().__init__()
        self.name = name
        torch.manual_seed(0)
        self.cell, self.gates, self.turn = nn.GRUCell(4, 3), nn.LSTMCell(4, 3), nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Any:
        return LOOPS[self.name](self, x)


def _stacked(net: Over, x: Tensor) -> Any:
    h, out = x.new_zeros(x.shape[0], 3), []
    for t in range(x.shape[1]):
        h = net.cell(x[:, t], h)
        out.append(h)
    return torch.stack(out, 1) * 2, h


def _without_state(net: Over, x: Tensor) -> Any:
    state, out = None, []
    for t in range(x.size(1)):
        state = net.gates(x[:, t], state)
        out.append(net.turn(state[0]))
    return torch.stack(out, dim=-1), state


def _written(net: Over, x: Tensor) -> Tensor:
    decay, out = x[:, 0] * 0, torch.zeros_like(x)
    for t in range(x.shape[1]):
        decay = decay * 0.5 + x[:, t]
        out[:, t] = decay
    return net.turn(net.turn.weight.new_ones(3)) + out


def _windows(net: Over, x: Tensor) -> Tensor:
    out = []
    for t in range(1, x.shape[1]):
        out.append(torch.tanh(x[:, t - 1 : t + 1]).sum(1, keepdim=True) * t)
    return torch.cat(out, 1)


def _met_again(net: Over, x: Tensor) -> Tensor:
    h, out = x.new_zeros(x.shape[0], 3), []
    for t in range(x.shape[1]):
        h = net.cell(x[:, t], h)
        out.append(h)
    first = net.turn(torch.stack(out, dim=1)) + x * torch.arange(x.shape[1])[:, None]
    out = [torch.sin(first[:, :1])]
    for t in range(x.shape[1]):
        h = net.cell(first[:, t], h)
        out.append(net.turn(h)[:, None])
    return torch.cat(out, 1)[:, 1:] + first


def _unbound(net: Over, x: Tensor) -> Tensor:
    h, out = x.new_zeros(x.shape[0], 3), []
    for t, word in enumerate(x.unbind(1)):
        h = net.cell(word, h)
        out.append(h * t)
    return torch.cat([torch.stack(out, 1), h[:, None]], 1)


def _split(net: Over, x: Tensor) -> Tensor:
    out = []
    for word in x.split(1, dim=1):
        out += [net.turn(net.cell(word[:, 0]))]
    return torch.stack(out).transpose(0, 1) + x


def _iterated(net: Over, x: Tensor) -> Tensor:
    return torch.stack([torch.sin(net.cell(word)) for word in x.transpose(0, 1)], 2)


def _two(net: Over, x: Tensor) -> Tensor:
    h, seen = x[:, 0], []
    for t in range(x.shape[1]):
        h = torch.sin(h + x[:, t])
        seen.append(h)
    for t in range(x.shape[1]):
        h = h * seen[0] + x[:, t] * x.shape[1]
    return h


LOOPS: dict[str, Callable[[Over, Tensor], Any]] = {
    "stacked": _stacked,
    "without a state": _without_state,
    "written": _written,
    "windows": _windows,
    "met again": _met_again,
    "unbound": _unbound,
    "split": _split,
    "iterated": _iterated,
}
"""Rolled up."""


def _leaks(net: Over, x: Tensor) -> Tensor:
    t = 0
    for t in range(x.shape[1]):
        x = x * 1.5 + t
    return x + t


def _listed(net: Over, x: Tensor) -> Tensor:
    return x + torch.tensor(list(range(x.shape[1])), dtype=torch.float32)[:, None]


def _chosen(net: Over, x: Tensor) -> Tensor:
    h = x[:, 0]
    for t in range(x.shape[1]):
        h = h + x[:, t] if t % 2 else h * x[:, t]
    return h


def _first_of_all(net: Over, x: Tensor) -> Tensor:
    seen = []
    for t in range(x.shape[1]):
        seen.append(x[:, t] * 2)
    return seen[1] + seen[-2]


def _broken(net: Over, x: Tensor) -> Tensor:
    h = x[:, 0]
    for t in range(x.shape[1]):
        if t == 4:
            break
        h = h * 0.5 + x[:, t]
    return h


def _of_others(net: Over, x: Tensor) -> Tensor:
    h = x[:, 0]
    for t in range(x.shape[1]):
        h = torch.sin(h + x[:, t])
    return torch.stack([h * n for n in range(10)], 1)  # as many as the rounds of the trace


def _reversed(net: Over, x: Tensor) -> Tensor:
    parts = x.split(1, 1)
    return torch.cat([*parts[1:], parts[0]], 1) + torch.cat(parts, 1) * len(parts) + torch.stack(x.unbind(1), 1)


def _pairs(net: Over, x: Tensor) -> Tensor:
    return torch.stack([a * b for a, b in zip(x.unbind(1), x.flip(1).unbind(1), strict=True)], 1)


WRITTEN_OUT: dict[str, Callable[[Over, Tensor], Any]] = {
    "leaks": _leaks,
    "listed": _listed,
    "broken": _broken,
    "chosen": _chosen,
    "first of all": _first_of_all,
    "two": _two,
    "of others": _of_others,
    "reversed": _reversed,
    "pairs": _pairs,
}
LOOPS |= WRITTEN_OUT


LONG = (
    "of others",
    "reversed",
    "written",
    "stacked",
    "without a state",
    "chosen",
    "first of all",
    "two",
    "windows",
    "leaks",
    "broken",
    "pairs",
    "iterated",
    "split",
    "met again",
    "unbound",
)


@pytest.mark.parametrize("name", [pytest.param(n, marks=pytest.mark.long) if n in LONG else n for n in LOOPS])
def test_a_loop_over_an_open_size_takes_all_sizes_or_says_that_it_does_not(name: str) -> None:
    net = Over(name)
    model = fs.from_torch(net, torch.randn(2, 5, 4), ({0: "batch", 1: "words"},))
    for batch, words in ((2, 5), (3, 9), (2, 2)):
        x = torch.randn(batch, words, 4, generator=torch.Generator().manual_seed(1))
        if name in WRITTEN_OUT and words != 5:
            with pytest.raises(fs.GuardError, match="test_open_loops"):
                model(x)
        else:
            torch.testing.assert_close(model(x), net(x), rtol=1e-5, atol=1e-6)


@pytest.mark.long
@pytest.mark.parametrize("name", ["written", "stacked", "without a state"])
def test_gradients_flow_through_a_rolled_loop(name: str) -> None:
    class Loss(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.net = Over(name)

        def forward(self, x: Tensor) -> Tensor:
            out = self.net(x)
            return (out if isinstance(out, Tensor) else out[0]).sin().mean()

    net = Loss()
    model = fs.from_torch(net, torch.randn(2, 5, 4), ({0: "batch", 1: "words"},))
    x = torch.randn(3, 8, 4)
    seen = model.gradients(x)
    net(x).backward()
    for parameter, value in net.named_parameters():
        if value.grad is not None:
            torch.testing.assert_close(torch.as_tensor(seen[parameter]), value.grad, rtol=1e-4, atol=1e-6)
