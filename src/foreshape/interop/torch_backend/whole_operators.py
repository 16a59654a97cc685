"""Operators left whole in graphs: AOTAutograd writes an interpolation as dozens of small ones, of several times its time and memory, for compilers to join."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from functools import cache
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import torch

_KEYS: Final[Any] = (torch._C.DispatchKey.Autograd, torch._C.DispatchKey.CompositeImplicitAutograd)


@contextmanager
def with_whole_operators() -> Generator[None]:
    """Take away torch's rewritings of interpolations in Python, for graphs traced meanwhile. Torch traces under one lock."""
    taken = [(operator, key, operator.py_kernels.pop(key)) for operator in _interpolations() for key in _KEYS if key in operator.py_kernels]
    _forget_kernels()
    try:
        yield
    finally:
        for operator, key, kernel in taken:
            operator.py_kernels[key] = kernel
        _forget_kernels()


def _forget_kernels() -> None:
    for operator in _interpolations():
        operator._dispatch_cache.clear()


@cache
def _interpolations() -> tuple[Any, ...]:
    packets = {name.partition(".")[0].removeprefix("aten::") for name in torch._C._dispatch_get_all_op_names() if name.startswith("aten::")}
    chosen = [getattr(torch.ops.aten, name) for name in sorted(packets) if "upsample_" in name and "backward" not in name]
    return tuple([getattr(packet, overload) for packet in chosen for overload in packet.overloads() if "out" not in overload])
