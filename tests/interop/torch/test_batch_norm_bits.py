"""Batch normalization is torch's own call with the user's numbers: a 32-bit 0.001 is another one, and few examples magnify the difference."""

from __future__ import annotations

import copy

import pytest
import torch
from torch import nn

import foreshape as fs
from foreshape.operator.attributes import AttrType, coerce
from foreshape.ops.rules.statistics import as_written


@pytest.mark.parametrize("written", [0.001, 1e-5, 1e-12, 0.03, 0.9, 0.99, 1.0, 0.0, 123.25, 1e20])
def test_a_number_of_32_bits_is_again_what_was_written(written: float) -> None:
    assert as_written(coerce("epsilon", AttrType.FLOAT, written)) == written


def test_numbers_at_the_ends_stay_themselves() -> None:
    for number in (1.401298464324817e-45, float("inf"), float("-inf")):
        assert as_written(number) == number
    assert coerce("epsilon", AttrType.FLOAT, as_written(0.3333333432674408)) == 0.3333333432674408


@pytest.mark.parametrize("eps", [1e-3, 1e-5])
def test_normalized_values_and_moving_statistics_are_the_bits_of_torch(eps: float) -> None:
    torch.manual_seed(0)
    module = nn.BatchNorm2d(6, eps=eps, momentum=0.03).train()
    x = torch.randn(2, 6, 3, 4) * 0.02
    model = fs.from_torch(copy.deepcopy(module), x)
    assert torch.equal(model(x), module(x).detach())
    torch.testing.assert_close(model.scope.tensor("running_var"), module.running_var, rtol=1e-7, atol=0.0)
