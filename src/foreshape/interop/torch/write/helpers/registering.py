"""Parameters and buffers under their names."""

from __future__ import annotations

import torch
from torch import nn


def parameter(module: nn.Module, key: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32) -> None:
    """Register a parameter; each part of its key but the last is a module."""
    owner, name = owner_of(module, key)
    owner.register_parameter(name, nn.Parameter(torch.zeros(shape, dtype=dtype)))


def buffer(module: nn.Module, key: str, shape: tuple[int, ...], dtype: torch.dtype = torch.float32, persistent: bool = True) -> None:
    """Register a buffer; each part of its key but the last is a module."""
    owner, name = owner_of(module, key)
    owner.register_buffer(name, torch.zeros(shape, dtype=dtype), persistent)


def tied(module: nn.Module, key: str, other: str) -> None:
    """Register a parameter or a buffer under a second key."""
    owner, name = owner_of(module, key)
    source, source_name = owner_of(module, other)
    value = getattr(source, source_name)
    if isinstance(value, nn.Parameter):
        owner.register_parameter(name, value)
    else:
        owner.register_buffer(name, value)


def owner_of(module: nn.Module, key: str) -> tuple[nn.Module, str]:
    """Return the module of a key, made where it is missing, and the name in it."""
    *path, name = key.split(".")
    for part in path:
        if not hasattr(module, part):
            module.add_module(part, nn.Module())
        module = module.get_submodule(part)
    return module, name
