"""Modules of many kinds of networks for ``torch.compile``, each with its inputs: for the longer tests."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrizations

from support import compiled_modules
from support.compiled_modules import floats, ids

MORE_MODULES: dict[str, Callable[[], tuple[nn.Module, Callable[[int], tuple[Any, ...]]]]] = {}
"""As `support.compiled_modules.MODULES`."""


case = partial(compiled_modules.case, into=MORE_MODULES)


@case(floats(8))
class Flow(nn.Module):
    """A normalizing flow of couplings, with the logarithm of its determinant."""

    order: Any

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Sequential(nn.Linear(4, 16), nn.Tanh(), nn.Linear(16, 8)) for _ in range(3))
        self.register_buffer("order", torch.randperm(8))
        self.mixing = nn.Parameter(torch.eye(8) + 0.1 * torch.randn(8, 8))

    def forward(self, x: Any) -> Any:
        logdet = x.new_zeros(x.shape[0]) + torch.linalg.slogdet(self.mixing)[1]
        x = x @ self.mixing
        for layer in self.layers:
            kept, changed = x.chunk(2, 1)
            scale, shift = layer(kept).chunk(2, 1)
            logdet = logdet + scale.tanh().sum(1)
            x = torch.cat([kept, changed * scale.tanh().exp() + shift], 1)[:, self.order]
        return x, logdet


@case(floats(12))
class Variational(nn.Module):
    """Distributions of torch, and a loss left to its default."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Linear(12, 8), nn.Linear(4, 12)

    def forward(self, x: Any) -> Any:
        mean, log_variance = self.encoder(x).chunk(2, -1)
        posterior = torch.distributions.Normal(mean, (0.5 * log_variance).exp())
        prior = torch.distributions.Normal(torch.zeros_like(mean), torch.ones_like(mean))
        decoded = self.decoder(posterior.rsample())
        return decoded, torch.distributions.kl_divergence(posterior, prior).sum(1), F.binary_cross_entropy_with_logits(decoded, x.sigmoid())


@case(floats(5, 6))
class Quantized(nn.Module):
    """The nearest vectors of a table that moves along, and a gradient straight through."""

    table: Any
    counts: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 4)
        self.register_buffer("table", torch.randn(9, 4))
        self.register_buffer("counts", torch.ones(9))

    def forward(self, x: Any) -> Any:
        h = self.layer(x)
        rows = h.reshape(-1, 4)
        nearest = torch.cdist(rows, self.table).argmin(1)
        vectors = F.embedding(nearest, self.table).view_as(h)
        if self.training:
            with torch.no_grad():
                hits = F.one_hot(nearest, 9).type_as(rows)
                self.counts.mul_(0.9).add_(hits.sum(0), alpha=0.1)
                self.table.lerp_(hits.t() @ rows / self.counts[:, None], 0.1)
        return h + (vectors - h).detach(), F.mse_loss(vectors.detach(), h), nearest.view(h.shape[:-1])


@case(floats(3, 8, 10))
class FourierOperator(nn.Module):
    """Assignments to parts of complex numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.w, self.layer = nn.Parameter(torch.randn(3, 5, 4, 3, dtype=torch.cfloat) * 0.1), nn.Conv2d(3, 5, 1)

    def forward(self, x: Any) -> Any:
        spectrum = torch.fft.rfft2(x)
        out = torch.zeros(x.shape[0], 5, *spectrum.shape[2:], dtype=torch.cfloat)
        out[:, :, :4, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, :4, :3], self.w)
        out[:, :, -4:, :3] = torch.einsum("bixy,ioxy->boxy", spectrum[:, :, -4:, :3], self.w.conj())
        return F.gelu(torch.fft.irfft2(out, s=x.shape[-2:]) + self.layer(x))


@case(floats(12, 4))
class StateSpace(nn.Module):
    """A long convolution by transforms of twice the length, of a complex kernel."""

    def __init__(self) -> None:
        super().__init__()
        self.c, self.decay = nn.Parameter(torch.randn(4, 8, 2)), nn.Parameter(torch.zeros(4, 8))
        self.frequency, self.step = nn.Parameter(torch.pi * torch.arange(8.0).repeat(4, 1)), nn.Parameter(torch.full((4,), -2.0))

    def forward(self, x: Any) -> Any:
        x, length = x.transpose(1, 2), x.shape[1]
        a = torch.complex(-self.decay.exp(), self.frequency)
        steps = a * self.step.exp()[:, None]
        c = torch.view_as_complex(self.c) * (steps.exp() - 1.0) / a
        kernel = 2 * torch.einsum("hn,hnl->hl", c, torch.exp(steps[..., None] * torch.arange(length))).real
        y = torch.fft.irfft(torch.fft.rfft(x, n=2 * length) * torch.fft.rfft(kernel, n=2 * length), n=2 * length)
        return y[..., :length].transpose(1, 2)


@case(floats(5, 8))
class Routed(nn.Module):
    """Experts for the best two of four."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.w = nn.Linear(8, 4), nn.Parameter(torch.randn(4, 8, 8) * 0.2)

    def forward(self, x: Any) -> Any:
        rows = x.reshape(-1, 8)
        chances = self.gate(rows).softmax(-1)
        values, places = chances.topk(2, -1)
        weights = torch.zeros_like(chances).scatter(1, places, values / values.sum(-1, keepdim=True))
        load = 4 * (F.one_hot(places[:, 0], 4).float().mean(0) * chances.mean(0)).sum()
        return torch.einsum("ne,nd,edh->nh", weights, rows, self.w).view_as(x), load


@case(floats(4))
class Messages(nn.Module):
    """Attention along the edges of a graph."""

    edges: Any

    def __init__(self) -> None:
        super().__init__()
        self.layer, self.score = nn.Linear(4, 8), nn.Parameter(torch.randn(16))
        self.register_buffer("edges", torch.stack([torch.arange(3).repeat(3), torch.arange(3).repeat_interleave(3)]))

    def forward(self, x: Any) -> Any:
        h, (left, right) = self.layer(x), self.edges
        scores = F.leaky_relu(torch.cat([h[left], h[right]], 1) @ self.score)
        highest = torch.full((x.shape[0],), -1e9).scatter_reduce(0, right, scores.detach(), "amax")
        weights = (scores - highest[right]).exp()
        sums = torch.zeros(x.shape[0]).index_add(0, right, weights)
        means = torch.zeros_like(h).scatter_reduce_(0, right[:, None].expand(-1, 8), h[left], "mean", include_self=False)
        return torch.zeros_like(h).index_add_(0, right, (weights / sums[right])[:, None] * h[left]) + means


@case(floats(7, 2))
class Filter(nn.Module):
    """A Kalman filter: factors and solutions of small matrices, step by step."""

    def __init__(self) -> None:
        super().__init__()
        self.motion, self.seen = nn.Parameter(torch.eye(3) + 0.1 * torch.randn(3, 3)), nn.Parameter(torch.randn(2, 3))
        self.noise = nn.Parameter(torch.zeros(3))

    def forward(self, y: Any) -> Any:
        mean, spread = torch.zeros(y.shape[0], 3), torch.eye(3).expand(y.shape[0], 3, 3)
        likelihood = torch.zeros(y.shape[0])
        for step in y.unbind(1):
            mean = mean @ self.motion.t()
            spread = self.motion @ spread @ self.motion.t() + torch.diag_embed(self.noise.exp())
            factor = torch.linalg.cholesky(self.seen @ spread @ self.seen.t() + torch.eye(2))
            difference = step - mean @ self.seen.t()
            normal = torch.distributions.MultivariateNormal(torch.zeros(2), scale_tril=factor, validate_args=False)
            likelihood = likelihood + normal.log_prob(difference)
            gain = torch.cholesky_solve(self.seen @ spread, factor).mT
            mean, spread = mean + (gain @ difference[..., None])[..., 0], spread - gain @ self.seen @ spread
        return mean, likelihood


@case(floats(9, 6), ids(5, 3))
class Transcribed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 6)

    def forward(self, x: Any, y: Any) -> Any:
        scores = self.layer(x).log_softmax(-1).transpose(0, 1)
        return F.ctc_loss(scores, y + 1, torch.full((x.shape[0],), 9), torch.full((x.shape[0],), 3), zero_infinity=True), scores


@case(floats(6), ids(5))
class Margins(nn.Module):
    """Losses of distances and angles."""

    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(5, 6))

    def forward(self, x: Any, y: Any) -> Any:
        angles = torch.acos(F.linear(F.normalize(x), F.normalize(self.w)).clamp(-0.99, 0.99))
        shifted, rows = angles.cos(), torch.arange(x.shape[0])
        shifted[rows, y] = torch.cos(angles[rows, y] + 0.5)
        distances = torch.cdist(x @ self.w.t(), x @ self.w.t())
        return F.cross_entropy(shifted * 16, y, reduction="none"), (distances * (y[:, None] == y)).max(1)[0], F.multi_margin_loss(shifted, y)


@case(floats(4, 6, 6))
class Dynamic(nn.Module):
    """A convolution with filters of its own for each image, in as many groups."""

    def __init__(self) -> None:
        super().__init__()
        self.gate, self.w = nn.Linear(4, 3), nn.Parameter(torch.randn(3, 5, 4, 3, 3) * 0.2)

    def forward(self, x: Any) -> Any:
        filters = torch.einsum("bk,koihw->boihw", self.gate(x.mean((2, 3))).softmax(1), self.w)
        return F.conv2d(x.reshape(1, -1, 6, 6), filters.reshape(-1, 4, 3, 3), padding=1, groups=x.shape[0]).view(x.shape[0], 5, 6, 6)


@case(floats(8, 12))
class Rotated(nn.Module):
    """Attention with places as turns of complex numbers, and a bias of distances."""

    def __init__(self) -> None:
        super().__init__()
        self.q, self.kv = nn.Linear(12, 12), nn.Linear(12, 12)

    def forward(self, x: Any) -> Any:
        batch, length, _ = x.shape
        places = torch.arange(length)
        angles = torch.outer(places.float(), 0.01 ** (torch.arange(3) / 3))
        turns = torch.polar(torch.ones_like(angles), angles)
        q = torch.view_as_complex(self.q(x).view(batch, length, 2, 3, 2).transpose(1, 2)) * turns
        k, v = self.kv(x).view(batch, length, 1, 2, 6).transpose(1, 2).unbind(3)
        k = torch.view_as_complex(k.reshape(batch, 1, length, 3, 2)) * turns
        bias = -(places[:, None] - places).abs() * torch.tensor([0.5, 0.25])[:, None, None]
        mask = bias.masked_fill(torch.ones(length, length).triu(1).bool(), float("-inf"))
        q, k = torch.view_as_real(q).flatten(3), torch.view_as_real(k).flatten(3).repeat_interleave(2, 1)
        return F.scaled_dot_product_attention(q, k, v.repeat_interleave(2, 1), mask, scale=0.3)


@case(floats(8))
class Parametrized(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = parametrizations.weight_norm(nn.Linear(8, 8)), parametrizations.spectral_norm(nn.Linear(8, 8))
        self.c = parametrizations.orthogonal(nn.Linear(8, 4))

    def forward(self, x: Any) -> Any:
        return self.c(F.relu(self.b(self.a(x))))


class _FixedPoint(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Any, w: Any) -> Any:
        z = torch.zeros_like(x)
        for _ in range(6):
            z = torch.tanh(z @ w + x)
        ctx.save_for_backward(z, w, x)
        return z

    @staticmethod
    def backward(ctx: Any, d: Any) -> Any:  # pyright: ignore[reportIncompatibleMethodOverride]
        z, w, x = ctx.saved_tensors
        slope = 1 - torch.tanh(z @ w + x) ** 2
        v = d
        for _ in range(6):
            v = d + (v * slope) @ w.t()
        return v * slope, z.t() @ (v * slope)


@case(floats(6))
class Implicit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.w = nn.Parameter(torch.randn(6, 6) * 0.1)

    def forward(self, x: Any) -> Any:
        return _FixedPoint.apply(x, self.w)


@case(floats(6))
class Distilled(nn.Module):
    """A teacher that follows, and a queue of its results."""

    queue: Any
    place: Any

    def __init__(self) -> None:
        super().__init__()
        self.student, self.teacher = nn.Linear(6, 6), nn.Linear(6, 6).requires_grad_(False)
        self.register_buffer("queue", torch.randn(16, 6))
        self.register_buffer("place", torch.zeros(1, dtype=torch.long))

    def forward(self, x: Any) -> Any:
        with torch.no_grad():
            for new, old in zip(self.student.parameters(), self.teacher.parameters(), strict=True):
                old.mul_(0.9).add_(new, alpha=0.1)
            target = F.normalize(self.teacher(x), dim=1)
        z = F.normalize(self.student(x), dim=1)
        scores = torch.cat([(z * target).sum(1, keepdim=True), z @ self.queue.clone().t()], 1)
        with torch.no_grad():
            self.queue[(self.place + torch.arange(x.shape[0])) % 16] = target
            self.place.add_(x.shape[0]).remainder_(16)
        return F.cross_entropy(scores / 0.2, torch.zeros(x.shape[0], dtype=torch.long))


@case(floats(6))
class Jacobians(nn.Module):
    """Derivatives of torch.func within the forward pass."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 3))

    def forward(self, x: Any) -> Any:
        slopes = torch.vmap(torch.func.jacrev(lambda row: self.layers(row)))(x)
        return (slopes @ slopes.mT).logdet(), torch.func.jvp(lambda rows: self.layers(rows), (x,), (torch.ones_like(x),))[1]


@case(floats(6))
class Generated(nn.Module):
    """The weights of one network are another's results."""

    def __init__(self) -> None:
        super().__init__()
        self.main = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 2))
        self.weights, self.code = nn.Linear(3, sum(p.numel() for p in self.main.parameters())), nn.Parameter(torch.randn(3))

    def forward(self, x: Any) -> Any:
        parameters = dict(self.main.named_parameters())
        parts = self.weights(self.code).split([p.numel() for p in parameters.values()])
        return torch.func.functional_call(self.main, {n: p + part.view_as(p) for (n, p), part in zip(parameters.items(), parts, strict=True)}, (x,))


@case(floats(6), floats(1))
class Mixture(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(6, 12)

    def forward(self, x: Any, y: Any) -> Any:
        weights, means, widths = self.layer(x).chunk(3, 1)
        parts = torch.distributions.Normal(means, F.softplus(widths) + 1e-3)
        mixture = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=weights), parts)
        levels = torch.tensor([0.1, 0.5, 0.9])
        error = y - means[:, :3]
        return -mixture.log_prob(y[:, 0]), torch.maximum(levels * error, (levels - 1) * error).mean(), F.huber_loss(means[:, :1], y)
