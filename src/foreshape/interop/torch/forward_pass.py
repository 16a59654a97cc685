"""`ForwardPass`: a run of the first half of a network, with the needs of its second half."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

from foreshape.core.values.offsets import Offsets
from foreshape.core.values.rows import Rows
from foreshape.core.values.tensor_array import TensorArray
from foreshape.errors import ExecutionError
from foreshape.interop.torch.network_steps import NetworkStep
from foreshape.interop.torch.untyped_torch import torch
from foreshape.runtime.engine import Scope
from foreshape.runtime.engine.compiled_step import ShapePlan

ONCE: Final = (
    "a gradient of a gradient was asked for, through a network that is a program of Foreshape: its backward pass has none. Leave create_graph=True out, or "
    "keep the part whose second derivative is needed a module of torch"
)


class ForwardPass:
    """One forward pass with the needs of its backward pass."""

    __slots__ = ("bound", "executor", "fed", "inputs", "offsets", "planned", "scope", "shapes", "step")

    def __init__(self, executor: Any, step: NetworkStep, scope: Scope, bound: Any, planned: ShapePlan, fed: Sequence[Any]) -> None:
        self.executor, self.step, self.scope, self.bound, self.planned, self.fed = executor, step, scope, bound, planned, fed
        self.offsets: dict[int, Offsets] = {}
        self.shapes: list[Any] = []
        self.inputs: list[Any] = []
        """The shapes of the inputs with gradients; they come after parameters."""

    def forward(self) -> tuple[list[Any], list[Any]]:
        """Return the results, and the values handed to the second half."""
        halves = self.step.step.halves
        made = self.executor.half(self.step.step, self.bound.function, self.planned, self.fed)
        self.fed = ()
        count = len(halves.front.fetches)
        for value, of in zip(made, halves.front.fetches, strict=False):
            if value is None:
                raise ExecutionError(f"{of.name} has no value: the block that makes it did not run")
        ragged = [at for at, v in enumerate(halves.front.fetches) if v.lod is not None]
        self.offsets = dict(zip(ragged, made[count:], strict=False))
        return [torch_value(v) for v in made[:count]], list(made[count + len(ragged) :])

    def read_later(self) -> Sequence[Any]:
        """Return the parameters and buffers read by the second half."""
        return self.step.step.bind_back(self.scope, self.bound).values[: len(self.step.step.halves.back.persistables)]

    def backward(self, gradients: Sequence[Any], handed: list[Any], again: bool) -> list[Any]:
        """Return the gradients of all wanted parameters and inputs. It empties the list of handed values."""
        step = self.step
        if again:  # the memory of these is written to
            for at in step.step.halves.changed:
                if type(handed[at]) is torch.Tensor:
                    handed[at] = handed[at].clone()
        given = [self._whole(gradients[at], at) for at in step.fed]
        offsets = [self.offsets[at] for at in step.fed if at in self.offsets]
        back = step.step.bind_back(self.scope, self.bound)
        return self.executor.half(step.step, back.function, self.planned, [*given, *offsets, *([handed] if handed else [])])

    def _whole(self, gradient: Any, at: int) -> Any:
        if gradient is None:
            shape, dtype, device = self.shapes[at]
            return torch.zeros(shape, dtype=dtype, device=device)
        return gradient.detach().contiguous()


def torch_value(value: Any) -> Any:
    """Return a result as torch has it."""
    if isinstance(value, Rows):
        return torch.sparse_coo_tensor(value.rows[None], value.values, (value.height, *value.values.shape[1:]), check_invariants=False)
    if isinstance(value, TensorArray):
        return list(value.tensors)
    return value
