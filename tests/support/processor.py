"""What torch's own kernels can do on this processor."""

from __future__ import annotations

import functools

import pytest
import torch


@functools.cache
def bf16_lstm() -> bool:
    """Whether torch itself runs an LSTM in bf16: on some processors oneDNN says that it has one, and then makes none."""
    layer = torch.nn.LSTM(4, 4)
    try:
        with torch.autocast("cpu", torch.bfloat16):
            layer(torch.ones(3, 2, 4))
    except RuntimeError as e:
        if "could not create a primitive" in str(e):
            return False
        raise
    return True


def skip_without_bf16_lstm() -> None:
    if not bf16_lstm():
        pytest.skip("torch has no LSTM in bf16 on this processor")
