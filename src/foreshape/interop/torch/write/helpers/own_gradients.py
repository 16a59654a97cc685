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
            found: Any = run(x, *others)
        first, *rest = listed(found)
        passed = first + (x - x.detach()) if torch.is_grad_enabled() and x.requires_grad else first
        return (passed, *rest) if rest else passed

    return call


class OwnGradient(torch.autograd.Function):
    """A function and its backward pass."""

    @staticmethod
    def forward(ctx: Any, run: Callable[..., Any], back: Callable[..., Any], takes: Sequence[tuple[str, int]], gives: Sequence[int], *operands: Any) -> Any:
        """Run the function."""
        found: Any = run(*operands)
        results = listed(found)
        ctx.save_for_backward(*[(operands if kind == "x" else results)[at] for kind, at in takes if kind != "g"])
        ctx.back, ctx.takes, ctx.gives, ctx.count = back, takes, gives, len(operands)
        return found

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        """Run the backward pass."""
        saved = iter(ctx.saved_tensors)
        with torch.no_grad():
            found: Any = ctx.back(*[gradients[at].contiguous() if kind == "g" else next(saved) for kind, at in ctx.takes])
        made = dict(zip(ctx.gives, listed(found), strict=False))
        return (None, None, None, None, *[made.get(at) for at in range(ctx.count)])


def first_ones(count: int) -> Callable[..., Any]:
    """Return a function of tensors with copies of the first ones as its results."""
    return lambda *given: tuple(one.clone() for one in given[:count])


def without_gradient(run: Callable[..., Any], kind: str) -> Callable[..., Any]:
    """Return a function that computes ``run``, and refuses a backward pass through it in words."""

    class Refusing(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, named: dict[str, Any], *given: Any) -> Any:
            return run(*given, **named)

        @staticmethod
        def backward(ctx: Any, *gradients: Any) -> Any:
            raise RuntimeError(f"the gradient of {kind} is not written in torch code: foreshape.to_torch(model), without plain=True, has it")

    def call(*given: Any, **named: Any) -> Any:
        refusing: Any = Refusing
        return refusing.apply(named, *given) if torch.is_grad_enabled() else run(*given, **named)

    return call
