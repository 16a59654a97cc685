"""Numbers as tensors, made once: beside a small operand torch takes longer to make a tensor of a number than to compute with it."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from foreshape.core.values.torch_proxy import Tensor, torch


@lru_cache(1024)  # -0.0 is found as 0.0
def held(number: float, dtype: Any) -> Tensor:
    """Return a number as a tensor without dims, of one of torch's element types."""
    with torch.inference_mode(False):  # gradients of torch's may be computed with it
        return torch.tensor(number, dtype=dtype)
