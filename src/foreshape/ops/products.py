"""Matrix products on the fastest kernel that torch has for them.

torch's ``mm`` calls BLAS. Intel's, which torch's x86 builds carry, runs a generic path on other vendors' processors, about half as fast as
oneDNN's inner product, which torch carries too. The choice depends on the processor and on the sizes only, never on a
measurement, so that a run that is resumed computes the same bits. ``FORESHAPE_PRODUCTS=blas`` or ``onednn`` overrides it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from foreshape.ops.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 3 << 19
"""Products of at least this many multiplications repay oneDNN's longer start, about 10 microseconds."""


@cache
def prefers_onednn() -> bool:
    """Whether large products are made by oneDNN on this processor."""
    wanted = os.environ.get("FORESHAPE_PRODUCTS", "")
    return wanted == "onednn" or (wanted != "blas" and _is_amd())


@cache
def onednn_linear() -> Any:
    """oneDNN's ``(x, weight [out, in], bias, "none", [], "") -> x weight' + bias``; of a torch without it, the same on BLAS."""
    if not torch.backends.mkldnn.is_available() or not hasattr(torch.ops.mkldnn, "_linear_pointwise"):
        return _blas_linear
    return torch.ops.mkldnn._linear_pointwise.default


def _blas_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *attributes: object) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def _is_amd() -> bool:
    try:
        with open("/proc/cpuinfo", encoding="utf-8", errors="replace") as file:
            return "AuthenticAMD" in file.read(2000)
    except OSError:
        return False


def fits(a: Tensor, b: Tensor) -> bool:
    """Whether oneDNN should make the product of two matrices."""
    return (
        a.shape[0] * a.shape[1] * b.shape[1] >= LARGE
        and a.dtype is torch.float32
        and b.dtype is torch.float32
        and a.device.type == "cpu"
        and prefers_onednn()
    )


def mm(a: Tensor, b: Tensor) -> Tensor:
    """``a b`` of two matrices ``[m, k]`` and ``[k, n]``; either may be a transposed view."""
    if fits(a, b):
        return onednn_linear()(a, b.t(), None, "none", [], "")
    return torch.mm(a, b)


def linear(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """``x w + bias`` of ``[m, k]``, ``[k, n]`` and ``[n]``."""
    if fits(x, w):
        return onednn_linear()(x, w.t(), bias, "none", [], "")
    return torch.addmm(bias, x, w)


def add_product_(p: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """``p += alpha a b`` in place, of ``[m, n]``, ``[m, k]`` and ``[k, n]``."""
    if fits(a, b):
        return p.add_(onednn_linear()(a, b.t(), None, "none", [], ""), alpha=alpha)
    return p.addmm_(a, b, alpha=alpha)

