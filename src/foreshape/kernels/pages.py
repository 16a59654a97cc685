"""Memory for tensors that live long: where it begins, and large pages for tables, so that rows far apart are found faster."""

from __future__ import annotations

import contextlib
import math
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.values.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 1 << 26
"""From how many bytes on a tensor gets pages of its own."""
ALIGNMENT = 64
"""The bytes of which the address of a tensor's memory is a multiple, as torch's own is. Where it begins elsewhere, some products round
otherwise (those of Intel's BLAS, on processors without AVX-512)."""
_ADVICE: int | None = getattr(mmap, "MADV_HUGEPAGE", None)


def empty(shape: Sequence[int], dtype: Any) -> Tensor:
    """A tensor whose elements nobody has set. A large one on the CPU, where the system has large pages, is in such: a row of a
    table of gigabytes is then read and written in about half the time. It is given back to the system when it is dropped."""
    size = math.prod(shape) * dtype.itemsize
    if size < LARGE or _ADVICE is None or torch.get_default_device().type != "cpu":
        return torch.empty(tuple(shape), dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system whose administrator has turned them off
        pages.madvise(_ADVICE)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))  # pyright: ignore[reportUnknownMemberType]


def full(shape: Sequence[int], number: float, dtype: Any) -> Tensor:
    """A tensor full of a number, in such memory."""
    return empty(shape, dtype).fill_(number)


def is_aligned(value: Tensor) -> bool:
    """Whether a tensor begins where kernels round as they do with torch's own memory."""
    return not value.is_cpu or value.data_ptr() % ALIGNMENT == 0


def copied(value: Tensor) -> Tensor:
    """A packed copy, in such memory."""
    return empty(value.shape, value.dtype).copy_(value) if value.is_cpu else value.clone(memory_format=torch.contiguous_format)
