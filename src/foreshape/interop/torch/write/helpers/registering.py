"""Parameters and buffers under their names."""

from __future__ import annotations

import torch
from torch import nn


def parameter(module: nn.Module, key: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Register a parameter; each part of its key but the last is a module."""
    *path, name = key.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype)))


def buffer(module: nn.Module, key: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Register a buffer; each part of its key but the last is a module."""
    *path, name = key.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    module.register_buffer(name, torch.zeros(shape, dtype=dtype))
