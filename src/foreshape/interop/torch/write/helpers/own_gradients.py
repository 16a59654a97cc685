"""Operators whose backward pass is refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch


def first_ones(count: int) -> Callable[..., Any]:
    """Return a function of tensors with copies of the first ones as its results."""
    return lambda *tensors: tuple(tensor.clone() for tensor in tensors[:count])


def without_gradient(run: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Return a function that computes ``run``, and refuses a backward pass through it in words."""

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, settings: dict[str, Any], *operands: Any) -> Any:
            return run(*operands, **settings)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise RuntimeError(f"the gradient of {kind} is not written in torch code: foreshape.to_torch(model), without plain=True, has it")

    def call(*operands: Any, **settings: Any) -> Any:
        refusing: Any = Refusing
        return refusing.apply(settings, *operands) if torch.is_grad_enabled() else run(*operands, **settings)

    return call
