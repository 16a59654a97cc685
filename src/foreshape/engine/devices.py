"""Where an executor may compute: the devices that there are here."""

from __future__ import annotations

from typing import Any

from foreshape.errors import ExecutionError
from foreshape.values.torch_proxy import torch


def device_of(name: Any) -> Any:
    """The device of a name, ``cpu``, ``cuda``, ``cuda:1``: a ``torch.device``.

    Raises:
        ExecutionError: no device is called so, or this machine, or this PyTorch, has none of its kind.
    """
    try:
        device: Any = torch.device(name)
    except (RuntimeError, TypeError):
        raise ExecutionError(f"there is no device {name!r}: {_here()}") from None
    if device.type == "cpu":
        return device
    try:
        room: Any = torch.get_device_module(device)
        count = int(room.device_count()) if room.is_available() else 0
    except (RuntimeError, AttributeError, AssertionError, ImportError):  # a kind that this PyTorch has no code for, or that computes nothing
        count = 0
    if not count:
        built = f"; this PyTorch, {torch.__version__}, is built without CUDA" if device.type == "cuda" and torch.version.cuda is None else ""
        raise ExecutionError(f"there is no {device.type} device here: {_here()}{built}")
    if device.index is not None and device.index >= count:
        raise ExecutionError(f"there is no device {name!r}: {_here()}")
    return device


def _here() -> str:
    count = torch.cuda.device_count() if torch.cuda.is_available() else 0
    return "it can be cpu" + ("" if not count else " or cuda" if count == 1 else f" or cuda, cuda:0 to cuda:{count - 1}")
