"""Modes of a trace: gradients on whatever the caller has, devices of the user's code taken for the processor, casts of modules without numbers."""

from __future__ import annotations

import importlib
import threading
from collections.abc import Generator, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any, Final

from foreshape.interop.torch.untyped_torch import pytree, torch

_FUNCTION_MODE: Final[Any] = importlib.import_module("torch.overrides").TorchFunctionMode
_KEPT: Final = ("cpu", "meta")
_OWN: Final = ("_parameters", "_buffers", "_modules")


class OnProcessor(_FUNCTION_MODE):  # pyright: ignore[reportUntypedBaseClass]
    """Within it, devices named by the user's code are the processor: tensors of a GPU without numbers end the process where torch has no CUDA."""

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        if func is torch.Tensor.cuda:
            return args[0]
        if kwargs.get("device") is not None:
            kwargs = {**kwargs, "device": _processor(kwargs["device"])}
        if func is torch.Tensor.to:
            args = (args[0], *(_processor(value) if _is_device(value) else value for value in args[1:]))
        return func(*args, **kwargs)


def _is_device(value: Any) -> bool:
    return isinstance(value, (str, torch.device)) or (isinstance(value, int) and not isinstance(value, bool))


def _processor(device: Any) -> Any:
    """Return the processor in place of a GPU."""
    return device if _is_device(device) and str(device).partition(":")[0] in _KEPT else torch.device("cpu")


@contextmanager
def callers_modes_left() -> Generator[None]:
    """Leave the caller's ``no_grad``, ``inference_mode`` and default device within the block."""
    with ExitStack() as stack:
        stack.enter_context(torch.inference_mode(False))
        stack.enter_context(torch.enable_grad())
        if torch.overrides.has_torch_function((1,)):  # a mode is on, perhaps the one of a default device; to ask for that one begins CUDA
            stack.enter_context(torch.device("cpu"))
        yield


@contextmanager
def casts_in_place() -> Generator[None]:
    """Let ``Module.to``, ``half`` and others change parameters without numbers within the block, in this thread: torch would swap them, and refuses."""
    cls = torch.nn.Module
    original, thread = cls._apply, threading.get_ident()

    def apply(self: Any, fn: Any, recurse: bool = True) -> Any:
        if threading.get_ident() != thread:
            return original(self, fn, recurse)
        if recurse:
            for child in self.children():
                child._apply(fn)
        for key, parameter in self._parameters.items():
            if parameter is not None:
                with torch.no_grad():
                    applied = fn(parameter)
                if applied.device.type == parameter.device.type:
                    parameter.data = applied
                else:
                    self._parameters[key] = torch.nn.Parameter(applied, requires_grad=parameter.requires_grad)
        for key, buffer in self._buffers.items():
            if buffer is not None:
                self._buffers[key] = fn(buffer)
        return self

    cls._apply = apply
    try:
        yield
    finally:
        cls._apply = original


def plain_tensors(module: Any) -> Iterator[tuple[str, Any]]:
    """Yield the tensors in attributes of a module and its parts, with their names; some may be its parameters."""
    modules: list[tuple[str, Any]] = list(module.named_modules())
    for path, part in modules:
        attributes: dict[str, Any] = part.__dict__
        for name, value in attributes.items():
            if name not in _OWN:
                for tensor in pytree().tree_leaves(value):
                    if isinstance(tensor, torch.Tensor):
                        yield f"{path}.{name}" if path else name, tensor
