"""Batch normalization is torch's own call with the user's numbers: a 32-bit 0.001 is another one, and few examples magnify the difference."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.language.operator.attributes import AttrType, as_written, coerce


@pytest.mark.parametrize("written", [0.001, 1e-5, 1e-12, 0.03, 0.9, 0.99, 1.0, 0.0, 123.25, 1e20])
def test_a_number_of_32_bits_is_again_what_was_written(written: float) -> None:
    assert as_written(coerce("epsilon", AttrType.FLOAT, written)) == written


def test_numbers_at_the_ends_stay_themselves() -> None:
    for number in (1.401298464324817e-45, float("inf"), float("-inf")):
        assert as_written(number) == number
    assert coerce("epsilon", AttrType.FLOAT, as_written(0.3333333432674408)) == 0.3333333432674408


@pytest.mark.quick_cases("1e-05")
@pytest.mark.parametrize("eps", [1e-3, 1e-5])
def test_normalized_values_and_moving_statistics_are_the_bits_of_torch(eps: float) -> None:
    torch.manual_seed(0)
    module = nn.BatchNorm2d(6, eps=eps, momentum=0.03).train()
    x = torch.randn(2, 6, 3, 4) * 0.02
    model = fs.from_torch(copy.deepcopy(module), x)
    assert torch.equal(model(x), module(x).detach())
    torch.testing.assert_close(model.scope.tensor("running_var"), module.running_var, rtol=1e-7, atol=0.0)


class Standardized(nn.Module):
    """Images normalized by their own statistics, which nothing keeps: in a test too."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.plain = nn.BatchNorm2d(3, track_running_stats=False), nn.BatchNorm2d(3, affine=False, track_running_stats=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = nn.functional.batch_norm(x, None, None, training=True, eps=1e-6)
        return self.plain(torch.relu(self.norm(x)))


@pytest.mark.quick_cases("False")
@pytest.mark.parametrize("training", [True, False])
@pytest.mark.filterwarnings("error::foreshape.ForeshapeWarning")
def test_values_normalized_by_statistics_that_are_not_kept_are_the_bits_of_torch(training: bool) -> None:
    torch.manual_seed(0)
    module = Standardized().train(training)
    model = fs.from_torch(module, torch.randn(2, 3, 8, 9), ({0: "batch", 2: "height", 3: "width"},), loss=lambda y: torch.sin(y * 1.3).mean())
    for shape in ((2, 3, 8, 9), (5, 3, 7, 6)):
        x = torch.randn(shape)
        want = module(x)
        assert torch.equal(model(x), want.detach())
        assert torch.equal(model.for_test()(x), want.detach())
        torch.sin(want * 1.3).mean().backward()
        seen = model.gradients(x)
        for name, parameter in module.named_parameters():
            torch.testing.assert_close(seen[name], parameter.grad, rtol=1e-4, atol=1e-7)
        module.zero_grad()
