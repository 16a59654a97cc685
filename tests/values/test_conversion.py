"""Arrays of numpy as tensors."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from foreshape.core.values.conversion import to_tensor


def test_bfloat16_of_ml_dtypes_is_taken_with_its_bits() -> None:
    ml_dtypes = pytest.importorskip("ml_dtypes")
    for array in (np.array([[1.5, -2.0], [np.inf, 3e38]], ml_dtypes.bfloat16), np.zeros((0, 3), ml_dtypes.bfloat16), np.array(2.5, ml_dtypes.bfloat16)):
        tensor = to_tensor(array)
        assert tensor.dtype is torch.bfloat16 and tensor.float().numpy().tolist() == array.astype("float32").tolist()
    every_other = to_tensor(np.arange(6).astype(ml_dtypes.bfloat16)[::2])
    assert every_other.tolist() == [0.0, 2.0, 4.0]
