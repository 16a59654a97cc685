"""Modules of torch for ``torch.compile``: one for each thing that a compiler of graphs may get wrong, with inputs and inputs of other sizes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

MODULES: dict[str, Callable[[], tuple[nn.Module, Callable[[int], tuple[Any, ...]]]]] = {}
"""Name -> a function for a module, and a function for its inputs of a batch."""


def case(*inputs: Callable[[int], Any], into: dict[str, Any] = MODULES) -> Callable[[type[nn.Module]], type[nn.Module]]:
    """Return a decorator that lists a class of modules with its inputs."""

    def put(cls: type[nn.Module]) -> type[nn.Module]:
        into[cls.__name__] = lambda: (cls(), lambda batch: tuple([part(batch) for part in inputs]))
        return cls

    return put


def floats(*shape: int) -> Callable[[int], Any]:
    return lambda batch: torch.randn(batch, *shape, generator=torch.Generator().manual_seed(batch))


def ids(high: int, *shape: int) -> Callable[[int], Any]:
    return lambda batch: torch.randint(0, high, (batch, *shape), generator=torch.Generator().manual_seed(batch))


@case(floats(12))
class Perceptron(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(12, 20), nn.GELU(), nn.Linear(20, 20), nn.ReLU(), nn.Linear(20, 3))

    def forward(self, x: Any) -> Any:
        return self.layers(x)


@case(floats(3, 10, 12))
class Convolutions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(3, 8, 3, padding=1), nn.Conv2d(8, 8, 3, stride=2, groups=2, bias=False)
        self.n, self.m = nn.BatchNorm2d(8), nn.BatchNorm2d(8, momentum=None)
        self.head = nn.Linear(8, 4)

    def forward(self, x: Any) -> Any:
        h = F.relu(self.n(self.a(x)), inplace=True)
        h = F.max_pool2d(F.silu(self.m(self.b(h))), 2)
        return self.head(h.mean((2, 3)))


@case(floats(4, 6, 6))
class Transposed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.ConvTranspose2d(4, 6, 4, stride=2, padding=1)
        self.norm = nn.GroupNorm(3, 6)

    def forward(self, x: Any) -> Any:
        return torch.tanh(F.interpolate(self.norm(self.up(x)), scale_factor=1.5, mode="bilinear"))


@case(floats(4, 8, 8))
class ChannelsLast(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Conv2d(4, 16, 3), nn.Conv2d(16, 4, 1)

    def forward(self, x: Any) -> Any:
        x = x.to(memory_format=torch.channels_last)
        return self.b(F.hardswish(self.a(x))) * 2


@case(ids(30, 7))
class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.words, self.places = nn.Embedding(30, 16), nn.Parameter(torch.randn(7, 16))
        self.layer = nn.TransformerEncoderLayer(16, 2, 32, dropout=0.0, batch_first=True)
        self.head = nn.Linear(16, 30, bias=False)
        self.head.weight = self.words.weight

    def forward(self, x: Any) -> Any:
        return self.head(self.layer(self.words(x) + self.places))


@case(floats(9, 16))
class Attention(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv, self.out, self.norm = nn.Linear(16, 48), nn.Linear(16, 16), nn.LayerNorm(16)

    def forward(self, x: Any) -> Any:
        q, k, v = self.qkv(self.norm(x)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        mask = torch.ones(x.shape[1], x.shape[1], dtype=torch.bool).tril()
        return x + self.out(F.scaled_dot_product_attention(q, k, v, attn_mask=mask).transpose(1, 2).flatten(2))


@case(floats(20))
class Dropped(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(20, 32), nn.Linear(32, 5)

    def forward(self, x: Any) -> Any:
        h = F.dropout(torch.relu(self.a(x)), 0.3, self.training)
        return self.b(h) + torch.randn_like(self.b(h)) * 0.1


@case(floats(6))
class Counting(nn.Module):
    """Buffers that change in place, one of them read before and after."""

    calls: Any
    mean: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)
        self.register_buffer("calls", torch.zeros((), dtype=torch.int64))
        self.register_buffer("mean", torch.zeros(6))

    def forward(self, x: Any) -> Any:
        self.calls += 1
        before = self.mean * 2
        self.mean.mul_(0.9).add_(x.detach().mean(0), alpha=0.1)
        return self.layer(x) - self.mean + before + self.calls


@case(floats(5, 4))
class InPlace(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(4))

    def forward(self, x: Any) -> Any:
        h = (x * self.w).clone()
        h[:, 1] += 1.0
        h[:, 2:].mul_(0.5)
        view = h.view(-1, 4)
        view[::2].sub_(0.5)
        return h.sigmoid_(), view.sum(1)


@case(floats(8))
class Aliases(nn.Module):
    """Results that are an input, a view of one, views of each other, and one value twice."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        return h, h.view(-1, 2, 4), h[:, :3], x, x.t(), h.detach(), {"again": h, "parameter": self.layer.weight}


@case(floats(6), ids(6))
class Gathered(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(6, 6))

    def forward(self, x: Any, i: Any) -> Any:
        rows = self.table[i] + x
        picked = rows.gather(1, i[:, None])
        summed = torch.zeros_like(self.table).index_add(0, i, rows).scatter_add(0, i[:, None].expand(-1, 6), x)
        return picked, summed.cumsum(0), torch.where(x > 0, rows, -rows), rows.topk(2, 1)[0], rows.sort(1, descending=True)


@case(floats(3, 4), floats(4, 5))
class Einsum(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 2))

    def forward(self, x: Any, y: Any) -> Any:
        return torch.einsum("bij,bjk,kl->bil", x, y, self.w).logsumexp(-1), torch.baddbmm(x @ y, x, y, alpha=0.5)


@case(floats(16))
class Spectrum(nn.Module):
    """Complex values within."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(9, 2))

    def forward(self, x: Any) -> Any:
        f = torch.fft.rfft(x) * torch.view_as_complex(self.w)
        return torch.fft.irfft(f, 16), f.abs()


class _Scaled(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, factor: float) -> Any:
        ctx.save_for_backward(x)
        ctx.factor = factor
        return x * factor

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        (x,) = ctx.saved_tensors
        return d * 100 * x, None  # no gradient of the forward pass: its own counts


@case(floats(7))
class OwnBackward(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x: Any) -> Any:
        return _Scaled.apply(self.layer(x), 3.0)


@case(floats(7))
class Hooked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(7, 7)

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        if h.requires_grad:
            h.register_hook(lambda d: d.clamp(-0.01, 0.01))
        return h.exp()


@case(floats(7))
class Branched(nn.Module):
    """Python's own branch on a value: two graphs."""

    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(7, 7), nn.Linear(7, 7)

    def forward(self, x: Any) -> Any:
        h = self.a(x)
        return self.b(h) if h.sum() > 0 else self.b(-h) * h.abs().max().item()


class Physics(nn.Module):
    """A gradient with respect to an input within the forward pass, and its own gradient."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(2, 16), nn.Tanh(), nn.Linear(16, 1))

    def forward(self, x: Any) -> Any:
        with torch.enable_grad():
            x = x.detach().requires_grad_()
            u = self.layers(x)
            (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        return u + slope[:, :1] - slope[:, 1:]


@case(floats(4, 12))
class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Any) -> Any:
        return self.b(checkpoint(lambda h: F.dropout(F.gelu(self.a(h)), 0.2, self.training), x, use_reentrant=False))


@case(floats(6))
class Contrast(nn.Module):
    """Sizes computed from the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)

    def forward(self, x: Any) -> Any:
        z = F.normalize(torch.cat([self.layer(x), self.layer(x * 1.1)]), dim=1)
        n = x.shape[0]
        scores = (z @ z.t() / 0.5).masked_fill(torch.eye(2 * n, dtype=torch.bool), -1e9)
        return F.cross_entropy(scores, torch.arange(2 * n).roll(n)) * (n / 2)


@case(floats(5))
class Untracked(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(5, 5), nn.Linear(5, 5)
        self.b.weight.requires_grad_(False)

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            teacher = self.a(x).softmax(1)
        return F.kl_div(self.b(self.a(x)).log_softmax(1), teacher, reduction="batchmean"), teacher


@case(floats(6, 8))
class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.cell, self.layer = nn.GRUCell(8, 8), nn.LSTM(8, 8, batch_first=True)

    def forward(self, x: Any) -> Any:
        h = torch.zeros(x.shape[0], 8)
        for step in x.unbind(1):
            h = self.cell(step, h)
        return self.layer(x)[0] + h[:, None]


@case(ids(50, 4))
class Bag(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.bag, self.table = nn.EmbeddingBag(50, 6, mode="mean"), nn.Embedding(50, 6, padding_idx=0)

    def forward(self, x: Any) -> Any:
        return self.bag(x) + self.table(x).max(1).values


@case(lambda batch: floats(4, 6)(batch).double())
class Doubled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6).double()

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        return h.float().half().float() + h, h.std(1), h.var(-1, keepdim=True), h.norm(dim=1), h.median(1).values, h.amax(1)


@case(floats(6, 6))
class Matrices(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.eye(6) * 3)

    def forward(self, x: Any) -> Any:
        a = x @ x.transpose(1, 2) + torch.eye(6)
        return torch.linalg.solve(a, self.w.expand_as(a)), torch.linalg.cholesky(a).diagonal(dim1=1, dim2=2).log(), torch.linalg.det(a)


@case(floats(10), ids(4))
class Weighted(nn.Module):
    weights: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(10, 4)
        self.register_buffer("weights", torch.tensor([1.0, 2.0, 0.5, 1.5]))

    def forward(self, x: Any, target: Any) -> Any:
        scores = self.layer(x)
        return F.cross_entropy(scores, target, self.weights, label_smoothing=0.1), F.one_hot(target, 4) * scores, scores.argmax(1)


@case(floats(3, 9))
class Padded(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv1d(3, 4, 3, dilation=2, padding="same"), nn.InstanceNorm1d(4, affine=True, track_running_stats=True)

    def forward(self, x: Any) -> Any:
        h = self.norm(self.conv(F.pad(x, (2, 1), mode="reflect")))
        return F.adaptive_avg_pool1d(h, 4), F.unfold(h[:, :, None], (1, 2)), h.flip(2).roll(1, 2)


@case(floats(8))
class Constants(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        table = torch.tensor([1.0, -1.0] * 4)
        return self.layer(x) * table, torch.arange(x.shape[0]), x.shape[0], None, torch.full((2,), float("inf"))


@case(floats(8))
class Overwritten(nn.Module):
    """An input that the network changes."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        h = self.layer(x.clone())
        x.add_(1.0)
        return h * x.detach().mean()


@case(floats(4, 8))
class Casted(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(8, 8), nn.Linear(8, 8)

    def forward(self, x: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            h = torch.relu(self.a(x))
        return self.b(h.float())


@case(floats(3))
class Fixed(nn.Module):
    """A graph that reads no input."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 3)

    def forward(self, x: Any) -> Any:
        table = torch.arange(6.0).view(2, 3) * 2
        torch._dynamo.graph_break()
        return self.layer(x)[:1] + table
