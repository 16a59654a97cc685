"""A stop before the first update of a step with a loss that is not finite; the scope keeps its values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import isfinite
from typing import Any

from foreshape.compiler.lowering.kernel_calls import FusedCall, KernelCall, Step, Value
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import ForeshapeError
from foreshape.language.program import Role
from foreshape.machine.kernels.call_record import NamedConstant, NumberedOperand, Unless, X, call, of_operands
from foreshape.machine.kernels.fused import FusedKernel, Sizes
from foreshape.machine.kernels.instructions import FINITE, Instruction
from foreshape.runtime.engine.fetched import number_on_host
from foreshape.runtime.feeding.feed import Feeder

MOST = 1 << 24
"""The most bytes of values changed by the forward pass (averages of batch normalisation) to be kept for a stop."""


_NUMBER = 8
"""The most bytes of one number."""


class NotFinite(ForeshapeError):
    """The error for a value that is not finite. The caller words it."""

    def __init__(self, values: tuple[float, ...]) -> None:
        super().__init__(f"not finite: {', '.join(map(str, values))}")
        self.values = values


def stop_before_updates(lowered: Step, names: Sequence[str]) -> None:
    """Let a step raise `NotFinite` before its first update, unless fetched values are finite: one number each.

    If one of them is computed later, the minimised loss is looked at in its place. Without updates nothing changes.
    """
    calls = lowered.calls
    first = _first_update(lowered, names)
    if first is None:
        return
    beside: list[Value] = []
    if not lowered.target.is_processor:
        first, beside = _with_guard(lowered, first)
    results = {v for i in calls[:first] for v in i.writes()}
    values = [v for name in names for v in lowered.fetches if v.name == name and (v in results or v.feed)]
    if len(values) < len(names):
        values = [v for i in calls[:first] if i.op.role & Role.LOSS and not i.op.role & Role.BACKWARD for v in i.writes()][-1:]
    if not values:
        return
    changed = {v.name for i in calls[:first] for v in i.changes() if v.persistable}
    early = _affordable([p for p in lowered.persistables if p.name in changed])
    update = calls[first]
    copies: list[Value | None] = []
    if early:
        fresh = 1 + max(v.index for i in calls for v in (*i.reads(), *i.writes(), *early))
        copies = [Value(f"{v.name}@KEPT", fresh + index, made=v.spec) for index, v in enumerate(early)]
        keep = FusedCall(calls[0].op, [[*early]], [copies], kernel=FusedKernel("{op} copies", call(NamedConstant("copies", _copies), X)))
        keep.position = calls[0].position
        calls.insert(0, keep)
    number, finite = NamedConstant("number", number_on_host), NamedConstant("isfinite", isfinite)
    operands = [NumberedOperand(2 + index) for index in range(len(values) + len(beside))]
    tests = [call(finite, call(number, operand, *(operands[1:] if operand is operands[0] else ()))) for operand in operands[: len(values)]]
    record = Unless(tuple(tests), of_operands(NamedConstant("stop", _stop), 2 + len(values)))
    kernel = FusedKernel("{op} isfinite stop", record, small=None if early else _instructions)
    look = FusedCall(update.op, [copies, [*early], *values, *beside], [], kernel=kernel)
    look.position = update.position
    calls.insert(calls.index(update), look)


def not_finite(feeder: Feeder, feed: Mapping[str, Any]) -> dict[str, int]:
    """Return input -> the count of its numbers that are not finite, of inputs with any."""
    counts = {n: t.numel() - int(t.isfinite().sum()) for n, t in _fed(feeder, feed).items()}
    return {n: count for n, count in counts.items() if count}


def largest(feeder: Feeder, feed: Mapping[str, Any]) -> dict[str, float]:
    """Return input -> the largest magnitude of its numbers, of inputs with floating-point numbers."""
    return {n: float(t.abs().max()) for n, t in _fed(feeder, feed).items() if t.numel()}


def _fed(feeder: Feeder, feed: Mapping[str, Any]) -> dict[str, Any]:
    """Return input -> its tensor, of inputs with floating-point or complex numbers."""
    tensors, _ = feeder.tensors(feed, None)
    fed = {v.name: tensor.values if isinstance(tensor, Rows) else tensor for v, tensor in zip(feeder.inputs, tensors, strict=False)}
    return {n: t for n, t in fed.items() if t.is_floating_point() or t.is_complex()}


def _first_update(lowered: Step, names: Sequence[str]) -> int | None:
    """Return the index of the call before which the values are looked at.

    It is the first update. Or it is the first one after all values are made, if few bytes changed before, such as the count of a group of batches.
    """
    calls = lowered.calls
    updates = [index for index, i in enumerate(calls) if _updates(i)]
    values = {v for name in names for v in lowered.fetches if v.name == name and not v.feed}
    writers = [index for index, i in enumerate(calls) if values.intersection(i.writes())]
    later = next((index for index in updates if writers and index > writers[-1]), None)
    if later is None:
        return updates[0] if updates else None
    between = [v for i in calls[updates[0] : later] for v in i.changes() if v.persistable]
    return later if sum(map(_bytes, between)) <= MOST else updates[0]


def _with_guard(lowered: Step, first: int) -> tuple[int, list[Value]]:
    """Return the block around the updates of a step with a scaled loss, in place of the first update, and the values to be read with the loss there: the
    block's condition, and the changed numbers of the scale. So a device is waited for once.
    """
    calls = lowered.calls
    guard = next((index for index in range(first, len(calls)) if _is_conditional(calls[index])), None)
    if guard is None:
        return first, []
    changed = {v.name for i in calls[first:guard] for v in i.changes() if v.persistable}
    states = [p for p in lowered.persistables if p.name in changed]
    conditions: Any = calls[guard].arguments[0]
    made = [v for v in conditions if any(v in i.writes() for i in calls[:guard])]
    if sum(map(_bytes, states)) > MOST or any(_bytes(v) > _NUMBER for v in made):
        return first, []
    later = {v.name for i in calls[guard:] for v in i.changes()}  # a number that changes again is not read early
    return guard, [*made, *(v for v in states if _bytes(v) <= _NUMBER and v.name not in later)]


def _is_conditional(i: KernelCall) -> bool:
    operator = i.op.operator
    return operator is not None and operator.region == "conditional"


def _updates(i: KernelCall) -> bool:
    return bool(i.op.role & Role.OPTIMIZE) or (bool(i.op.role & Role.BACKWARD) and any(v.persistable for v in i.changes()))


def _affordable(values: Sequence[Value]) -> list[Value]:
    """Return as many as may be copied in every step."""
    out: list[Value] = []
    left = MOST
    for value in values:
        left -= _bytes(value)
        if left >= 0:
            out.append(value)
    return out


def _bytes(value: Value) -> int:
    spec = value.spec
    size = spec.nbytes if spec is not None and spec.dims is not None and spec.dtype is not None else MOST + 1
    return size if isinstance(size, int) else MOST + 1


def _instructions(operands: Sizes, results: Sizes) -> list[Instruction]:
    return [Instruction(FINITE, (index,), ()) for index in range(len(operands))]


def _copies(values: Sequence[Tensor]) -> list[Tensor]:
    return [v.clone() for v in values]


def _stop(copies: Sequence[Tensor], values: Sequence[Tensor], *numbers: Tensor) -> None:
    """Restore the changed values, and raise `NotFinite`."""
    for value, was in zip(values, copies, strict=True):
        value.copy_(was)
    raise NotFinite(tuple([float(number_on_host(n)) for n in numbers]))
