"""Gradients at ties and kinks: of equal elements, at corners and borders, they are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foreshape as fs

FEW = torch.tensor([0.0, 0.0, 1.0, 1.0, -1.0, -1.0, 0.5, -0.5, 6.0, 3.0, -3.0, 2.0, -2.0, 4.0, 20.0, -6.0])
FIRST = FEW.repeat(4).reshape(4, 16)
SECOND = torch.stack([FEW, FEW, FEW.flip(0), FEW.flip(0).roll(5)])
PLACES = torch.tensor([[0, 1, 2, 0] * 4] * 4)

Function = Callable[[Tensor, Tensor], Any]
CASES: dict[str, Function] = {
    "relu": lambda x, y: F.relu(x),
    "relu6": lambda x, y: F.relu6(x),
    "hardtanh": lambda x, y: F.hardtanh(x),
    "hardsigmoid": lambda x, y: F.hardsigmoid(x),
    "hardswish": lambda x, y: F.hardswish(x),
    "elu": lambda x, y: F.elu(x),
    "selu": lambda x, y: F.selu(x),
    "celu": lambda x, y: F.celu(x),
    "leaky_relu": lambda x, y: F.leaky_relu(x),
    "softshrink": lambda x, y: F.softshrink(x),
    "hardshrink": lambda x, y: F.hardshrink(x),
    "softplus": lambda x, y: F.softplus(x),
    "logsigmoid": lambda x, y: F.logsigmoid(x),
    "softsign": lambda x, y: F.softsign(x),
    "threshold": lambda x, y: F.threshold(x, 1.0, 20.0),
    "rrelu": lambda x, y: F.rrelu(x),
    "prelu": lambda x, y: F.prelu(x, torch.tensor([0.2])),
    "glu": lambda x, y: F.glu(x),
    "leaky2": lambda x, y: F.leaky_relu(x, -0.3),
    "hardtanh2": lambda x, y: F.hardtanh(x, -2.0, 3.0),
    "softplus2": lambda x, y: F.softplus(x, 2.0, 3.0),
    "elu2": lambda x, y: F.elu(x, 0.3),
    "clamp": lambda x, y: x.clamp(-1, 1),
    "clampmin": lambda x, y: x.clamp(min=1),
    "clampmax": lambda x, y: x.clamp(max=1),
    "clamp0": lambda x, y: x.clamp(min=0),
    "clampT": lambda x, y: torch.clamp(x, y, y + 1),
    "clampTmin": lambda x, y: torch.clamp(x, min=y),
    "clampTmax": lambda x, y: torch.clamp(x, max=y),
    "clip": lambda x, y: torch.clip(x, -1, 1),
    "clamp_max0": lambda x, y: torch.clamp_max(x, 0),
    "clamp_min0": lambda x, y: torch.clamp_min(x, 0),
    "maximum": lambda x, y: torch.maximum(x, y),
    "minimum": lambda x, y: torch.minimum(x, y),
    "fmax": lambda x, y: torch.fmax(x, y),
    "fmin": lambda x, y: torch.fmin(x, y),
    "max2": lambda x, y: torch.max(x, y),
    "min2": lambda x, y: torch.min(x, y),
    "max_bc": lambda x, y: torch.maximum(x, y[:1]),
    "max_sc": lambda x, y: torch.maximum(x, torch.zeros(())),
    "amax": lambda x, y: x.amax(1),
    "amin": lambda x, y: x.amin(1),
    "amax_all": lambda x, y: x.amax(),
    "amax2": lambda x, y: x.amax((0, 1)),
    "amax0k": lambda x, y: x.amax(0, keepdim=True),
    "max": lambda x, y: x.max(),
    "min": lambda x, y: x.min(),
    "maxd": lambda x, y: x.max(1)[0],
    "mind": lambda x, y: x.min(1)[0],
    "maxd0": lambda x, y: x.max(0)[0],
    "mind0": lambda x, y: x.min(0)[0],
    "maxk": lambda x, y: x.max(0, keepdim=True).values,
    "aminmax": lambda x, y: torch.aminmax(x, dim=1),
    "aminmax_all": lambda x, y: torch.aminmax(x),
    "median_all": lambda x, y: x.median(),
    "nanmedian": lambda x, y: x.nanmedian(),
    "mode": lambda x, y: x.mode(1)[0],
    "kth": lambda x, y: x.kthvalue(3, 1)[0],
    "topk": lambda x, y: x.topk(5, 1)[0],
    "topks": lambda x, y: x.topk(5, 1, largest=False)[0],
    "cummax": lambda x, y: x.cummax(1)[0],
    "cummin": lambda x, y: x.cummin(1)[0],
    "msort": lambda x, y: x.msort(),
    "quantile": lambda x, y: x.quantile(0.3, 1),
    "quantile_l": lambda x, y: x.quantile(0.5, 1, interpolation="lower"),
    "abs": lambda x, y: x.abs(),
    "sign": lambda x, y: x.sign() * x,
    "norm1": lambda x, y: x.norm(1, 1),
    "norm2": lambda x, y: (x * 0).norm(2, 1),
    "norminf": lambda x, y: x.norm(float("inf"), 1),
    "norm-inf": lambda x, y: x.norm(float("-inf"), 1),
    "norm3": lambda x, y: x.norm(3, 1),
    "norm.5": lambda x, y: (x + 30).norm(0.5, 1),
    "lnorm": lambda x, y: torch.linalg.vector_norm(x * 0, 2),
    "norm1.5": lambda x, y: x.norm(1.5, 1),
    "prod": lambda x, y: x.prod(1),
    "prod1": lambda x, y: x[:, 1:4].prod(1),
    "cumprod": lambda x, y: x.cumprod(1),
    "std": lambda x, y: (x * 0 + 1).std(1),
    "floor": lambda x, y: x.floor() * x,
    "ceil": lambda x, y: x.ceil() + x,
    "frac": lambda x, y: x.frac(),
    "trunc": lambda x, y: x.trunc() + x,
    "round": lambda x, y: x.round() * x,
    "fmod": lambda x, y: torch.fmod(x, y + 0.25),
    "remainder": lambda x, y: torch.remainder(x, y + 0.25),
    "rem1": lambda x, y: x % 2,
    "pow2": lambda x, y: x**2,
    "pow0": lambda x, y: x**0,
    "pow1": lambda x, y: x**1,
    "pow3": lambda x, y: x**3,
    "powt": lambda x, y: torch.pow(x.abs(), y.abs()),
    "pow0s": lambda x, y: torch.pow(0.0, x.abs()),
    "atan2": lambda x, y: torch.atan2(x, y + 0.1),
    "hypot": lambda x, y: torch.hypot(x, y + 0.1),
    "copysign": lambda x, y: torch.copysign(x, y),
    "xlogy": lambda x, y: torch.xlogy(x.abs(), y.abs() + 0.1),
    "xlog1py": lambda x, y: torch.special.xlog1py(x.abs(), y.abs()),
    "sinc": lambda x, y: torch.sinc(x),
    "lerp": lambda x, y: torch.lerp(x, y, 0.5),
    "dist": lambda x, y: torch.dist(x, y),
    "dist1": lambda x, y: torch.dist(x, y, 1),
    "distinf": lambda x, y: torch.dist(x, y, float("inf")),
    "dist0": lambda x, y: torch.dist(x[0], y[0]),
    "pdist": lambda x, y: F.pairwise_distance(x, y),
    "pdist1": lambda x, y: F.pairwise_distance(x, y, p=1, eps=0),
    "cos": lambda x, y: F.cosine_similarity(x, y, dim=1),
    "cos0": lambda x, y: F.cosine_similarity(x * 0, y, dim=1),
    "cdist1": lambda x, y: torch.cdist(x, y, 1),
    "cdist2": lambda x, y: torch.cdist(x, y),
    "cdistinf": lambda x, y: torch.cdist(x, y, float("inf")),
    "pdistf": lambda x, y: F.pdist(x),
    "pdistinf": lambda x, y: F.pdist(x, float("inf")),
    "pdist1f": lambda x, y: F.pdist(x, 1),
    "normalize": lambda x, y: F.normalize(x * 0),
    "normalize1": lambda x, y: F.normalize(x, p=1),
    "l1": lambda x, y: F.l1_loss(x, y),
    "smooth": lambda x, y: F.smooth_l1_loss(x, y),
    "smooth_b": lambda x, y: F.smooth_l1_loss(x, y, beta=0.5),
    "smooth0": lambda x, y: F.smooth_l1_loss(x, y, beta=0.0),
    "huber": lambda x, y: F.huber_loss(x, y),
    "huber2": lambda x, y: F.huber_loss(x, y, delta=0.5),
    "hinge": lambda x, y: F.hinge_embedding_loss(x, y.sign().detach()),
    "soft_margin": lambda x, y: F.soft_margin_loss(x, y.sign().detach()),
    "cosemb": lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([1, -1, 1, -1])),
    "cosemb_n": lambda x, y: F.cosine_embedding_loss(x, y, torch.tensor([-1, -1, -1, -1]), margin=1.0),
    "triplet1": lambda x, y: F.triplet_margin_loss(x, y, x + 1, swap=True),
    "tripd": lambda x, y: F.triplet_margin_with_distance_loss(x, y, x),
    "multimargin": lambda x, y: F.multi_margin_loss(x, torch.tensor([0, 1, 2, 3])),
    "multimargin2": lambda x, y: F.multi_margin_loss(x, torch.tensor([0, 1, 2, 3]), p=2),
    "multilabel": lambda x, y: F.multilabel_margin_loss(x, torch.tensor([[0, 3] + [-1] * 14] * 4)),
    "bce": lambda x, y: F.binary_cross_entropy(x.clamp(0, 1) * 0 + torch.tensor([0.0, 1.0] * 8), (y > 0).float()),
    "kl": lambda x, y: F.kl_div(x, (y > 0).float()),
    "kl2": lambda x, y: F.kl_div(x, y.abs() + 0.1),
    "poissonl": lambda x, y: F.poisson_nll_loss(x.abs() + 1, y.detach().abs(), log_input=False),
    "gnll": lambda x, y: F.gaussian_nll_loss(x, y, x.abs()),
    "kl3": lambda x, y: F.kl_div(x, y, log_target=True),
    "bce_t": lambda x, y: F.binary_cross_entropy((x * 0.1).sigmoid(), (y * 0.1).sigmoid()),
    "bcel_t": lambda x, y: F.binary_cross_entropy_with_logits(x, y.sigmoid()),
    "ce_t": lambda x, y: F.cross_entropy(x, y.softmax(1)),
    "ce_ts": lambda x, y: F.cross_entropy(x, y.softmax(1), label_smoothing=0.1),
    "poisson_t": lambda x, y: F.poisson_nll_loss(x, y),
    "prelu_w": lambda x, y: F.prelu(x[:, :, None], y[0]),
    "bn_all": lambda x, y: F.batch_norm(x, None, None, y[0], y[1], True),
    "ln_all": lambda x, y: F.layer_norm(x, (16,), y[0], y[1]),
    "embw": lambda x, y: F.embedding_bag(torch.tensor([[0, 1, 2], [1, 1, 3]]), x, mode="sum", per_sample_weights=y[:2, :3]),
    "hinge_t": lambda x, y: F.hinge_embedding_loss(x, torch.ones(4, 16)),
    "mse_w": lambda x, y: F.mse_loss(x, y),
    "maxpool": lambda x, y: F.max_pool1d(x[None], 3, 2),
    "maxpool2": lambda x, y: F.max_pool2d(x.reshape(1, 1, 8, 8), 2),
    "maxpool3": lambda x, y: F.max_pool3d(x.reshape(1, 1, 4, 4, 4), 2),
    "maxpool2p": lambda x, y: F.max_pool2d(x.reshape(1, 1, 8, 8), 3, 1, 1),
    "maxpool2d": lambda x, y: F.max_pool2d(x.reshape(1, 1, 8, 8), 3, 1, 1, dilation=2, padding=0) if False else F.max_pool2d(x.reshape(1, 1, 8, 8), 3, 1, 0, 2),
    "amp1": lambda x, y: F.adaptive_max_pool1d(x[None], 5),
    "amp2": lambda x, y: F.adaptive_max_pool2d(x.reshape(1, 1, 8, 8), 3),
    "amp3": lambda x, y: F.adaptive_max_pool3d(x.reshape(1, 1, 4, 4, 4), 3),
    "lp": lambda x, y: F.lp_pool1d(x[None], 2, 3),
    "lp1": lambda x, y: F.lp_pool1d(x[None] * 0, 2, 2),
    "lp2": lambda x, y: F.lp_pool2d(x.reshape(1, 1, 8, 8), 1, 2),
    "maxunpool": lambda x, y: F.max_unpool1d(*F.max_pool1d(x[None], 2, return_indices=True), 2),
    "scatter_amax": lambda x, y: torch.zeros(4, 3).scatter_reduce(1, torch.tensor([[0, 1, 2, 0] * 4] * 4), x, "amax"),
    "scatter_amax_n": lambda x, y: torch.zeros(4, 3).scatter_reduce(1, torch.tensor([[0, 1, 2, 0] * 4] * 4), x, "amax", include_self=False),
    "scatter_amin": lambda x, y: y[:, :3].scatter_reduce(1, torch.tensor([[0, 1, 2, 0] * 4] * 4), x, "amin"),
    "scatter_prod": lambda x, y: (y[:, :3] + 0.1).scatter_reduce(1, torch.tensor([[0, 1, 2, 0] * 4] * 4), x, "prod"),
    "scatter_mean": lambda x, y: y[:, :3].scatter_reduce(1, torch.tensor([[0, 1, 2, 0] * 4] * 4), x, "mean"),
    "index_amax": lambda x, y: y[:, :3].index_reduce(1, torch.tensor([0, 1, 2, 0] * 4), x, "amax"),
    "index_amin": lambda x, y: y[:, :3].index_reduce(1, torch.tensor([0, 1, 2, 0] * 4), x, "amin"),
    "embbag_max": lambda x, y: F.embedding_bag(torch.tensor([[0, 1, 2], [1, 1, 3]]), x, mode="max"),
    "logit": lambda x, y: torch.logit(x.clamp(0, 1), 0.1),
    "logit2": lambda x, y: torch.logit(x * 0.5 + 0.5, 0.25),
    "grid": lambda x, y: F.grid_sample(x.reshape(1, 1, 8, 8), y[:, :8].reshape(1, 4, 4, 2) / 8, align_corners=True),
    "gridb": lambda x, y: F.grid_sample(x.reshape(1, 1, 8, 8), y[:, :8].reshape(1, 4, 4, 2), padding_mode="border", align_corners=False),
    "gridr": lambda x, y: F.grid_sample(x.reshape(1, 1, 8, 8), y[:, :8].reshape(1, 4, 4, 2) / 4, padding_mode="reflection", align_corners=False),
    "gridn": lambda x, y: F.grid_sample(x.reshape(1, 1, 8, 8), y[:, :8].reshape(1, 4, 4, 2) / 8, mode="nearest", align_corners=True),
    "cross": lambda x, y: torch.linalg.cross(x[:, :3], y[:, :3]),
    "sq_hinge": lambda x, y: (1 - x).clamp(min=0) ** 2,
    "max_self": lambda x, y: torch.maximum(x, x),
    "absmax": lambda x, y: x.abs().amax(1),
    "relu_": lambda x, y: torch.relu_(x.clone()),
    "threshold2": lambda x, y: nn.Threshold(0.5, 0.0)(x),
    "hardshrink2": lambda x, y: F.hardshrink(x, 1.0),
    "softshrink2": lambda x, y: F.softshrink(x, 1.0),
    "diffabs": lambda x, y: x.diff(dim=1).abs(),
    "fminnan": lambda x, y: torch.fmin(x, torch.where(y > 3, float("nan"), y)),
    "maxnan": lambda x, y: torch.nan_to_num(torch.maximum(x, y)),
    "matrixnorm": lambda x, y: torch.linalg.matrix_norm(x[:, :4] * 1.0, 1),
    "matrixnorminf": lambda x, y: torch.linalg.matrix_norm(x, float("inf")),
    "bucket": lambda x, y: x * torch.bucketize(x.detach(), torch.tensor([0.0, 1.0])),
    "unfold": lambda x, y: x.unfold(1, 3, 2).amax(-1),
    "huber_red": lambda x, y: F.huber_loss(x, y, reduction="none"),
    "smooth_none": lambda x, y: F.smooth_l1_loss(x, y, reduction="none"),
    "l1_none": lambda x, y: F.l1_loss(x, y, reduction="none"),
    "div_floor": lambda x, y: torch.div(x, y + 0.25, rounding_mode="floor") * x,
    "div_trunc": lambda x, y: torch.div(x, y + 0.25, rounding_mode="trunc") * x,
    "float_power": lambda x, y: torch.float_power(x, 2).float(),
    "i0": lambda x, y: torch.special.i0e(x),
    "sgnabs": lambda x, y: x.sgn() * x.abs(),
    "std0": lambda x, y: torch.std_mean(x * 0 + 1, 1),
    "nansum": lambda x, y: x.nansum(1),
    "nanmean": lambda x, y: x.nanmean(1),
}
EACH = 24
WHOLE = ("multimargin", "multimargin2", "multilabel")
"""In a network that changes memory torch writes these out, with other slopes at the border."""
GROUPED = [name for name in CASES if name not in WHOLE]
GROUPS = [list(WHOLE), *(GROUPED[start : start + EACH] for start in range(0, len(GROUPED), EACH))]


class Sum(nn.Module):
    """The sum of functions, each of parameters of its own, times numbers."""

    def __init__(self, names: list[str]) -> None:
        super().__init__()
        self.names = names
        self.first = nn.ParameterList([FIRST.clone() for _ in names])
        self.second = nn.ParameterList([SECOND.clone() for _ in names])

    def forward(self, by: Tensor) -> Tensor:
        total = by.new_zeros(())
        for at, name in enumerate(self.names):
            for one in torch.utils._pytree.tree_leaves(CASES[name](self.first[at], self.second[at])):
                if one.is_floating_point():
                    total = total + (one * by[: one.numel()].reshape(one.shape)).sum()
        return total


@pytest.mark.quick_cases("0")
@pytest.mark.parametrize("group", [pytest.param(n, marks=[pytest.mark.long] if n > 1 else []) for n in range(len(GROUPS))])
def test_gradients_of_equal_elements_and_at_corners_are_torchs(group: int) -> None:
    net, by = Sum(GROUPS[group]), torch.linspace(-1.0, 2.0, 97).sin().repeat(20)
    net(by).backward()
    seen = fs.from_torch(net, by, (None,)).gradients(by)
    for at, name in enumerate(net.names):
        for which in ("first", "second"):
            want = getattr(net, which)[at].grad
            found = seen.get(f"{which}.{at}", torch.zeros(FIRST.shape))
            want = torch.zeros(FIRST.shape) if want is None else want
            scale = float(want[want.isfinite()].abs().max())
            torch.testing.assert_close(found, want, rtol=1e-4, atol=2e-5 * max(scale, 1.0), equal_nan=True, msg=lambda text, name=name: f"{name}: {text}")


class Apart(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(3, 4)

    def forward(self, x: Tensor) -> Tensor:
        rows = self.layer(x)
        return torch.cdist(rows, rows).mean()


@pytest.mark.long
@pytest.mark.parametrize("count", [5, pytest.param(230, marks=pytest.mark.long)])
def test_distances_of_a_batch_to_itself_have_the_slope_of_torch(count: int) -> None:
    """A trace has a larger batch, for which torch multiplies matrices: their slope at a distance of 0 is not a number."""
    torch.manual_seed(0)
    net, x = Apart(), torch.randn(count, 3)
    seen = fs.from_torch(net, x, ({0: "batch"},)).gradients(x)
    rows = net.layer(x)  # as torch computes with few rows
    torch.cdist(rows, rows, compute_mode="donot_use_mm_for_euclid_dist").mean().backward()
    for name, parameter in net.named_parameters():
        torch.testing.assert_close(seen[name], parameter.grad, rtol=1e-3, atol=1e-5)
