"""Gradients within a forward pass, of ``torch.autograd.grad``: torch computes them in the trace, as its operators.

The formulas of torch's gradients read tensors unseen by a trace: the ones within an operator kept whole, and results as other objects of Python. So operators
are taken apart here, and each tensor read is the one of the trace with the same memory and the same past.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from foreshape.core.values.torch_private import private
from foreshape.errors import SchemaError
from foreshape.interop.torch.replaced import replaced
from foreshape.interop.torch.untyped_torch import pytree, torch

_KEPT: Final = frozenset(("size", "stride", "storage_offset", "dropout", "item", "is_nonzero"))
"""Questions about a tensor; and a layer left out in a test."""
_META: Final[Any] = torch.device("meta")
"""The device of tensors made by torch's formulas beside the ones of a trace."""


class InnerGradientAsked(Exception):
    """The network's code computes a gradient, in a trace of whole operators."""


class _TracedTensors:
    """The tensors of a trace."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._objects: dict[int, Any] = {}
        self.device: Any = torch.device("cpu")

    def note(self, value: Any) -> None:
        """Note the results of an operator, which live as long as the trace."""
        for tensor in pytree().tree_leaves(value):
            if isinstance(tensor, torch.Tensor):
                self._known.setdefault(_identity(tensor), tensor)
                self._objects[id(tensor)] = tensor
                self.device = tensor.device

    def own(self, tensor: Any) -> Any:
        """Return the tensor of the trace with the identity of this one, else itself, as an input, which is then another one than its detached copies."""
        return tensor if id(tensor) in self._objects else self._known.setdefault(_identity(tensor), tensor)


def _identity(tensor: Any) -> Any:
    """Return the memory, the dims and the past of a tensor, common to all its objects. No sizes are compared."""
    past = (id(tensor.grad_fn), tensor.output_nr) if tensor.grad_fn is not None else tensor.requires_grad
    dims = (*tensor.shape, *tensor.stride(), tensor.storage_offset())
    return tensor.untyped_storage()._cdata, tensor.dtype, past, *(n if isinstance(n, int) else n.node.expr for n in dims)


@contextmanager
def inner_gradients() -> Generator[None]:
    """Take operators apart in a trace within the block, and tell the tensors read by gradients."""
    proxies: Any = importlib.import_module("torch.fx.experimental.proxy_tensor")
    of, tensors = proxies.ProxyTorchDispatchMode, _TracedTensors()
    before = of.__torch_dispatch__

    def dispatch(mode: Any, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if not mode.pre_dispatch or private.is_functorch_active():
            return before(mode, func, types, args, kwargs)
        args, kwargs = pytree().tree_map_only(torch.Tensor, tensors.own, (args, kwargs or {}))
        if kwargs.get("device") == _META:
            kwargs["device"] = tensors.device
        name = func.__name__.split(".")[0]
        if func.namespace == "aten" and name not in _KEPT and func._can_decompose():
            with mode:
                parts = func.decompose(*args, **kwargs)
            if parts is not NotImplemented:
                return parts
        if name in ("sgn", "sign") and not args[0].is_complex():  # torch's formula of this gradient, zero, fixes sizes
            with mode:
                args = (args[0].detach(),)
        out = before(mode, func, types, args, kwargs)
        tensors.note(out)
        return out

    with replaced(of, __torch_dispatch__=dispatch):
        yield


def computed_inside(grad: Any, *arguments: Any, **named: Any) -> Any:
    """Return the results of torch.autograd.grad in such a trace; those without a gradient of their own say so in its graph."""
    if named.get("is_grads_batched") or arguments[6:]:
        raise SchemaError("torch.autograd.grad with is_grads_batched has no form here: a call for each of the gradients")
    return tuple(slope if slope is None or slope.requires_grad else slope.detach() for slope in grad(*arguments, **named))
