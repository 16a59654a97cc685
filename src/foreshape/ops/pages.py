"""Large zeros that take memory where they are written to, such as the state of an optimizer that touches few rows of its table."""

from __future__ import annotations

import math
import mmap
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape.ops.torch_proxy import torch

if TYPE_CHECKING:
    from torch import Tensor

LARGE = 1 << 28
"""From how many bytes on zeros are the system's own empty pages."""


def filled_on_demand(shape: Sequence[int], number: float, dtype: Any) -> Tensor:
    """A tensor full of a number. Where the system can, large zeros on the CPU take a page of memory when something is first written there."""
    size = math.prod(shape) * dtype.itemsize
    if number != 0 or size < LARGE or not hasattr(mmap, "MAP_PRIVATE") or torch.get_default_device().type != "cpu":
        return torch.full(tuple(shape), number, dtype=dtype)
    pages = mmap.mmap(-1, size, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(pages, dtype=dtype).view(tuple(shape))  # pyright: ignore[reportUnknownMemberType]
