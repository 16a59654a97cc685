"""The devices of this machine for an executor."""

from __future__ import annotations

from typing import Any

from foreshape.core.hints import did_you_mean
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError


def device_of(name: Any) -> Any:
    """Return the device of a name, ``cpu``, ``cuda``, ``cuda:1``: a ``torch.device``, with its number, as tensors on it have it.

    Raises:
        ExecutionError: no device is called so, or this machine, or this PyTorch, has none of its kind.
    """
    try:
        device: Any = torch.device(name)
        room = None if device.type == "cpu" else torch.get_device_module(device)
        valid = room is None or (device.index or 0) < _count(room)
        if room is not None and valid and device.index is None:
            device = torch.device(device.type, room.current_device())
    except (RuntimeError, TypeError, AttributeError, AssertionError, ImportError):  # no name of a device, or a kind without code here
        device, valid = None, False
    if valid:
        return device
    count = _count(torch.cuda)
    choices = "" if not count else " or cuda" if count == 1 else f" or cuda, cuda:0 to cuda:{count - 1}"
    without = str(name).startswith(("cuda", "gpu")) and torch.version.cuda is None
    why = f"; this PyTorch, {torch.__version__}, is built without CUDA" if without else ""
    raise ExecutionError(f"there is no device {name!r} here: it can be cpu{choices}{why}{did_you_mean(name, ('cpu', 'cuda') if count else ('cpu',))}")


def _count(room: Any) -> int:
    """Count the devices of a kind."""
    return int(room.device_count()) if room.is_available() else 0
