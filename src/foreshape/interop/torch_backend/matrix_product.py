"""Products of fp32 matrices on oneDNN, where it makes them faster than torch's BLAS: see `foreshape.machine.kernels.products`. Their last bits differ."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from foreshape.core.dims import product
from foreshape.core.spec import FP32, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.interop.torch.untyped_torch import torch
from foreshape.machine.kernels import products
from foreshape.machine.kernels.onednn_library import library

_ATEN: Final[Any] = torch.ops.aten


def product_function(node: Any, value: Callable[[Any], Any]) -> Callable[..., Tensor] | None:
    """Return the function for a node, of the same arguments, and without a workspace in torch's memory.

    None where torch's own is to run: for other nodes, for small products, and without oneDNN's own library.

    Args:
        node: of a graph.
        value: from an argument to its variable.
    """
    form = _FORMS.get(node.target)
    if form is None or node.kwargs or not products.prefers_onednn() or library() is None:
        return None
    tensors: list[Any] = [item.meta["val"] for item in node.args]
    specs: list[Spec] = [value(item).spec for item in node.args]
    if any(tensor.device.type != "cpu" or spec.dtype is not FP32 for tensor, spec in zip(tensors, specs, strict=True)):
        return None
    function, first, second, columns = form
    size = product((*specs[first].known_dims, specs[second].known_dims[columns]))
    if (len(specs) == 3 and specs[3 - first - second].rank != 1) or (isinstance(size, int) and size < products.LARGE):
        return None
    return function


def _affine(bias: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return products.at_once(x, w, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    if x.dim() == 2:
        return products.at_once(x, weight.t(), bias)
    rows = x.reshape(-1, x.shape[-1])
    return products.at_once(rows, weight.t(), bias).view(*x.shape[:-1], weight.shape[0])


_FORMS: Final[dict[Any, tuple[Callable[..., Tensor], int, int, int]]] = {
    _ATEN.mm.default: (products.at_once, 0, 1, 1),
    _ATEN.addmm.default: (_affine, 1, 2, 1),
    _ATEN.linear.default: (_linear, 0, 1, 0),
}
"""Torch's operator -> the function, the places of both factors among its arguments, and the axis of the result's columns in the second."""
