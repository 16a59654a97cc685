"""Gradients computed within a forward pass, by torch.autograd.grad: values, gradients in training, and other sizes are torch's."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import foreshape as fs

grad = torch.autograd.grad


class Inner(nn.Module):
    """A network, and a loss of its gradients."""

    def __init__(self, net: nn.Module, loss: Callable[[nn.Module, Tensor], Tensor]) -> None:
        super().__init__()
        self.net, self.loss = net, loss

    def forward(self, x: Tensor) -> Tensor:
        return self.loss(self.net, x)


def equation(net: nn.Module, x: Tensor) -> Tensor:
    """Return the residual of Burgers' equation, as a physics-informed network has it."""
    t, s = (x.reshape(-1, 2)[:, k : k + 1].clone().requires_grad_(True) for k in range(2))
    u = net(torch.cat([t, s], 1))
    u_t, u_s = grad(u.sum(), (t, s), create_graph=True)
    (u_ss,) = grad(u_s, s, torch.ones_like(u_s), create_graph=True)
    return (u_t + u * u_s - 0.1 * u_ss).square().mean()


def penalty(net: nn.Module, x: Tensor) -> Tensor:
    """Return the loss of a critic with a penalty of its gradient."""
    between = (x * 0.3 + x.flip(0) * 0.7).requires_grad_(True)
    score = net(between)
    (slope,) = grad(score, between, torch.ones_like(score), create_graph=True, retain_graph=True)
    return net(x).mean() + 10 * (slope.flatten(1).norm(2, dim=1) - 1).square().mean()


def held(net: nn.Module, x: Tensor) -> Tensor:
    """Use a gradient without one of its own: a constant in training."""
    y = x.clone().requires_grad_(True)
    (slope,) = grad(net(y).sin().sum(), y)
    return (net(slope) * net(x)).mean()


def learned(net: nn.Module, x: Tensor) -> Tensor:
    """Return the loss behind a step of training, as of meta-learning."""
    weight, bias = net.parameters()
    first = F.mse_loss(F.linear(x, weight, bias), x[..., :1])
    steps = grad(first, (weight, bias), create_graph=True)
    return F.mse_loss(F.linear(x * 2, weight - 0.1 * steps[0], bias - 0.1 * steps[1]), x[..., 1:2])


def second(net: nn.Module, x: Tensor) -> Tensor:
    y = x.clone().requires_grad_(True)
    (slope,) = grad(net(y).sum(), y, create_graph=True)
    (bend,) = grad(slope[..., 0].sum(), y, create_graph=True)
    return (slope + bend).sin().sum()


def layers(*between: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), *between, nn.Linear(8, 1))


CASES: dict[str, tuple[Callable[[], nn.Module], Callable[[nn.Module, Tensor], Tensor]]] = {
    "equation": (lambda: nn.Sequential(nn.Linear(2, 8), nn.Tanh(), nn.Linear(8, 1)), equation),
    "penalty": (lambda: nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.LeakyReLU(0.2), nn.Linear(8, 1)), penalty),
    "penalty, convolutions": (
        lambda: nn.Sequential(nn.Conv1d(4, 6, 3, padding=1), nn.GroupNorm(2, 6), nn.SiLU(), nn.ConvTranspose1d(6, 4, 3), nn.ELU(),
                              nn.Conv1d(4, 2, 3, stride=2), nn.BatchNorm1d(2), nn.Flatten(), nn.Linear(6, 1)),
        penalty,
    ),
    "penalty, pooled": (
        lambda: nn.Sequential(nn.Unflatten(1, (1, 4)), nn.Conv2d(1, 4, 3, 2, 1), nn.LayerNorm([4, 2, 3]), nn.GELU(), nn.MaxPool2d(2, 1), nn.Flatten(),
                              nn.Linear(8, 1)),
        penalty,
    ),
    "held": (layers, held),
    "learned": (lambda: nn.Linear(6, 1), learned),
    "softsign": (lambda: layers(nn.Softsign()), second),
    "softmax": (lambda: layers(nn.Mish(), nn.Linear(8, 8), nn.Softmax(-1)), second),
    "rms": (lambda: layers(nn.Softplus(), nn.RMSNorm(8), nn.LogSigmoid()), second),
}  # fmt: skip


@pytest.mark.quick_cases("equation", "penalty")
@pytest.mark.parametrize("name", [pytest.param(n, marks=[] if n in ("equation", "penalty") else pytest.mark.long) for n in CASES])
def test_inner_gradients_are_torchs(name: str) -> None:
    torch.manual_seed(0)
    make, loss = CASES[name]
    module = Inner(make(), loss).double()
    model = fs.from_torch(module, torch.randn(3, 4, 6, dtype=torch.float64), ({0: "batch"},))
    assert not model.missing
    for batch in (3, 5):
        x = torch.randn(batch, 4, 6, dtype=torch.float64)
        module.zero_grad()
        want = module(x)
        want.backward()
        torch.testing.assert_close(model(x), want.detach())
        seen = model.gradients(x)
        for parameter, tensor in module.named_parameters():
            if tensor.grad is not None and parameter in seen:
                torch.testing.assert_close(seen[parameter], tensor.grad, rtol=1e-6, atol=1e-9, msg=lambda text, parameter=parameter: f"{parameter}: {text}")


def test_inner_gradients_without_a_form_are_refused_by_name() -> None:
    def of_weight(net: nn.Module, x: Tensor) -> Tensor:
        return grad(net(x).square().sum(), net.weight, create_graph=True)[0].square().sum()

    missing = fs.from_torch(Inner(nn.Conv1d(4, 2, 3), of_weight), torch.randn(3, 4, 6)).missing
    assert "gradient of a convolution's weight or bias within the forward pass" in str(missing)
    dropping = Inner(nn.Sequential(nn.Flatten(), nn.Linear(24, 8), nn.Dropout(0.5), nn.Linear(8, 1)), penalty)
    with pytest.raises(fs.SchemaError, match="within an operator that is kept whole here, as a dropout"):
        fs.from_torch(dropping, torch.randn(3, 4, 6))
