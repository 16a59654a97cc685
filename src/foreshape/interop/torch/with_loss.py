"""A network of torch and a loss of its results, as one module to be exported."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch

NETWORK: Final = "network."
"""The beginning of the names of the network's own parameters and buffers in the module with the loss."""


def with_loss(network: Any, loss: Callable[..., Any], inputs: int, targets: int) -> Any:
    """Return a module that gives ``(results, loss(results, *targets))`` of ``network(*inputs)``, with the names of their arguments.

    Args:
        network: an ``nn.Module``.
        loss: a function, or a module of torch.
        inputs, targets: the numbers of arguments.
    """

    def forward(self: Any, *given: Any) -> Any:
        results = self.network(*given[:inputs])
        return results, self.loss_function(results, *given[inputs:])

    names = _argument_names(network.forward, 0, inputs, "input")
    function: Any = loss
    for name in _argument_names(function.forward if isinstance(loss, torch.nn.Module) else loss, 1, targets, "target"):
        while name in names:
            name += "_of_loss"
        names.append(name)
    forward.__dict__["__signature__"] = inspect.Signature([inspect.Parameter(n, inspect.Parameter.POSITIONAL_OR_KEYWORD) for n in ["self", *names]])
    made = type("NetworkWithLoss", (torch.nn.Module,), {"forward": forward})()
    made.network, made.loss_function, made.training, made.is_around_network = network, loss, network.training, True
    return made


def _argument_names(function: Callable[..., Any], first: int, count: int, otherwise: str) -> list[str]:
    """Return the names of so many arguments of a function, from the one at ``first`` on; of numbers behind a common word where it has none."""
    try:
        found = list(inspect.signature(function).parameters.values())[first:]
    except (TypeError, ValueError):  # written in C
        found = []
    named = [p.name for p in found if p.kind in (p.POSITIONAL_ONLY, p.POSITIONAL_OR_KEYWORD)][:count]
    left = count - len(named)
    return named + [otherwise if left == 1 and not named else f"{otherwise}_{at}" for at in range(left)]


@contextmanager
def mode_of_test(module: Any) -> Generator[None]:
    """Put a module in torch's ``eval`` mode, and each of its parts back into its own one."""
    before: Sequence[tuple[Any, bool]] = [(part, part.training) for part in module.modules()]
    module.eval()
    try:
        yield
    finally:
        for part, training in before:
            part.training = training
