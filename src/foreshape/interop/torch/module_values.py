"""The values of a module of torch that is a program, as a scope in the same memory."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreshape.engine import Scope
from foreshape.errors import ExecutionError
from foreshape.interop.torch.network_steps import NetworkSteps
from foreshape.interop.torch.untyped_torch import torch


class ModuleValues:
    """The scope of a module: aliases of its parameters and buffers, made anew where these have moved. Copies of the module begin with an empty one."""

    def __init__(self) -> None:
        self._scope = Scope()
        self._places: list[tuple[str, dict[str, Any], str]] | None = None
        self._marks: list[Any] = []
        self._version = 0

    def __deepcopy__(self, memo: object) -> ModuleValues:
        return ModuleValues()

    def __reduce__(self) -> tuple[Any, ...]:
        return ModuleValues, ()

    def scope_of(self, module: Any, names: Callable[[], Sequence[str]] | Sequence[str]) -> tuple[Scope, dict[str, Any], Any]:
        """Return the scope, the module's own tensors by name, and their device."""
        if self._places is None:
            self._places = [(n, *_place(module, n)) for n in (names() if callable(names) else names)]
        scope, now = self._scope, {n: of[key] for n, of, key in self._places}
        marks = [(t.data_ptr(), t.shape, t.dtype) for t in now.values()]
        if marks != self._marks:
            for at, (name, tensor) in enumerate(now.items()):
                if at >= len(self._marks) or marks[at] != self._marks[at]:
                    scope.share(name, tensor.detach())
            self._marks, self._version = marks, scope.version
        first = next(iter(now.values()), None)
        return scope, now, torch.device("cpu") if first is None else first.device

    def take_stored(self, module: Any, scope: Scope) -> None:
        """Give the module the values that a run has stored in a new place, of another shape than before."""
        if scope.version == self._version:
            return
        for name, of, key in self._places or ():
            stored = scope.tensor(name)
            if stored.data_ptr() != of[key].data_ptr() or stored.shape != of[key].shape:
                of[key] = stored
        self._version = scope.version


def place_values(module: Any, steps: NetworkSteps, scope: Scope) -> None:
    """Give a module its parameters and buffers, in the memory of a scope.

    Raises:
        ExecutionError: the scope lacks values.
    """
    names = steps.held()
    missing = [n for n in names if n not in scope]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ExecutionError(f"not initialised: {shown}; run the startup program first, or load parameters into the scope")
    block = steps.program.global_block
    for name in names:
        variable, tensor = block.vars[name], _alias(scope.tensor(name))
        parameter = variable.is_parameter and (tensor.is_floating_point() or tensor.is_complex())
        owner, key = _owner(module, name)
        if parameter:
            owner._parameters[key] = torch.nn.Parameter(tensor, requires_grad=variable.trainable)
        else:
            owner._buffers[key] = tensor


def _owner(module: Any, name: str) -> tuple[Any, str]:
    """Return the module for a value, made where it is not there, and the value's name in it; a clash leaves the rest of the name as it is."""
    parts = name.split(".")
    for at, part in enumerate(parts[:-1]):
        inner = module._modules.get(part)
        if inner is None:
            if not part or hasattr(module, part):
                return module, ".".join(parts[at:])
            inner = module._modules[part] = torch.nn.Module()
        module = inner
    return module, parts[-1]


def _place(module: Any, name: str) -> tuple[dict[str, Any], str]:
    """Return where a module has a value: the dict of its parameters or buffers, and the key."""
    parts = name.split(".")
    for at in range(len(parts)):
        key = ".".join(parts[at:])
        for of in (module._parameters, module._buffers):
            if key in of:
                return of, key
        module = module._modules.get(parts[at])
        if module is None:
            break
    raise ExecutionError(f"the module has no parameter or buffer {name} any more")


def _alias(value: Any) -> Any:
    """Return a tensor in the same memory that torch's graph of gradients takes: the scope's may be one of inference mode."""
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
