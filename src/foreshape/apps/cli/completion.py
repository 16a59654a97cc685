"""Values of arguments and options, for the completion of the shell."""

from __future__ import annotations

DEVICES = ("cpu", "cuda")
METHODS = ("measured", "percentile", "entropy", "min_max")
"""The choices of ranges of `foreshape quantize`."""


def devices() -> list[str]:
    """Return the kinds of devices."""
    return list(DEVICES)


def cards() -> list[str]:
    """Return the names of cards with a GPU."""
    from foreshape.apps.forecast.cards import CARDS

    return list(CARDS)


def precisions() -> list[str]:
    """Return the precisions of a forecast."""
    return ["fp32", "tf32", "bf16", "fp16", "amp-bf16", "amp-fp16"]


def methods() -> list[str]:
    """Return the choices of ranges."""
    return list(METHODS)


def operators() -> list[str]:
    """Return the operators of this package, from the texts of its files: their import would keep the shell waiting."""
    from foreshape.language.operator.registry import defined_types

    return [name for name in defined_types() if not name.endswith("_grad")]


def optimizers() -> list[str]:
    """Return the names of the optimizers."""
    from foreshape import optimizer

    return [name for name in optimizer.__all__ if is_optimizer(getattr(optimizer, name))]


def is_optimizer(kind: object) -> bool:
    """Tell whether it is a class of optimizers."""
    from foreshape.optimizer import Optimizer

    return isinstance(kind, type) and issubclass(kind, Optimizer) and kind is not Optimizer
