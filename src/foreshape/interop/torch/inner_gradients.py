"""Gradients within a forward pass, of ``torch.autograd.grad``: torch computes them in the trace, whose operators they are.

The formulas of torch's gradients read tensors that no trace has seen: ones within an operator that a graph keeps whole, and its results as other objects of
Python. So operators are taken apart here, and each tensor read is the one of the trace with the same memory and the same past.
"""

from __future__ import annotations

import importlib
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any, Final

from foreshape.errors import SchemaError
from foreshape.interop.torch.replaced import replaced
from foreshape.interop.torch.untyped_torch import pytree, torch

_KEPT: Final = frozenset(("size", "stride", "storage_offset", "dropout", "item", "is_nonzero"))
"""Questions about a tensor; and what a test leaves out."""
_META: Final[Any] = torch.device("meta")
"""Where torch's formulas make tensors beside the ones of a trace, which are there but for their sizes."""


class InnerGradientAsked(Exception):
    """The network's code computes a gradient, in a trace of whole operators."""


class _TracedTensors:
    """The tensors of a trace."""

    def __init__(self) -> None:
        self._known: dict[Any, Any] = {}
        self._ids: set[int] = set()
        self.device: Any = torch.device("cpu")

    def note(self, value: Any) -> None:
        """Note the results of an operator."""
        for one in pytree().tree_leaves(value):
            if isinstance(one, torch.Tensor):
                self._known.setdefault(_identity(one), one)
                self._ids.add(id(one))
                self.device = one.device

    def own(self, tensor: Any) -> Any:
        """Return the tensor of the trace that this one is, else itself."""
        return tensor if id(tensor) in self._ids else self._known.get(_identity(tensor), tensor)


def _identity(tensor: Any) -> Any:
    """Return what two objects of one tensor have in common: its memory, its dims and its past. No sizes are compared."""
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
        if not mode.pre_dispatch:
            return before(mode, func, types, args, kwargs)
        args, kwargs = pytree().tree_map_only(torch.Tensor, tensors.own, (args, kwargs or {}))
        if kwargs.get("device") == _META:
            kwargs["device"] = tensors.device
        name = func.__name__.split(".")[0]
        if func.namespace == "aten" and name not in _KEPT and func._can_decompose():
            with mode:
                made = func.decompose(*args, **kwargs)
            if made is not NotImplemented:
                return made
        if name in ("sgn", "sign") and not args[0].is_complex():  # torch's formula of this gradient, zero, fixes sizes
            with mode:
                args = (args[0].detach(),)
        out = before(mode, func, types, args, kwargs)
        tensors.note(out)
        return out

    with replaced(of, __torch_dispatch__=dispatch):
        yield


def computed_inside(grad: Any, *given: Any, **named: Any) -> Any:
    """Return the results of torch.autograd.grad in such a trace; those without a gradient of their own say so in its graph."""
    if named.get("is_grads_batched") or given[6:]:
        raise SchemaError("torch.autograd.grad with is_grads_batched has no form here: a call for each of the gradients")
    return tuple(one if one is None or one.requires_grad else one.detach() for one in grad(*given, **named))
