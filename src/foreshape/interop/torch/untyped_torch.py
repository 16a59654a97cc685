"""torch for the type checker without types: the ones of its graphs and exports are partly unknown."""

import importlib
from collections.abc import Callable, Sequence
from typing import Any, Final, TypeGuard

from foreshape.core.values.torch_proxy import torch as _torch

torch: Any = _torch


def own_operators() -> Any:
    """Return torch's module for operators from elsewhere."""
    from torch import library as operators

    return operators


_DEFINING: Final[list[Callable[[], Any]]] = []


def defining(function: Callable[[], Any]) -> Callable[[], Any]:
    """Have a function define operators, as it decorates, before the first use of them."""
    _DEFINING.append(function)
    return function


def defined_operators() -> Any:
    """Return Foreshape's operators in torch; the first use of them defines them, which takes a tenth of a second where many modules are loaded."""
    while _DEFINING:
        _DEFINING.pop()()
    return torch.ops.foreshape


def pytree() -> Any:
    """Return torch's functions of nested inputs and results; they have no public place."""
    return importlib.import_module("torch.utils._pytree")


def is_list(value: Any) -> TypeGuard[Sequence[Any]]:
    """Tell whether it is a list or a tuple."""
    return isinstance(value, (list, tuple))


def is_of(value: Any, kinds: Any) -> bool:
    """Tell whether a value is of some kinds, and leave its type open for the type checker."""
    return isinstance(value, kinds)
