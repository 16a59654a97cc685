"""FSDP2 on one rank: lasting shards, and units of full parameters gathered around their forward and backward passes (modelled).

A unit is gathered into a buffer and copied from it to full parameters; the buffer is held until the next unit is gathered. Gradients of a unit are copied
into the input of a reduce-scatter, held until the next one. In the backward pass the unit before is gathered ahead.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from foreshape.apps.forecast.parallel import ParallelSettings
from foreshape.apps.forecast.recorder import Recorder
from foreshape.interop.torch.untyped_torch import pytree, torch


class GatheredUnits:
    """The units of a traced module.

    Attributes:
        shards: the optimizer's parameters, by their names.
    """

    def __init__(self, recorder: Recorder, module: Any, settings: ParallelSettings, units: Mapping[str, Any]) -> None:
        self._recorder, self._settings = recorder, settings
        self.shards: dict[str, Any] = {}
        self.slots: dict[str, int | None] = {"buffer": None, "reduced": None}
        parameters = dict(module.named_parameters())
        grouped: set[str] = set()
        self._units: list[_Unit] = []
        for path, part in [*units.items(), ("", module)]:
            names = [name for name in parameters if name not in grouped and (name.startswith(f"{path}.") or not path)]
            grouped.update(names)
            if names:
                self._units.append(_Unit(self, path or "the root", part, {name: parameters[name] for name in names}, is_root=not path))
        for unit, following in zip(self._units[1:], self._units, strict=False):
            unit.following = following

    def shard(self, name: str, parameter: Any) -> None:
        """Replace a parameter by its shard."""
        rows = parameter.shape[0] if parameter.dim() else 1
        shape = (-(-rows // self._settings.ranks), *parameter.shape[1:])
        out = torch.nn.Parameter(torch.empty(shape, dtype=parameter.dtype), requires_grad=parameter.requires_grad)
        self._recorder.rename(out, "parameter", name)
        self.shards[name] = out

    def hold(self, key: str, size: int, name: str) -> None:
        """Take a buffer, and give back the one before."""
        slot = self._recorder.take(size, "workspace", name)
        self.drop(key)
        self.slots[key] = slot

    def drop(self, key: str) -> None:
        """Give back a buffer."""
        slot = self.slots[key]
        if slot is not None:
            self._recorder.record.free(slot)
        self.slots[key] = None

    def end_backward(self) -> None:
        """Reduce the remainder, and give back the buffers."""
        for unit in self._units:
            unit.reduce()
        self.drop("buffer")
        self.drop("reduced")

    @property
    def recorder(self) -> Recorder:
        """Return the recorder."""
        return self._recorder

    @property
    def reshards(self) -> bool:
        """Tell whether units are given back behind the forward pass."""
        return self._settings.reshards


class _Unit:
    def __init__(self, units: GatheredUnits, path: str, module: Any, parameters: Mapping[str, Any], *, is_root: bool) -> None:
        self.units, self.path, self.parameters, self.is_root = units, path, parameters, is_root
        self.size = sum(p.numel() * p.element_size() for p in parameters.values())
        self.full: int | None = None
        self.waiting = 0
        self.following: _Unit | None = None
        for name, parameter in parameters.items():
            units.recorder.leave_out(parameter)
            units.shard(name, parameter)
            if parameter.requires_grad:
                parameter.register_post_accumulate_grad_hook(self._arrive)
        module.register_forward_pre_hook(self._begin_forward)
        module.register_forward_hook(self._end_forward)

    def gather(self) -> None:
        """Gather the full parameters."""
        if self.full is None:
            self.units.hold("buffer", self.size, "all-gather")
            self.full = self.units.recorder.take(self.size, "parameter", f"gathered {self.path}")

    def scatter(self) -> None:
        """Give the full parameters back."""
        if self.full is not None:
            self.units.recorder.record.free(self.full)
            self.full = None

    def _end_forward(self, module: Any, inputs: Any, outputs: Any) -> None:
        if self.units.recorder.phase != "activation":
            return  # computed again in the backward pass
        if self.units.reshards and not self.is_root:
            self.scatter()
        self.waiting = sum(1 for p in self.parameters.values() if p.requires_grad)
        for value in pytree().tree_leaves(outputs):
            if isinstance(value, torch.Tensor) and value.requires_grad:
                value.register_hook(self._begin_backward)

    def _begin_forward(self, module: Any, inputs: Any) -> None:
        self.gather()

    def _begin_backward(self, grad: Any) -> None:
        self.gather()
        if self.following is not None and not self.following.is_root:
            self.following.gather()

    def _arrive(self, parameter: Any) -> None:
        self.waiting -= 1
        if self.waiting == 0:
            self.reduce()

    def reduce(self) -> None:
        """Reduce the gradients to the shards' own, and give the full ones back."""
        grads = {name: p for name, p in self.parameters.items() if p.grad is not None}
        if grads:
            self.units.hold("reduced", sum(p.grad.numel() * p.grad.element_size() for p in grads.values()), "reduce-scatter")
        for name, parameter in grads.items():
            shard = self.units.shards[name]
            parameter.grad = None
            grad = torch.empty_like(shard)
            if shard.grad is None:
                shard.grad = grad
            else:
                shard.grad.add_(grad)
        self.scatter()
