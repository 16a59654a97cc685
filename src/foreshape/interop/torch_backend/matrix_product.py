"""Products of fp32 matrices on oneDNN, where it makes them faster than torch's BLAS: see `foreshape.machine.kernels.products`. Their last bits differ."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Final, NamedTuple

from foreshape.core.dims import Size, product
from foreshape.core.spec import FP32, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.interop.torch.untyped_torch import torch
from foreshape.machine.kernels import products

_ATEN: Final[Any] = torch.ops.aten


class ProductKernel(NamedTuple):
    """A function for a product of torch, of the same arguments, and the rule for the bytes of its workspace."""

    function: Callable[..., Tensor]
    workspace: Callable[[], Size]


def matrix_product(node: Any, value: Callable[[Any], Any]) -> ProductKernel | None:
    """Return the function for a node; None where torch's own is to run, as for other nodes, and for small products.

    Args:
        node: of a graph.
        value: from an argument to its variable.
    """
    form = _FORMS.get(node.target)
    if form is None or node.kwargs or not products.prefers_onednn():
        return None
    tensors: list[Any] = [item.meta["val"] for item in node.args]
    specs: list[Spec] = [value(item).spec for item in node.args]
    if any(tensor.device.type != "cpu" or spec.dtype is not FP32 for tensor, spec in zip(tensors, specs, strict=True)):
        return None
    function, first, second, is_turned = form
    rows, k = product(specs[first].known_dims[:-1]), specs[first].known_dims[-1]
    n = specs[second].known_dims[0 if is_turned else 1]
    size = product((rows, k, n))
    if (len(specs) == 3 and specs[3 - first - second].rank != 1) or (isinstance(size, int) and size < products.LARGE):
        return None
    row, column = tensors[first].stride()[-2:] if tensors[first].dim() > 1 else (1, 1)
    return ProductKernel(function, partial(products.workspace, rows, k, n, turned=row == 1 and column != 1))


def _affine(bias: Tensor, x: Tensor, w: Tensor) -> Tensor:
    return products.linear(x, w, bias)


def _linear(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    rows, w = x.reshape(-1, x.shape[-1]), weight.t()
    if not products.fits(rows, w):
        return torch.nn.functional.linear(x, weight, bias)
    out = products.mm(rows, w) if bias is None else products.linear(rows, w, bias)
    return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])


_FORMS: Final[dict[Any, tuple[Callable[..., Tensor], int, int, bool]]] = {
    _ATEN.mm.default: (products.mm, 0, 1, False),
    _ATEN.addmm.default: (_affine, 1, 2, False),
    _ATEN.linear.default: (_linear, 0, 1, True),
}
"""Torch's operator -> the function, the places of both factors among its arguments, and whether the second is transposed, ``[n, k]``."""
