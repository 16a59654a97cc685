"""Demands on sizes that a network's own code makes, and its branches and loops."""

from __future__ import annotations

import math
import warnings
from typing import Any

import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.interop.torch.torch_model import from_torch


class Choosy(nn.Module):
    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        if x.shape[1] % 7:
            x = nn.functional.pad(x, (0, 0, 0, 7 - x.shape[1] % 7), value=1.0) + 1  # the results differ from those of no padding
        if x.shape[2] > 5:
            x = x * 2
        assert y.shape[0] == x.shape[0]
        return x.sum((1, 2)) + y


def test_a_size_for_which_the_code_goes_another_way_is_refused_with_its_line() -> None:
    model = from_torch(Choosy(), (torch.ones(2, 21, 16), torch.ones(2)), ({0: "batch", 1: "height", 2: "width"}, {0: "other"}))
    given = torch.rand(3, 14, 8), torch.rand(3)
    torch.testing.assert_close(model(*given), Choosy()(*given))
    for dims, line in (((3, 13, 8), "if x.shape[1] % 7:"), ((3, 14, 4), "if x.shape[2] > 5:"), ((1, 14, 8), "assert y.shape[0] == x.shape[0]")):
        with pytest.raises(fs.GuardError) as error:
            model(torch.rand(*dims), torch.rand(3))
        assert f"at {line}" in str(error.value)


class Branches(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.a, self.b = nn.Linear(6, 6), nn.Linear(6, 6)

    def forward(self, x: torch.Tensor) -> Any:
        from torch._higher_order_ops import while_loop

        chosen = torch.cond(x.sum() > 0, lambda x: self.a(x).relu(), lambda x: self.b(x).tanh(), (x,))
        looped = while_loop(lambda i, h: i < 3, lambda i, h: (i + 1, torch.tanh(self.a(h))), (torch.zeros((), dtype=torch.long), x))[1]
        with torch.no_grad():
            frozen = self.b(x)
        return chosen + looped, frozen, x[x[:, 0] > 0], torch.nonzero(x > 0.5).shape[0] * 2


@pytest.mark.long
def test_branches_loops_and_sizes_of_the_run_are_those_of_torch() -> None:
    module = Branches().eval()
    model = from_torch(module, (torch.rand(3, 6),))
    for x in (torch.rand(5, 6), -torch.rand(4, 6), torch.randn(6, 6)):
        for want, seen in zip(module(x), model(x), strict=True):
            torch.testing.assert_close(torch.as_tensor(seen), torch.as_tensor(want).detach(), rtol=1e-5, atol=1e-6)


class Lazy(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc, self.ready = nn.Linear(4, 4), False

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        if not self.ready:
            with torch.no_grad():
                self.fc.weight.div_(2.0)
            self.ready = True
        return self.fc(x)


def test_a_network_that_makes_itself_ready_in_its_first_call_is_imported_ready_and_left_as_it_was() -> None:
    module, x = Lazy().eval(), torch.rand(3, 4)
    model = from_torch(module, (x,))
    assert not module.ready
    want = module(x).detach()
    torch.testing.assert_close(model(x), want)
    torch.testing.assert_close(model(x), want)


def test_a_way_that_the_example_alone_takes_is_the_one_imported() -> None:
    class Shortcut(nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x * 2 if x.shape[1] == 4 else x + 1

    x = torch.randn(2, 4)
    model = from_torch(Shortcut(), x, ({0: "batch", 1: "words"},))
    torch.testing.assert_close(model(x), x * 2)
    with pytest.raises((fs.GuardError, fs.FeedError)):
        model(torch.randn(2, 5))


def test_powers_and_long_sums_of_sizes_are_computed() -> None:
    class Squares(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            side, other = x.shape[2], x.shape[3]
            return torch.arange(1 + side**2 + 3 * other, dtype=torch.float32) + torch.zeros(torch.sym_sum([side**2, other, other, other, 1]))

    model = fs.from_torch(Squares(), torch.ones(2, 3, 4, 5), ({2: "height", 3: "width"},))
    assert not model.missing
    given = torch.ones(2, 3, 6, 2)
    assert torch.equal(model(given), Squares()(given))


def test_questions_for_finite_values_are_answered_with_a_warning() -> None:
    class Mended(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Linear(4, 3)

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            y = self.fc(x)
            if not torch.isfinite(y).all():
                y = y.clamp(-1e4, 1e4)
            if torch.isnan(y).any() or torch.isinf(y).any():
                y = y * 0
            return y.sin().mean()

    module, x = Mended(), torch.randn(2, 4)
    with pytest.warns(fs.ForeshapeWarning, match="asks whether values are finite, in .*test_traced_demands.py"):
        model = from_torch(module, x)
    given = torch.randn(5, 4)
    torch.testing.assert_close(model(given), module(given).detach())
    module(given).backward()
    torch.testing.assert_close(model.gradients(given)["fc.weight"], module.fc.weight.grad)


class Positions(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.places = nn.Parameter(torch.randn(64, 8))
        self.register_buffer("more", torch.randn(1, 66, 8))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        y = x + self.places[: x.shape[1]]
        return y + self.get_buffer("more")[:, 2 : x.shape[1] + 2]


def test_limits_of_a_size_are_told_with_the_rule_and_the_guard_of_torch() -> None:
    module, example = Positions(), torch.randn(2, 5, 8)
    with pytest.warns(fs.ForeshapeWarning, match=r"words is 2 to 100 by its torch.export.Dim, and the network takes 0 to 64: elementwise_add: words <= 64"):
        model = from_torch(module, example, ({0: "batch", 1: torch.export.Dim("words", min=2, max=100)},))
    assert str(model.fetches[0].spec.known_dims[1]) == "words"
    limit = model.limits["words"]
    assert limit.sizes == limit.traced == "0 to 64"
    assert [line for line in limit.rules if "elementwise_add: words <= 64    test_traced_demands.py:" in line]
    assert [line for line in limit.guards if "words <= 64, asked in y = x + self.places[: x.shape[1]]    test_traced_demands.py:" in line]
    assert model.limits["batch"].sizes == "any"
    for words in (0, 1, 2, 64):
        x = torch.randn(3, words, 8)
        torch.testing.assert_close(model(x), module(x).detach())
    for words, first in ((65, "elementwise_add"), (101, "size_demand")):
        with pytest.raises(fs.GuardError) as error:
            model(torch.randn(2, words, 8))
        text = str(error.value)
        assert text.startswith(first)
        assert "torch's trace: words <= 64, asked in y = x + self.places[: x.shape[1]]    test_traced_demands.py:" in text
        assert ("    elementwise_add: words <= 64    test_traced_demands.py:" in text) == (words == 101)


class Windows(nn.Module):
    """Attention within windows after each of some strided convolutions, all padded: sizes nest."""

    def __init__(self, stages: int) -> None:
        super().__init__()
        self.down = nn.ModuleList([nn.Conv2d(3, 8, 4, 2, 1), *(nn.Conv2d(8, 8, 2, 2) for _ in range(stages - 1))])
        self.inner = nn.Linear(8, 8)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for down in self.down:
            x = nn.functional.pad(x, (0, (2 - x.shape[3] % 2) % 2, 0, (2 - x.shape[2] % 2) % 2))
            x = down(x).permute(0, 2, 3, 1)
            batch, height, width, features = x.shape
            y = nn.functional.pad(x, (0, 0, 0, (3 - width % 3) % 3, 0, (3 - height % 3) % 3))
            high, wide = y.shape[1:3]
            y = y.view(batch, high // 3, 3, wide // 3, 3, features).permute(0, 1, 3, 2, 4, 5).reshape(-1, 9, features)
            y = torch.softmax(self.inner(y), 1).view(-1, high // 3, wide // 3, 3, 3, features)
            x = (x + y.permute(0, 1, 3, 2, 4, 5).reshape(-1, high, wide, features)[:, :height, :width]).permute(0, 3, 1, 2)
        if x.shape[2] > 3 and math.ceil(high / 2) > 1:  # of sizes that have symbols of their own in the trace
            x = x * 2
        return x.mean((2, 3))


@pytest.mark.long
def test_sizes_of_nested_windows_have_symbols_and_their_questions_are_guards() -> None:
    """sympy took minutes for two stages, and more for each further one."""
    module = Windows(3).eval()
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # no question stays without a guard
        model = from_torch(module, (torch.randn(2, 3, 32, 32),), ({0: "batch", 2: "height", 3: "width"},))
    for dims in ((2, 3, 32, 32), (3, 3, 37, 53), (1, 3, 64, 30)):
        x = torch.randn(dims)
        torch.testing.assert_close(model(x), module(x).detach(), rtol=1e-5, atol=1e-6)
    with pytest.raises(fs.GuardError, match=r"at if x.shape\[2\] > 3 and"):
        model(torch.randn(2, 3, 20, 32))
    with pytest.raises(fs.GuardError, match=r"2 divides|took another way"):
        from_torch(Rounded(), (torch.randn(2, 6),), ({1: "time"},))(torch.randn(2, 7))


class Rounded(nn.Module):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return x if math.ceil(x.shape[1] / 2) * 2 == x.shape[1] else x[:, 1:]
