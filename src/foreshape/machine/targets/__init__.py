"""The kinds of device that steps are made for, and what the compiler asks of them."""

from dataclasses import replace
from typing import Any

from foreshape.machine.targets.compiled_target import compiling_for, current_target
from foreshape.machine.targets.cpu import CPU
from foreshape.machine.targets.cuda import CUDA
from foreshape.machine.targets.target import DeviceTarget, Feature

__all__ = ["CPU", "CUDA", "DeviceTarget", "Feature", "compiling_for", "current_target", "is_device_name", "target_of"]


def is_device_name(name: object) -> bool:
    """Return True for "cpu" and "cuda", possibly with a number or a card's name behind a colon."""
    return isinstance(name, str) and name.partition(":")[0] in ("cpu", "cuda") and not name.endswith(":")


def target_of(device: Any) -> DeviceTarget:
    """Return the target of a device: a ``torch.device``, or the name of one; None is the processor's."""
    kind = "cpu" if device is None else str(getattr(device, "type", device)).partition(":")[0]
    target = CPU if kind == "cpu" else CUDA if kind == "cuda" else DeviceTarget(kind)
    return target if target.is_processor or isinstance(device, str) else replace(target, device=device)
