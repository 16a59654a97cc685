"""The scope's values of a step, compared with the description: element types, shapes, and the symbols of open dims."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from foreshape.compiler.lowering.kernel_calls import Value
from foreshape.core.dims import Size, equal, evaluate, symbol_name, symbols_of
from foreshape.core.spec import LOD_TENSOR, SELECTED_ROWS, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor
from foreshape.core.values.torch_types import torch_dtype
from foreshape.errors import ExecutionError


class OpenDim(NamedTuple):
    """A dim that is an expression, and its size."""

    name: str
    place: str
    dim: Size
    size: int

    def check(self, values: dict[str, int]) -> str | None:
        """Return the error for these values of symbols; None if there is none, or a symbol has no value."""
        if not symbols_of(self.dim) <= values.keys() or (required := evaluate(self.dim, values)) == self.size:
            return None
        return f"{self.place} must be {self.dim} = {required}"


class Held(NamedTuple):
    """The symbols in persistables of a step: the values of plain symbols, and the dims that are expressions."""

    values: dict[str, int]
    expressions: tuple[OpenDim, ...]

    @property
    def key(self) -> tuple[Any, ...]:
        return (*self.values.items(), *self.expressions)


NOTHING = Held({}, ())


def compare_held(places: Sequence[Value], tensors: Sequence[Any]) -> Held:
    """Refuse values of a scope that differ from the descriptions of their variables; return the open dims.

    Raises:
        ExecutionError: another kind, element type, rank or dim, or two sizes for one symbol.
    """
    values: dict[str, int] = {}
    first: dict[str, str] = {}
    expressions: list[OpenDim] = []
    for place, tensor in zip(places, tensors, strict=True):
        spec = place.variable.spec if place.variable is not None else None
        if spec is None:
            continue
        compare_spec(place.name, spec, tensor)
        if isinstance(tensor, Rows) or spec.dims is None:
            continue
        for axis, (dim, size) in enumerate(zip(spec.dims, tensor.shape, strict=True)):
            if isinstance(dim, int):
                continue
            if (name := symbol_name(dim)) is not None:
                if values.setdefault(name, size) != size:
                    raise ExecutionError(
                        f"{place.name} must be {spec.text()}; the scope holds {shown(tensor)}: dim {axis} is {dim}, and {first[name]} makes that {values[name]}"
                    )
                first.setdefault(name, place.name)
            else:
                expressions.append(OpenDim(place.name, f"dim {axis}", dim, size))
    for open_dim in expressions:
        if (wrong := open_dim.check(values)) is not None:
            raise ExecutionError(f"{open_dim.name}: {wrong}; the scope holds {open_dim.size}")
    return Held(values, tuple(expressions)) if values or expressions else NOTHING


def compare_spec(name: str, spec: Spec, value: Any) -> None:
    """Refuse a value that no symbols make fit its variable. Raise `ExecutionError`."""
    if spec.kind is SELECTED_ROWS:
        fits = isinstance(value, Rows) and value.dtype is torch_dtype(spec.known_dtype) and len(value.shape) == spec.rank
        if not fits or any(equal(d, s) is False for d, s in zip(spec.known_dims, value.shape, strict=True)):
            raise ExecutionError(f"{name} must be {spec.text()}; the scope holds {shown(value)}")
        return
    if spec.kind is not LOD_TENSOR or spec.dtype is None:
        return
    if isinstance(value, Rows):
        raise ExecutionError(f"{name} must be {spec.text()}; it is given sparse rows of {value.height}")
    fits = spec.dims is None or (len(value.shape) == len(spec.dims) and all(equal(d, s) is not False for d, s in zip(spec.dims, value.shape, strict=True)))
    if not fits or value.dtype is not torch_dtype(spec.dtype):
        raise ExecutionError(f"{name} must be {spec.text()}; the scope holds {shown(value)}")


def shown(tensor: Tensor | Rows) -> str:
    """Return a tensor's element type and shape, in words; of sparse rows their table's."""
    return f"{'rows ' if isinstance(tensor, Rows) else ''}{str(tensor.dtype).removeprefix('torch.')}{list(tensor.shape)}"
