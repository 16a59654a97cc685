"""Checked running: op by op, every value compared with its inferred spec, stopping at the first that is not finite."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from foreshape.dims import evaluate, symbols_of
from foreshape.engine.emit import Emitted
from foreshape.engine.scope import Scope
from foreshape.errors import ExecutionError
from foreshape.lowering.instruction import Argument, Instruction, Lowered, Value
from foreshape.lowering.regions import running
from foreshape.ops.rows import Rows
from foreshape.ops.torch_proxy import torch
from foreshape.ops.torch_types import dtype_of_torch

if TYPE_CHECKING:
    pass


def run_checked(emitted: Emitted, tensors: Sequence[Any], scope: Scope, values: Mapping[str, int]) -> list[Any]:
    """What the compiled step would return, with every result looked at.

    Raises:
        ExecutionError: a value of another shape or element type than inferred, or the first op that makes a NaN or an infinity.
    """
    lowered = emitted.lowered
    function = emitted.bind(scope)
    held = dict(zip(map(id, lowered.persistables), function.__defaults__ or (), strict=True))
    before = running.checked
    running.checked = lambda block, given: _interpret(block, given, {}, scope, values)
    try:
        return _interpret(lowered, tensors, held, scope, values)
    finally:
        running.checked = before


def _interpret(lowered: Lowered, given: Sequence[Any], held: dict[int, Any], scope: Scope, values: Mapping[str, int]) -> list[Any]:
    held |= {id(v): t for v, t in zip(lowered.parameters(), given, strict=True)}
    for value in lowered.feeds:
        if isinstance(held[id(value)], (torch.Tensor, Rows)):
            _look(value, held[id(value)], None, values, {})
    for i in lowered.instructions:
        for copy, source in i.copies:
            held[id(copy)] = held[id(source)].clone()
        arguments = [_given(a, held) for a in i.arguments]
        made: Any = _called(i, arguments, held)
        results: list[Any] = list(made) if isinstance(made, tuple) and len(i.results) != 1 else [made]  # pyright: ignore[reportUnknownArgumentType]
        for target, result in zip(i.results, results, strict=False):
            if target is None or result is None:
                continue
            pairs: Iterable[tuple[Value | None, Any]] = zip(target, result, strict=True) if isinstance(target, list) else [(target, result)]
            for value, tensor in pairs:
                if value is not None and tensor is not None:
                    if isinstance(tensor, (torch.Tensor, Rows)):
                        _look(value, tensor, i, values, held)
                    held[id(value)] = tensor
        for place, value in i.stores:
            held[id(place)] = scope.store(place.name, held[id(value)], owned=False)
    return [held.get(id(v)) for v in lowered.returns()]


def _called(i: Instruction, arguments: Sequence[Any], held: Mapping[int, Any]) -> Any:
    named: dict[str, Any] = {}
    if i.takes_wants:
        named["wants"] = (True,) * len(i.results)
    if i.offsets is not None:
        named["offsets"] = [_given(a, held) for a in i.offsets]
    if i.before is not None:
        named["before"] = _given(i.before, held)
    return i.kernel(*arguments, **named)


def _given(argument: Argument, held: Mapping[int, Any]) -> Any:
    if isinstance(argument, list):
        return [None if v is None else held.get(id(v)) for v in argument]
    return None if argument is None else held.get(id(argument))


def _look(value: Value, tensor: Any, i: Instruction | None, values: Mapping[str, int], held: Mapping[int, Any]) -> None:
    spec = value.variable.spec if value.variable is not None else None
    plain = tensor.values if isinstance(tensor, Rows) else tensor
    what = f"{value.name}" + (f" of {i.op}" if i is not None else " (fed)")
    site = i.op.call_site if i is not None else None
    where = f", at {site.short()}" if site is not None else ""
    if spec is not None and spec.dims is not None and not isinstance(tensor, Rows):
        want = [evaluate(d, values) if symbols_of(d) <= values.keys() else None for d in spec.dims]
        seen = list(tensor.shape)
        if len(want) != len(seen) or any(w is not None and w != s for w, s in zip(want, seen, strict=True)):
            raise ExecutionError(f"{what} must be {spec.text()}, which is {want} now; the kernel made {seen}{where}")
    if spec is not None and spec.dtype is not None and dtype_of_torch(plain.dtype) is not spec.dtype:
        raise ExecutionError(f"{what} must be {spec.dtype.name}; the kernel made {dtype_of_torch(plain.dtype).name}{where}")
    if plain.is_floating_point() and plain.numel() and not bool(torch.isfinite(plain).all()):
        kind = "a NaN" if bool(torch.isnan(plain).any()) else "an infinity"
        inputs = ""
        if i is not None:
            ranges = [f"{v.name} in [{held[id(v)].min().item():g}, {held[id(v)].max().item():g}]" for v in i.reads() if _has_range(held.get(id(v)))]
            inputs = f"; its inputs: {', '.join(ranges)}" if ranges else ""
        raise ExecutionError(f"{what} has {kind}{inputs}{where}")


def _has_range(tensor: Any) -> bool:
    return isinstance(tensor, torch.Tensor) and tensor.numel() > 0 and tensor.dtype is not torch.bool
