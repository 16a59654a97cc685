"""Small modules of torch that train in each way that modules do, torch's own loop, and ours."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

import foreshape as fs

CLASSES = 4


class Pictures(nn.Module):
    def __init__(self, middle: nn.Module | None = None) -> None:
        super().__init__()
        self.conv, self.out = nn.Conv2d(3, 6, 3, bias=False), nn.Linear(6, CLASSES)
        if middle is not None:
            self.middle = middle

    def changed(self, x: torch.Tensor) -> torch.Tensor:
        return self.middle(x) if hasattr(self, "middle") else x

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(torch.tanh(self.changed(self.conv(x))).mean((2, 3)))


class Images(nn.Module):
    """Statistics of several kinds, a frozen layer, a frozen normalization, a tied weight, and a buffer that changes in each call."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 6, 3, bias=False)
        self.cumulative, self.fast = nn.BatchNorm2d(6, momentum=None), nn.BatchNorm2d(6, momentum=0.3)
        self.instances = nn.InstanceNorm2d(6, affine=True, track_running_stats=True)
        self.fixed = nn.BatchNorm2d(6)
        self.frozen, self.out, self.again = nn.Linear(6, 6).requires_grad_(False), nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.out.weight
        self.register_buffer("seen", torch.zeros(()))
        self.register_buffer("scale", torch.linspace(0.5, 1.5, 6), persistent=False)
        self.train()

    def train(self, mode: bool = True) -> nn.Module:
        super().train(mode)
        self.fixed.eval()
        return self

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.seen += x.shape[0]
        x = self.fixed(torch.relu(self.instances(self.fast(self.cumulative(self.conv(x))))))
        return self.again(torch.tanh(self.out(self.frozen(x.mean((2, 3)) * self.scale)))) * torch.tensor([1.0, 2.0, 1.0, 3.0, 1.0, 1.0])


class Words(nn.Module):
    """A transformer with the embedding's weight as its last one, without dropout."""

    def __init__(self) -> None:
        super().__init__()
        self.words = nn.Embedding(20, 8)
        self.block = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0, batch_first=True, norm_first=True, bias=False)
        self.last = nn.Linear(8, 20, bias=False)
        self.last.weight = self.words.weight

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        return self.last(self.block(self.words(ids)))[:, -1]


class Sequences(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.lstm, self.out = nn.LSTM(5, 6, batch_first=True), nn.Linear(6, CLASSES)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.out(self.lstm(x)[0][:, -1])


class Drops(nn.Module):
    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return F.dropout(x, self.p, self.training)


class Tied(nn.Module):
    """One weight under two names, and one used as it is and transposed."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.middle, self.again = nn.Linear(5, 6), nn.Linear(6, 6), nn.Linear(6, 6)
        self.again.weight = self.middle.weight

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = torch.tanh(self.again(torch.tanh(self.middle(torch.tanh(self.first(x[:, 0]))))))
        return F.linear(x, self.first.weight.t())


class Frozen(Pictures):
    """A weight, a bias and the scale of a normalization that learn nothing."""

    def __init__(self) -> None:
        super().__init__(nn.BatchNorm2d(6).requires_grad_(False))
        self.out.bias.requires_grad_(False)
        self.unread = nn.Linear(2, 2)
        self.register_buffer("unread_too", torch.arange(5))


class Counts(nn.Module):
    """Buffers that change alike whatever comes in: a count, and one that no state_dict has."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("scale", torch.ones(()), persistent=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        self.scale.mul_(0.75)
        return x * self.scale + self.calls


class Averages(nn.Module):
    """Buffers that follow the inputs: written in place in a region without gradients, and put anew."""

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("kept", torch.zeros(6))
        self.register_buffer("put", torch.zeros(6))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            self.kept.mul_(0.9).add_(x.mean((0, 2, 3)), alpha=0.1)
            size = x.abs().mean()
        before = self.put
        self.put = 0.9 * self.put + 0.1 * x.detach().mean((0, 2, 3))
        return (x - self.kept[:, None, None] + self.put[:, None, None]) / size - before[:, None, None]


class Spectral(Pictures):
    """A weight over its largest singular value, found step by step in buffers without gradients."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.utils.spectral_norm(self.out)


KINDS: dict[str, Callable[[], nn.Module]] = {
    "images": Images,
    "words": Words,
    "sequences": Sequences,
    "dropout_0": lambda: Pictures(Drops(0.0)),
    "dropout": lambda: Pictures(Drops(0.25)),
    "batch_norm": lambda: Pictures(nn.BatchNorm2d(6)),
    "batch_norm_cumulative": lambda: Pictures(nn.BatchNorm2d(6, momentum=None)),
    "batch_norm_plain": lambda: Pictures(nn.BatchNorm2d(6, affine=False)),
    "batch_norm_untracked": lambda: Pictures(nn.BatchNorm2d(6, track_running_stats=False)),
    "tied": Tied,
    "frozen": Frozen,
    "counts": lambda: Pictures(Counts()),
    "averages": lambda: Pictures(Averages()),
    "spectral": Spectral,
}
SHAPES = {"words": None, "sequences": (4, 5), "tied": (1, 5), "images": (3, 7, 6)}
OPTIMIZERS: dict[str, tuple[Any, Any]] = {
    "SGD": (lambda p: torch.optim.SGD(p, 0.1), lambda: fs.optimizer.SGD(0.1)),
    "AdamW": (lambda p: torch.optim.AdamW(p, 0.01, eps=1e-3, weight_decay=0.01), lambda: fs.optimizer.AdamW(0.01, epsilon=1e-3, weight_decay=0.01)),
}


def data_of(kind: str, steps: int = 4, batch: int = 8) -> tuple[torch.Tensor, torch.Tensor]:
    """Return inputs and classes of so many steps."""
    torch.manual_seed(1)
    shape, count = SHAPES.get(kind, (3, 6, 5)), steps * batch
    x = torch.randint(0, 20, (count, 5)) if shape is None else torch.randn(count, *shape)
    return x, torch.randint(0, CLASSES, (count,))


def made(kind: str) -> nn.Module:
    """Return a module of a kind, always the same."""
    torch.manual_seed(0)
    return KINDS[kind]()


def brought(module: nn.Module, x: torch.Tensor, y: torch.Tensor) -> Any:
    """Return the module with the loss of classes as a model; nothing is warned of but code that asks whether it is trained."""
    with warnings.catch_warnings():
        warnings.simplefilter("error", fs.ForeshapeWarning)
        warnings.filterwarnings("ignore", "the network's code asks whether it is trained", fs.ForeshapeWarning)
        return fs.from_torch(module, (x[:8],), loss=F.cross_entropy, targets=y[:8])


def trained(model: Any, x: torch.Tensor, y: torch.Tensor, optimizer: Any, **settings: Any) -> fs.History:
    """Train a model in batches of 8, in order."""
    data = {model.feeds[0]: x.numpy(), model.targets[0]: y.numpy()}
    chosen: dict[str, Any] = {"batch_size": 8, "shuffle": False, "progress": False, "scope": model.scope, **settings}
    return fs.train(model.loss, data, optimizer=optimizer, **chosen)


def torch_trained(module: nn.Module, x: torch.Tensor, y: torch.Tensor, optimizer: Any, precision: str = "fp32", accumulate: int = 1) -> list[float]:
    """Train a module by torch's own loop, and return the losses."""
    losses: list[float] = []
    optimizer.zero_grad()
    for at, (part, labels) in enumerate(zip(x.split(8), y.split(8), strict=True), 1):
        with torch.autocast("cpu", torch.bfloat16, enabled=precision == "bf16"):
            loss = F.cross_entropy(module(part), labels)
        (loss / accumulate).backward()
        losses.append(loss.item())
        if at % accumulate == 0:
            optimizer.step()
            optimizer.zero_grad()
    return losses


def check_state(seen: Mapping[str, torch.Tensor], want: Mapping[str, torch.Tensor], **within: Any) -> None:
    """Compare two state_dicts: names, element types and values."""
    assert list(seen) == list(want)
    for name, value in want.items():
        torch.testing.assert_close(seen[name], value, msg=lambda text, name=name: f"{name}: {text}", **within)


def reference(kind: str, optimizer: str, precision: str = "fp32", accumulate: int = 1) -> tuple[nn.Module, list[float]]:
    """Return a module trained by torch's own loop, and its losses."""
    module = copy.deepcopy(made(kind))
    learning = [p for p in module.parameters() if p.requires_grad]
    return module, torch_trained(module, *data_of(kind), OPTIMIZERS[optimizer][0](learning), precision, accumulate)
