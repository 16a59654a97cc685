"""Operators left whole in graphs: AOTAutograd writes an interpolation as dozens of small ones, of several times its time and memory, for compilers to join."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch

_KEYS: Final = ("Autograd", "CompositeImplicitAutograd")
_NEAREST: Final = [f"{name}{dims}d" for name in ("upsample_nearest", "_upsample_nearest_exact") for dims in (1, 2, 3)]
_OTHERS: Final = "upsample_linear1d upsample_bilinear2d upsample_trilinear3d upsample_bicubic2d _upsample_bilinear2d_aa _upsample_bicubic2d_aa"


@contextmanager
def with_whole_operators() -> Generator[None]:
    """Take away torch's rewritings of interpolations in Python, for graphs traced meanwhile. Torch traces under one lock."""
    rewritings = [(operator, key) for operator in _interpolations() for key in operator.py_kernels if key.name in _KEYS]
    removed = [(operator, key, operator.py_kernels.pop(key)) for operator, key in rewritings]
    _forget_kernels()
    try:
        yield
    finally:
        for operator, key, kernel in removed:
            operator.py_kernels[key] = kernel
        _forget_kernels()


def _forget_kernels() -> None:
    for operator in _interpolations():
        operator._dispatch_cache.clear()


@cache
def _interpolations() -> tuple[Any, ...]:
    packets = [getattr(torch.ops.aten, name) for name in (*_NEAREST, *_OTHERS.split()) if hasattr(torch.ops.aten, name)]
    return tuple([getattr(packet, overload) for packet in packets for overload in packet.overloads() if "out" not in overload])
