"""Matrix products on the fastest of torch's kernels.

torch's ``mm`` calls BLAS. Intel's BLAS, in torch's x86 builds, uses AVX-512 on Intel's own processors only. On others with AVX-512, it is about half as fast
as oneDNN's inner product, also in torch. Where both use AVX2, it takes 0.6 to 1 times oneDNN's time. The choice depends on the processor and on the sizes
only, never on a measurement, so a resumed run computes the same bits. ``FORESHAPE_PRODUCTS=blas`` or ``onednn`` overrides it.
"""

from __future__ import annotations

import os
from functools import cache, lru_cache
from typing import Any

from foreshape.core.dims import Size, minimum, reaches
from foreshape.core.values.torch_private import has, private
from foreshape.core.values.torch_proxy import F, Tensor, torch
from foreshape.machine.kernels import onednn
from foreshape.machine.kernels.onednn_library import library
from foreshape.machine.targets import Feature, current_target

LARGE = 3 << 19
"""Products of at least this many multiplications repay oneDNN's longer start, about 10 microseconds."""


def prefers_onednn() -> bool:
    """Return True if oneDNN makes large products on this processor; never on another target."""
    return _prefers_onednn() and current_target().has(Feature.ONEDNN)


@cache
def _prefers_onednn() -> bool:
    wanted = os.environ.get("FORESHAPE_PRODUCTS", "")
    return wanted == "onednn" or (wanted != "blas" and _is_amd_with_avx512())


@cache
def onednn_linear() -> Any:
    """Return oneDNN's ``(x, weight [out, in], bias, "none", [], "") -> x weight' + bias``; of a torch without it, the same on BLAS."""
    kernel = _kernel()
    return _blas_linear if kernel is None else _in_few_sizes(kernel)


@cache
def _sparing_linear() -> Any:
    """Return the same kernel without copies of operands: BLAS makes the rows behind a multiple of `STEP`."""
    kernel = _kernel()
    return _blas_linear if kernel is None else _with_rest(kernel)


def _kernel() -> Any:
    if not torch.backends.mkldnn.is_available() or not has("linear_pointwise"):
        return None
    kernel = private.linear_pointwise

    def dense(x: Tensor, weight: Tensor, bias: Tensor | None, *rest: object) -> Tensor:
        """Call the kernel, which copies ``x`` itself if it has gaps, and requires a bias without any."""
        return kernel(x, without_gaps(weight), bias if bias is None else bias.contiguous(), *rest)

    return dense


def without_gaps(matrix: Tensor) -> Tensor:
    """Return a matrix whose rows, or columns, lie behind one another, copied where they do not.

    For other strides, as of a slice or a broadcast weight, oneDNN has only its reference kernel, some 600 times slower, or none.
    """
    rows, columns = matrix.shape
    strides = matrix.stride()
    if strides == (1, rows) or strides == (columns, 1):
        return matrix
    return matrix.t().contiguous().t() if strides[0] == 1 else matrix.contiguous()


STEP = 16
"""The step of oneDNN's numbers of rows, with zeros behind. It keeps about half a MiB for every size of a product, and takes a millisecond for each new one.
Many sizes of batches would add up.
"""
CHUNK = 2 << 20
"""The bytes of the pieces in which a sum is added to a weight, where oneDNN's own library is missing: torch's cannot add to memory."""
_DEEP, _LONG = 384, 9984
"""A thread of oneDNN packs pieces of this depth, so many rows of one operand and at most so many columns of the other."""


def _in_few_sizes(kernel: Any) -> Any:
    """Return the kernel for rows in a multiple of `STEP`. Others are padded, which costs less than to read the weight twice."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, *attributes: object) -> Tensor:
        k = x.shape[-1]
        if x.dim() == 2 and x.stride(0) == 1 < x.stride(1):  # of a weight's gradient: the sum is over the rows
            if not k % STEP:
                return kernel(x, weight, bias, *attributes)
            return kernel(_longer(x.t()).t(), _longer(weight.t()).t(), bias, *attributes)
        rows = x.numel() // k
        if not rows % STEP:
            return kernel(x, weight, bias, *attributes)
        out = kernel(_longer(x.reshape(rows, k)), weight, bias, *attributes)[:rows].clone()  # or the others would be held as long
        return out if x.dim() == 2 else out.view(*x.shape[:-1], out.shape[1])

    return product


def _with_rest(kernel: Any) -> Any:
    """Return the kernel for the rows up to a multiple of `STEP`, with BLAS for the rest."""

    def product(x: Tensor, weight: Tensor, bias: Tensor | None, *attributes: object) -> Tensor:
        k = x.shape[-1]
        if x.dim() == 2 and x.stride(0) == 1 < x.stride(1):
            most = k - k % STEP
            if most == k or not most:
                return kernel(x, weight, bias, *attributes)
            return kernel(x[:, :most], weight[:, :most], bias, *attributes).addmm_(x[:, most:], weight[:, most:].t())
        rows = x.shape[0]
        most = rows - rows % STEP
        if most == rows or not most:
            return kernel(x, weight, bias, *attributes)
        out = x.new_empty((rows, weight.shape[0]))
        out[:most] = kernel(x[:most], weight, bias, *attributes)
        if bias is None:
            torch.mm(x[most:], weight.t(), out=out[most:])
        else:
            torch.addmm(bias, x[most:], weight.t(), out=out[most:])
        return out

    return product


def _longer(x: Tensor) -> Tensor:
    """Return a contiguous copy, with rows of zeros behind up to a multiple of `STEP`."""
    rows, k = x.shape
    out = x.new_empty((rows + -rows % STEP, k))
    out[:rows] = x
    out[rows:] = 0.0
    return out


def _blas_linear(x: Tensor, weight: Tensor, bias: Tensor | None, *attributes: object) -> Tensor:
    return torch.nn.functional.linear(x, weight, bias)


def _is_amd_with_avx512(path: str = "/proc/cpuinfo") -> bool:
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            first = file.read(1 << 14).partition("\n\n")[0]  # of one processor
    except OSError:
        return False
    return "AuthenticAMD" in first and " avx512f" in first


def fits(a: Tensor, b: Tensor) -> bool:
    """Return True if oneDNN should make the product of two matrices."""
    return (
        a.shape[0] * a.shape[1] * b.shape[1] >= LARGE and a.dtype is torch.float32 and b.dtype is torch.float32 and a.device.type == "cpu" and prefers_onednn()
    )


def workspace(m: Size, k: Size, n: Size, turned: bool = False, longer: bool = False) -> Size:
    """Return the workspace in bytes of the product of fp32 ``[m, k]`` and ``[k, n]``.

    Args:
        turned: the first is a transposed view, copied by torch's oneDNN; oneDNN's own library packs pieces of it.
        longer: `onednn_linear` makes it, with padded rows, not `mm` or `linear`.
    """
    if not prefers_onednn():
        return 0
    if turned and library() is not None:
        return _adding_workspace(m, k, n, onednn.thread_count(), True)
    return _workspace(m, k, n, turned, longer, onednn.thread_count())


@lru_cache(4096)
def _workspace(m: Size, k: Size, n: Size, turned: bool, longer: bool, threads: int) -> Size:
    if turned:
        more = 4 * m * k
    elif longer:
        more = minimum(1, m % STEP) * 4 * (m + STEP) * (k + n)
    else:
        more = minimum(1, m % STEP) * 4 * m * n  # most of the result, before it is put together
    return reaches(m * k * n, LARGE) * (onednn.product_of_rows(k, threads) + more)


def copied(m: Size, k: Size, n: Size) -> tuple[Size, Size]:
    """Return the bytes of copies of both operands of the product of fp32 ``[m, k]`` and ``[k, n]``, if they have gaps: BLAS copies neither."""
    large = reaches(m * k * n, LARGE) if prefers_onednn() else 0
    return large * (4 * m * k), large * (4 * k * n)


def adding_workspace(m: Size, k: Size, n: Size) -> Size:
    """Return the workspace of `add_product_` in bytes."""
    return _adding_workspace(m, k, n, onednn.thread_count(), library() is not None) if prefers_onednn() else 0


@lru_cache(4096)
def _adding_workspace(m: Size, k: Size, n: Size, threads: int, at_once: bool) -> Size:
    if at_once:  # pieces of both operands, packed by each thread
        return reaches(m * k * n, LARGE) * threads * (4 * minimum(k, _DEEP) * (minimum(n, _LONG) + minimum(m, _DEEP)) + onednn.SMALL)
    rows = minimum(m, _chunk(n) if isinstance(n, int) else m)
    longer = minimum(1, k % STEP) * 4 * (k + STEP) * (rows + n)
    return reaches(m * k * n, LARGE) * (onednn.product_of_rows(k, threads) + 4 * rows * (k + n) + longer)


def _chunk(columns: int) -> int:
    """Return the number of rows of a weight made at once."""
    return max(CHUNK // (4 * columns) // STEP, 8) * STEP


def mm(a: Tensor, b: Tensor) -> Tensor:
    """Return ``a b`` of two matrices ``[m, k]`` and ``[k, n]``; either may be a transposed view."""
    if not fits(a, b):
        return torch.mm(a, b)
    if a.stride(0) == 1 < a.stride(1) and (onednn_itself := library()) is not None:
        return _new_product(onednn_itself, a, b, None)
    return _sparing_linear()(a, b.t(), None, "none", [], "")


def linear(x: Tensor, w: Tensor, bias: Tensor) -> Tensor:
    """Return ``x w + bias`` of ``[m, k]``, ``[k, n]`` and ``[n]``."""
    if fits(x, w):
        return _sparing_linear()(x, w.t(), bias, "none", [], "")
    return torch.addmm(bias, x, w)


def at_once(a: Tensor, b: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return the same as `mm` and `linear`, of any views without copies: on oneDNN's own library, or on BLAS where it is not installed."""
    onednn_itself = library() if fits(a, b) else None
    if onednn_itself is not None:
        return _new_product(onednn_itself, a, b, bias)
    return torch.mm(a, b) if bias is None else torch.addmm(bias, a, b)


def _new_product(onednn_itself: Any, a: Tensor, b: Tensor, bias: Tensor | None) -> Tensor:
    out = a.new_empty((a.shape[0], b.shape[1]))
    if bias is not None:
        out.copy_(bias)
    a, b = (x if _step(x) else x.contiguous() for x in (a, b))
    _put(onednn_itself, out, a, b, 1.0, 0.0 if bias is None else 1.0)
    return out


def add_product_(p: Tensor, a: Tensor, b: Tensor, alpha: float) -> Tensor:
    """Return ``p += alpha a b`` in place, of ``[m, n]``, ``[m, k]`` and ``[k, n]``."""
    if not fits(a, b):
        return p.addmm_(a, b, alpha=alpha)
    onednn_itself = library()
    if onednn_itself is not None and all(map(_step, (a, b, p))) and _step(p) > 0:
        _put(onednn_itself, p, a, b, alpha, 1.0)
        return p
    linear_, weight, rows = onednn_linear(), without_gaps(b.t()), _chunk(b.shape[1])
    for at in range(0, a.shape[0], rows):
        p[at : at + rows].add_(linear_(a[at : at + rows], weight, None, "none", [], ""), alpha=alpha)
    return p


def put_product(out: Tensor, a: Tensor, b: Tensor) -> None:
    """Write ``a b`` of ``[m, k]`` and ``[k, n]`` into ``out``, ``[m, n]``, with the workspace of `add_product_`."""
    onednn_itself = library()
    if fits(a, b) and onednn_itself is not None and _step(a) and _step(b) and _step(out) > 0:
        _put(onednn_itself, out, a, b, 1.0, 0.0)
    elif fits(a, b):
        add_product_(out.zero_(), a, b, 1.0)
    else:
        torch.mm(a, b, out=out)


def _put(onednn_itself: Any, p: Tensor, a: Tensor, b: Tensor, by: float, keep: float) -> None:
    """Compute ``p = keep p + by a b`` on oneDNN's own library."""
    sizes = p.shape[0], p.shape[1], a.shape[1]
    onednn_itself.add_product(sizes, by, a.data_ptr(), _step(a), b.data_ptr(), _step(b), p.data_ptr(), _step(p), keep)


def _step(matrix: Tensor) -> int:
    """Return the elements from row to row of a matrix with contiguous rows; the negative number from column to column; 0 if neither are contiguous."""
    row, column = matrix.stride()
    rows, columns = matrix.shape
    if column == 1 and row >= columns:
        return row
    return -column if row == 1 and column >= rows else 0


def matmul(a: Tensor, b: Tensor) -> Tensor:
    """Return ``torch.matmul``, of any views in one call."""
    return torch.matmul(side_by_side(a), side_by_side(b)) if a.dim() > 2 or b.dim() > 2 else torch.matmul(a, b)


def affine(x: Tensor, weight: Tensor, bias: Tensor | None = None) -> Tensor:
    """Return ``x weight' + bias`` as torch's ``linear``, of any views in one call."""
    return F.linear(side_by_side(x), side_by_side(weight), bias) if x.dim() > 2 else F.linear(x, weight, bias)


def bmm(a: Tensor, b: Tensor) -> Tensor:
    """Return ``torch.bmm``, of any views in one call."""
    return torch.bmm(side_by_side(a), side_by_side(b))


def side_by_side(x: Tensor) -> Tensor:
    """Return a batch of matrices with contiguous rows or columns, copied where needed. BLAS takes no others, and torch would call it once for each matrix, up
    to 20 times slower.
    """
    if x.dim() < 2:
        return x
    rows, columns = x.shape[-2:]
    row, column = x.stride()[-2:]
    if column == 1:
        fits_blas = rows == 1 or row >= columns
    else:  # of one row torch forgets the stride on the way, and finds no columns any more
        fits_blas = row == 1 and rows > 1 and (columns == 1 or column >= rows)
    return x if fits_blas else x.contiguous()
