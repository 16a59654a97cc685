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


def stepped(rows: int) -> int:
    """The number of rows that oneDNN multiplies for ``rows`` rows: the next multiple of 16.

    It keeps about half a MiB for every size that a product comes in, so that batches of many sizes would add up; and takes a
    millisecond for each new one.
    """
    return -(-rows // STEP) * STEP


def _in_few_sizes(kernel: Any) -> Any:
    """The kernel with zeros behind the rows where their number is not one of `stepped`."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, *attributes: object) -> Tensor:
        k = x.shape[-1]
        if x.dim() == 2 and x.stride(0) == 1 < x.stride(1):  # of a weight's gradient: the rows are what is summed over
            more = stepped(k)
            if more == k:
                return kernel(x, weight, bias, *attributes)
            return kernel(_longer(x, x.shape[0], more), _longer(weight.t(), more, weight.shape[0]).t(), bias, *attributes)
        rows = x.numel() // k
        more = stepped(rows)
        if more == rows:
            return kernel(x, weight, bias, *attributes)
        out = kernel(_longer(x.reshape(rows, k), more, k), weight, bias, *attributes)[:rows].clone()  # or the others would be held as long
        return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])

    return product


def _longer(x: Tensor, rows: int, columns: int) -> Tensor:
    """A packed copy with zeros behind."""
    m, k = x.shape
    out = x.new_empty((rows, columns))
    out[:m, :k] = x
    out[:m, k:] = 0.0
    out[m:] = 0.0
    return out


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
    rows, columns = (k, n) if turned else (m, k + n)  # of which it makes longer ones
    longer = minimum(1, rows % STEP) * 4 * (rows + STEP) * columns
    copied = 4 * m * k if turned else 0
    return minimum(1, floordiv(m * k * n, LARGE)) * (onednn.product_of_rows(k) + copied + longer)


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

