"""The values of a module of torch, a program, as a scope in the same memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from foreshape.errors import ExecutionError
from foreshape.interop.torch.network_steps import NetworkSteps
from foreshape.interop.torch.untyped_torch import torch
from foreshape.runtime.engine import Scope

_MODULE: Any = torch.nn.Module
_OWN: frozenset[str] = frozenset(_MODULE().__dict__)
"""The attributes of each module."""
_address, _dims = torch.Tensor.data_ptr, torch.Tensor.size


class ModuleValues:
    """The scope of a module: aliases of its parameters and buffers, made anew where these have moved. Copies of the module begin with an empty one."""

    def __init__(self) -> None:
        self._scope = Scope()
        self._places: list[tuple[dict[str, Any], str]] = []
        self._marks: tuple[list[Any], ...] = ([], [], [])
        self._version = 0
        self._wanted: dict[tuple[bool, ...], tuple[list[int], tuple[str, ...]]] = {}
        self.names: list[str] = []

    def __deepcopy__(self, memo: object) -> ModuleValues:
        return ModuleValues()

    def __reduce__(self) -> tuple[Any, ...]:
        return ModuleValues, ()

    def scope_of(self, module: Any, steps: NetworkSteps) -> tuple[Scope, list[Any]]:
        """Return the scope, and the module's own tensors in the order of ``names``."""
        if not self._places:
            self.names = steps.held()
            self._places = [_place(module, n) for n in self.names]
        try:
            scope, now = self._scope, [of[key] for of, key in self._places]
        except KeyError as gone:
            raise ExecutionError(f"the module has no parameter or buffer {gone.args[0]} any more: its parts must keep the ones that it was made with") from None
        marks = [*map(id, now)], [*map(_address, now)], [*map(_dims, now)]
        if marks != self._marks:
            known = [*zip(*self._marks, strict=True)]
            for at, (name, tensor, mark) in enumerate(zip(self.names, now, zip(*marks, strict=True), strict=True)):
                if at >= len(known) or mark != known[at]:
                    scope.share(name, tensor.detach())
            self._marks, self._version = marks, scope.version
        return scope, now

    def wanted(self, tensors: Sequence[Any]) -> tuple[list[Any], tuple[str, ...]]:
        """Return the tensors with a gradient, and their names."""
        mask = tuple([t.requires_grad for t in tensors])
        found = self._wanted.get(mask)
        if found is None:
            places = [at for at, on in enumerate(mask) if on]
            found = self._wanted[mask] = places, tuple([self.names[at] for at in places])
        return [tensors[at] for at in found[0]], found[1]

    def take_stored(self, module: Any, scope: Scope) -> None:
        """Give the module the values stored in a new place by a run, of another shape than before."""
        if scope.version == self._version:
            return
        for name, (of, key) in zip(self.names, self._places, strict=True):
            stored = scope.tensor(name)
            if stored.data_ptr() != of[key].data_ptr() or stored.shape != of[key].shape:
                of[key] = stored
        self._version = scope.version


def place_values(module: Any, steps: NetworkSteps, scope: Scope, others: Mapping[str, str]) -> None:
    """Give a module its parameters and buffers, in the memory of a scope.

    Args:
        others: further names of values, each with the name here: of tied weights, and of values the network does not read.

    Raises:
        ExecutionError: the scope lacks values.
    """
    names = steps.held()
    missing = [n for n in names if n not in scope]
    if missing:
        shown = ", ".join(missing[:5]) + (f" and {len(missing) - 5} more" if len(missing) > 5 else "")
        raise ExecutionError(f"not initialised: {shown}; run the startup program first, or load parameters into the scope")
    block = steps.program.global_block
    of_module = {*others, *others.values()}
    for name in names:
        variable, tensor = block.vars[name], alias(scope.tensor(name))
        parameter = variable.is_parameter and (tensor.is_floating_point() or tensor.is_complex())
        owner, key = _owner(module, name)
        if parameter:
            owner._parameters[key] = torch.nn.Parameter(tensor, requires_grad=variable.trainable)
        else:
            owner._buffers[key] = tensor
            if others and name not in of_module:  # a constant, or a buffer that the module did not save either
                owner._non_persistent_buffers_set.add(key)
    placed = set(names)
    for name, own in others.items():
        if name in placed or own not in scope:
            continue
        owner, key = _owner(module, name)
        if own in placed:
            of, at = _place(module, own)
            (owner._parameters if of[at].__class__ is torch.nn.Parameter else owner._buffers)[key] = of[at]
        else:
            owner._buffers[key] = alias(scope.tensor(own))


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
    return module, _key(parts[-1])


def _key(name: str) -> str:
    """Return a value's name in its module: another for one that torch sets itself, as ``training``."""
    return f"{name}_" if name in _OWN else name


def _place(module: Any, name: str) -> tuple[dict[str, Any], str]:
    """Return where a module has a value: the dict of its parameters or buffers, and the key."""
    parts = name.split(".")
    for at in range(len(parts)):
        key = _key(".".join(parts[at:]))
        for of in (module._parameters, module._buffers):
            if key in of:
                return of, key
        module = module._modules.get(parts[at])
        if module is None:
            break
    raise ExecutionError(f"the module has no parameter or buffer {name} any more")


def alias(value: Any) -> Any:
    """Return a tensor in the same memory that torch's graph of gradients takes: the scope's may be one of inference mode."""
    return torch.empty(0, dtype=value.dtype, device=value.device).set_(value.untyped_storage(), value.storage_offset(), value.shape, value.stride())
