"""Memory for long-lived tensors: aligned, and in large pages for tables, for faster access to distant rows."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from typing import Any

from foreshape.core.values.torch_proxy import Tensor, torch

LARGE = 1 << 26
"""The least bytes of a tensor with pages of its own."""
ALIGNMENT = 64
"""The alignment in bytes of a tensor's memory, as torch's own. At other addresses some products round otherwise (Intel's BLAS, on processors without
AVX-512).
"""
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


def empty(shape: Sequence[int], dtype: Any, device: Any = None) -> Tensor:
    """Return a tensor with uninitialised elements, on a device or torch's default one. A large one on the CPU is in large pages if the system has them.
    Random rows of a table of gigabytes are then read and written in about half the time. It is returned to the system when dropped.
    """
    if device is not None:
        return torch.empty(tuple(shape), dtype=dtype, device=device)
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE or _ADVICE is None or torch.get_default_device().type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system whose administrator has turned them off
        pages.madvise(_ADVICE)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))  # pyright: ignore[reportUnknownMemberType]


def full(shape: Sequence[int], number: float, dtype: Any, device: Any = None) -> Tensor:
    """Return a tensor full of a number, in such memory."""
    return empty(shape, dtype, device).fill_(number)


def is_aligned(value: Tensor) -> bool:
    """Return True if a tensor begins where kernels round as with torch's own memory."""
    return not value.is_cpu or value.data_ptr() % ALIGNMENT == 0


def copied(value: Tensor) -> Tensor:
    """Return a packed copy, in such memory."""
    return empty(value.shape, value.dtype).copy_(value) if value.is_cpu else value.clone(memory_format=torch.contiguous_format)
