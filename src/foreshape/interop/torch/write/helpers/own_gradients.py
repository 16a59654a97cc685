"""Operators with a backward pass of their own in place of autograd's."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch


def with_gradient(run: Callable[..., Any], back: Callable[..., Any], takes: Sequence[tuple[str, int]], gives: Sequence[int], *operands: Any) -> Any:
    """Return ``run(*operands)``; its gradient is ``back`` of operands ("x"), results ("y") and the results' gradients ("g"), for the operands ``gives``."""
    if not torch.is_grad_enabled():
        return run(*operands)
    function: Any = OwnGradient
    return function.apply(run, back, takes, gives, *operands)


def listed(found: Any) -> tuple[Any, ...]:
    """Return the results of a function as a tuple."""
    return found if found.__class__ is tuple else (found,)


def straight_through(run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a function with ``run``'s results, of which the first has the gradient of the first operand."""

    def call(x: Any, *others: Any) -> Any:
        with torch.no_grad():
            results: Any = run(x, *others)
        first, *remaining = listed(results)
        passed = first + (x - x.detach()) if torch.is_grad_enabled() and x.requires_grad else first
        return (passed, *remaining) if remaining else passed

    return call


class OwnGradient(torch.autograd.Function):
    """A function and its backward pass."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], back: Callable[..., Any], takes: Sequence[tuple[str, int]], gives: Sequence[int], *operands: Any) -> Any:
        """Run the function."""
        output: Any = run(*operands)
        results = listed(output)
        ctx.save_for_backward(*[(operands if kind == "x" else results)[index] for kind, index in takes if kind != "g"])
        ctx.back, ctx.takes, ctx.gives, ctx.count = back, takes, gives, len(operands)
        return output

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run the backward pass."""
        saved = iter(ctx.saved_tensors)
        with torch.no_grad():
            computed: Any = ctx.back(*[gradients[index].contiguous() if kind == "g" else next(saved) for kind, index in ctx.takes])
        operand_gradients = dict(zip(ctx.gives, listed(computed), strict=False))
        return (None, None, None, None, *[operand_gradients.get(index) for index in range(ctx.count)])


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
