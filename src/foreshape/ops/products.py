"""Matrix products on the fastest kernel that torch has for them.

torch's ``mm`` calls BLAS. Intel's, which torch's x86 builds carry, runs a generic path on other vendors' processors, about half as fast as
oneDNN's inner product, which torch carries too. The choice depends on the processor and on the sizes only, never on a
measurement, so that a run that is resumed computes the same bits. ``FORESHAPE_PRODUCTS=blas`` or ``onednn`` overrides it.
"""

from __future__ import annotations

import os
from functools import cache
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, floordiv, minimum
from foreshape.ops import onednn
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
    return _in_few_sizes(torch.ops.mkldnn._linear_pointwise.default)


STEP = 16
"""oneDNN keeps half a MiB for every size that a product has come in, up to a thousand of them. So rows, of which one batch has more and
the next one less, come to it in multiples of this, or of a 16th of their number where that is more: zeros are put behind them."""


def stepped(rows: int) -> int:
    """The number of rows that a product of ``rows`` rows is made with."""
    step = max(STEP, 1 << max(0, rows.bit_length() - 5))
    return -(-rows // step) * step


def _in_few_sizes(kernel: Any) -> Any:
    def product(x: Tensor, weight: Tensor, bias: Tensor | None, *attributes: object) -> Tensor:
        k = x.shape[-1]
        if x.dim() == 2 and x.stride(0) == 1 < x.stride(1):  # of a weight's gradient: the rows are what is summed over
            if (deep := stepped(k)) != k:
                x, weight = _deeper(x, deep), _deeper(weight, deep)
            return kernel(x, weight, bias, *attributes)
        rows = x.numel() // k
        if (more := stepped(rows)) == rows:
            return kernel(x, weight, bias, *attributes)
        longer = x.new_empty((more, k))
        longer[:rows] = x if x.dim() == 2 else x.reshape(rows, k)
        longer[rows:] = 0.0
        return kernel(longer, weight, bias, *attributes)[:rows].view(*x.shape[:-1], weight.shape[0])

    return product


def _deeper(x: Tensor, size: int) -> Tensor:
    """``x [m, k]`` with zeros behind, ``[m, size]``; its columns are packed."""
    k = x.shape[1]
    out = x.new_empty((size, x.shape[0]))
    out[:k] = x.t()
    out[k:] = 0.0
    return out.t()


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


def workspace(m: Size, k: Size, n: Size, turned: bool = False) -> Size:
    """The bytes that the product of fp32 ``[m, k]`` and ``[k, n]`` takes besides its result.

    Args:
        turned: the first is a transposed view, which oneDNN copies.
    """
    if not prefers_onednn():
        return 0
    return minimum(1, floordiv(m * k * n, LARGE)) * (onednn.product_of_rows(k) + (4 * m * k if turned else 0))


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

