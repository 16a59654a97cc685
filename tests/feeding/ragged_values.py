"""Sequences that are fed, and how a program takes them in."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

import foreshape as fs
from foreshape import layer
from foreshape.core.values.lod_tensor import LoDTensor


def fed(value: Any, shape: Sequence[Any] = (-1, 3), levels: int = 1, dtype: str = "fp32") -> LoDTensor:
    """The value after a program has taken it in and given it back."""
    program = fs.Program()
    with fs.program_guard(program, fs.Program()):
        x = layer.data("x", shape=list(shape), lod_level=levels, dtype=dtype)
        y = program.global_block.apply("assign", {"X": x})
    out = fs.Executor().run(program, {"x": value}, [y], fs.Scope())[0]
    assert isinstance(out, LoDTensor)
    return out


def rows(*lengths: int, width: int = 3) -> list[np.ndarray]:
    """Sequences of these lengths, every number different."""
    total = sum(lengths)
    data = np.arange(total * width, dtype=np.float32).reshape(total, width)
    return np.split(data, np.cumsum(lengths)[:-1])


def check(got: LoDTensor, data: Any, *lengths: Sequence[int]) -> None:
    assert got.sequence_lengths == [list(level) for level in lengths]
    np.testing.assert_array_equal(got.data, data)
    assert got.data.shape == np.shape(data)


SEQUENCES = rows(4, 0, 5)
PACKED = np.concatenate(SEQUENCES)
