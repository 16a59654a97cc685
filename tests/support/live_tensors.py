"""The bytes of all tensors of a process."""

from __future__ import annotations

import gc

import torch


def live_bytes() -> int:
    """Return the bytes of all memory under tensors that are alive, each once."""
    gc.collect()
    storages = {}
    for value in gc.get_objects():
        if type(value) in (torch.Tensor, torch.nn.Parameter) and value.device.type == "cpu":
            storage = value.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())
