"""PyTorch, imported at its first use: schemas and rules load without it."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from foreshape.core.values.openmp import load
from foreshape.core.values.torch_private import writing
from foreshape.errors import needs

if TYPE_CHECKING:
    import torch
    import torch.nn.functional as F
    from torch import Tensor

    aten: Any
    """Kernels without a Python function of torch, as ``aten.threshold_backward``."""
    aten_into: Any
    """The same kernels, into a given tensor: ``aten_into.threshold_backward(..., into=d)``."""
else:

    class _Deferred:
        def __init__(self, name: str) -> None:
            self.__dict__["_name"] = name

        def __getattr__(self, attribute: str) -> Any:
            with needs("running a program (on PyTorch)", "run"):
                module = load(self.__dict__["_name"])
            value = getattr(module, attribute)
            self.__dict__[attribute] = value  # the next access is an ordinary attribute
            return value

    class _TensorClass(type):
        def __instancecheck__(cls, value: Any) -> bool:
            return isinstance(value, torch.Tensor)

    class Tensor(metaclass=_TensorClass):
        """The tensors of torch, in annotations and for isinstance."""

    class _DeferredAten:
        def __getattr__(self, attribute: str) -> Any:
            value = getattr(torch.ops.aten, attribute).default
            self.__dict__[attribute] = value
            return value

    class _DeferredInto:
        def __getattr__(self, attribute: str) -> Any:
            self.__dict__[attribute] = write = writing(getattr(torch.ops.aten, attribute))
            return write

    aten = _DeferredAten()
    aten_into = _DeferredInto()
    torch = _Deferred("torch")
    F = _Deferred("torch.nn.functional")


class Lazy:
    """An object of torch's, looked up when a step is compiled, so the step can be planned without torch: ``Lazy(lambda: torch.mm)``."""

    __slots__ = ("get",)

    def __init__(self, get: Callable[[], Any]) -> None:
        self.get = get


__all__ = ["F", "Lazy", "Tensor", "aten", "aten_into", "torch"]
