"""Entries of tensors."""

from __future__ import annotations

from typing import Any

from torch import Tensor


def with_entries(x: Tensor, index: tuple[Any, ...], value: Any) -> Tensor:
    """Return a copy of ``x`` with other entries at an index."""
    out = x.clone()
    out[index] = value
    return out
