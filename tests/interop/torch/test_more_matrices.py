"""Solutions, pseudo-inverses and divisors beside torch, with the batch open; and axes that are left out."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import foreshape as fs


def _regular(x: Tensor) -> Tensor:
    return x[..., :3] + 4 * torch.eye(3)


CASES: dict[str, Callable[[Tensor], Any]] = {
    "solve on the right": lambda x: torch.linalg.solve(_regular(x), x[:, :2, :3], left=False),
    "triangular": lambda x: torch.linalg.solve_triangular(_regular(x).tril(), x, upper=False),
    "triangular on the right": lambda x: torch.linalg.solve_triangular(_regular(x).triu(), x[:, :2, :3], upper=True, left=False, unitriangular=True),
    "cholesky": lambda x: torch.cholesky_solve(x, torch.linalg.cholesky(_regular(x) @ _regular(x).mT)),
    "pseudo-inverse": lambda x: torch.linalg.pinv(x),
    "pseudo-inverse with a bound": lambda x: torch.linalg.pinv(x, rtol=0.4),
    "of low rank": lambda x: torch.linalg.pinv(x[:, :1].mT @ x[:, :1], atol=0.01),
    "gcd": lambda x: (torch.gcd((x * 40).long(), torch.tensor([12, 0, -18, 7])), torch.lcm((x * 40).int(), torch.tensor(12, dtype=torch.int32))),
}


class Solutions(nn.Module):
    """All of them, of the inputs and of a parameter."""

    def __init__(self) -> None:
        super().__init__()
        self.shift = nn.Parameter(torch.linspace(-0.3, 0.5, 12).reshape(3, 4))

    def forward(self, x: Tensor) -> Any:
        return [function(x + self.shift) for function in CASES.values()]


class SumOfSolutions(Solutions):
    """A number of them."""

    def forward(self, x: Tensor) -> Any:
        return sum((one.sin().sum() for one in torch.utils._pytree.tree_leaves(super().forward(x)) if one.is_floating_point()), x.new_zeros(()))


@pytest.mark.long
def test_solutions_and_divisors_are_torchs() -> None:
    net = Solutions()
    model = fs.from_torch(net, torch.randn(2, 3, 4), ({0: "batch"},))
    x = torch.randn(5, 3, 4, generator=torch.Generator().manual_seed(2))
    torch.testing.assert_close(model(x), net(x), rtol=1e-3, atol=1e-4)
    loss = SumOfSolutions()
    loss(x).backward()
    assert loss.shift.grad is not None
    found = fs.from_torch(loss, torch.randn(2, 3, 4), ({0: "batch"},)).gradients(x)["shift"]
    torch.testing.assert_close(found, loss.shift.grad, rtol=1e-3, atol=1e-3 * float(loss.shift.grad.abs().max()))


def test_squeeze_of_an_open_axis_refuses_a_size_of_1() -> None:
    class Squeezed(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.squeeze() * 2

    model = fs.from_torch(Squeezed(), torch.randn(2, 1, 3), ({0: "batch", 2: "time"},))
    assert model(torch.randn(4, 1, 5)).shape == (4, 5)
    for shape in ((1, 1, 3), (2, 1, 1)):
        with pytest.raises(fs.GuardError, match="squeeze leaves out an axis of 1"):
            model(torch.randn(shape))


class Experts(nn.Module):
    """A mixture of experts: the rows in the order of their experts, each multiplied by the matrix of its own, held as it is or turned."""

    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Parameter(torch.linspace(-1, 1, 3 * 8 * 16).reshape(3, 8, 16))
        self.down = nn.Parameter(torch.linspace(1, -1, 3 * 8 * 16).reshape(3, 8, 16))

    def forward(self, x: Tensor) -> Tensor:
        expert, at = (x[:, 0] > 0).long().mul(2).sort(stable=True)
        ends = (expert[:, None] <= torch.arange(3)).sum(0).int()
        h = torch._grouped_mm(x[at].bfloat16(), self.up.bfloat16().transpose(-2, -1), offs=ends)
        return torch._grouped_mm(h.tanh(), self.down.bfloat16(), offs=ends).float().square().mean()


@pytest.mark.skipif(not hasattr(torch, "_grouped_mm"), reason="this PyTorch has no products of groups")
def test_rows_of_experts_meet_their_own_matrix_alone() -> None:
    x = torch.linspace(-2, 1, 7 * 16).reshape(7, 16)
    module = Experts()
    model = fs.from_torch(module, (x,), ({0: "rows"},))
    assert [op.attributes.values["trans_y"] for op in model.program.global_block.ops if op.type == "grouped_matmul"] == [True, False]
    for rows in (7, 3):
        module.zero_grad()
        loss = module(x[:rows])
        loss.backward()
        assert float(model(x[:rows])) == pytest.approx(loss.item(), rel=1e-2)
        for name, gradient in model.gradients(x[:rows]).items():
            torch.testing.assert_close(gradient, module.get_parameter(name).grad, rtol=0.02, atol=2e-3)


class Graph(nn.Module):
    """A network over the edges of a graph, which are a sparse buffer or attribute."""

    def __init__(self, layout: str, buffer: bool) -> None:
        super().__init__()
        edges = (torch.rand(4, 4, generator=torch.Generator().manual_seed(1)) > 0.4).float() + torch.eye(4)
        edges = edges.to_sparse_csr() if layout == "csr" else edges.to_sparse()
        self.register_buffer("edges", edges) if buffer else setattr(self, "edges", edges)
        self.first, self.second = nn.Linear(6, 5), nn.Linear(5, 2)

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x).relu().transpose(0, 1)
        joined = torch.sparse.mm(self.edges, hidden.flatten(1)).unflatten(1, hidden.shape[1:])
        return (self.edges @ self.second(joined.mean(1))).square().mean()


@pytest.mark.parametrize(("layout", "buffer"), [("csr", True), pytest.param("coo", True, marks=pytest.mark.long), ("coo", False)])
def test_products_with_sparse_matrices_of_a_network_are_torchs(layout: str, buffer: bool) -> None:
    torch.manual_seed(0)
    module = Graph(layout, buffer)
    held = module.edges
    model = fs.from_torch(module, torch.randn(2, 4, 6), ({0: "batch"},))
    assert module.edges is held
    assert dict(module.named_buffers()).keys() == ({"edges"} if buffer else set())
    for batch in (2, 5):
        x = torch.randn(batch, 4, 6)
        module.zero_grad()
        want = module(x)
        want.backward()
        torch.testing.assert_close(model(x), want.detach())
        for name, gradient in model.gradients(x).items():
            torch.testing.assert_close(gradient, module.get_parameter(name).grad)
