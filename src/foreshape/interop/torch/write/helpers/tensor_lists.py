"""Arrays of tensors as lists."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor


def with_element(array: list[Tensor | None], x: Tensor, place: int) -> list[Tensor | None]:
    """Return an array with a tensor at a place. Unwritten places before it are None."""
    longer = [*array, *[None] * (place + 1 - len(array))]
    return [*longer[:place], x, *longer[place + 1 :]]


def one_after_another(tensors: Sequence[Tensor], align: int, size: int) -> Tensor:
    """Return the elements of tensors in a row, each tensor with zeros up to a multiple of ``align`` bytes; an element has ``size``."""
    return torch.cat([F.pad(t.reshape(-1), (0, -(-t.numel() * size // align) * align // size - t.numel())) for t in tensors])
