"""What kernels keep from step to step, found by shapes and numbers: it must not answer for others."""

from __future__ import annotations

import itertools

import torch

from foreshape.language.ops.rules.broadcast import sum_to, where_else_zero
from foreshape.language.ops.rules.held_numbers import held


def test_sums_over_broadcast_axes_are_torchs() -> None:
    grad = torch.arange(24, dtype=torch.float64).reshape(2, 3, 1, 4)
    for rank in range(5):
        for of in itertools.product(*[{1, size} for size in grad.shape[4 - rank :]]):
            for _ in range(2):
                torch.testing.assert_close(sum_to(grad, torch.empty(of), grad, -1), grad.sum_to_size(of))


def test_sums_over_broadcast_axes_begin_at_the_axis() -> None:
    grad = torch.arange(24.0).reshape(2, 3, 4)
    for axis, of in ((0, (2,)), (0, (2, 3)), (1, (3,)), (0, (1, 3)), (1, (3, 1)), (0, (2, 1))):
        over = [k for k in range(3) if not axis <= k < axis + len(of) or of[k - axis] == 1]
        torch.testing.assert_close(sum_to(grad, torch.empty(of), grad, axis), grad.sum(over).reshape(of))


def test_numbers_are_held_in_their_types_and_never_changed() -> None:
    assert held(0.5, torch.float32).dtype is torch.float32 and held(0.5, torch.float64).dtype is torch.float64
    assert held(0.5, torch.float32) is held(0.5, torch.float32) and not held(0.5, torch.float32).is_inference()
    with torch.inference_mode():
        assert not held(0.75, torch.float32).is_inference()
        d, condition = torch.tensor([1.0, 2.0]), torch.tensor([True, False])
        assert where_else_zero(condition, d, d).tolist() == d.tolist() == [1.0, 0.0]
        assert held(0.0, torch.float32).item() == 0.0
