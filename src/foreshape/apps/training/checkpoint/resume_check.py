"""The facts of a run that a checkpoint holds, and their differences from a resumed run in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foreshape.apps.training.program import network_values, persistables
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.language.operator.computations import Filled
from foreshape.language.program import Op, Program, Role
from foreshape.runtime.engine import Executor, Scope

Scalar = str | int | float | bool | None
MOST_NUMBERS: Final = 16
"""A value of up to so many elements is a number chosen by a user, such as a learning rate."""
_SHOWN: Final = 10


@dataclass(slots=True)
class Facts:
    """The facts that a run depends on."""

    values: dict[str, str]
    """The values kept by the network itself, parameters and statistics: name -> description."""
    state: dict[str, str]
    """The values kept only by updates and schedules."""
    ops: list[str]
    numbers: dict[str, list[float]]
    """The constants at the beginning of the run, such as a constant learning rate."""
    data: dict[str, Scalar]
    notes: dict[str, Scalar]
    """Facts that can change the last bits; a difference is reported, and stops nothing."""


@dataclass(slots=True)
class Changes:
    """The differences of a run from the one that wrote a checkpoint."""

    apart: list[str] = field(default_factory=list[str])
    """Differences that make it another network: its values are of no use here."""
    new: list[str] = field(default_factory=list[str])
    """Differences that can be taken from the resumed run."""
    numbers: dict[str, list[float]] = field(default_factory=dict[str, list[float]])
    """The numbers of ``new`` in the scope."""
    notes: list[str] = field(default_factory=list[str])
    """Differences of the last bits only."""

    def compare_first(self, epoch: int, saved: str | None, new: str | None) -> None:
        """Compare the digests of an epoch's first batch, where data have no digest of their own."""
        if saved != new:
            self.new.append(f"the first batch of epoch {epoch} was {saved}, and is {new}")

    def compare_callbacks(self, saved: Sequence[str], new: Sequence[str]) -> None:
        """Compare the kinds of the callbacks with kept state."""
        if list(saved) != list(new):
            self.new.append(f"the callbacks that keep something were {', '.join(saved) or 'none'}, and are {', '.join(new) or 'none'}")

    def text(self) -> str:
        """Return a line for each of the first differences."""
        lines = [*self.apart, *self.new]
        left_out = f"\n    and {len(lines) - _SHOWN} more" if len(lines) > _SHOWN else ""
        return "".join(f"\n    {line}" for line in lines[:_SHOWN]) + left_out


def facts_of(program: Program, startup: Program, executor: Executor, scope: Scope, data: Mapping[str, Scalar]) -> Facts:
    """Return the facts of a run that begins, or is resumed, with these."""
    network = set(network_values(program))
    specs = {v.name: v.spec.text() for v in persistables(program)}
    updated = {n for op in program.all_ops() if op.role & (Role.OPTIMIZE | Role.LEARNING_RATE) for n in (*op.input_names(), *op.output_names())} - network
    return Facts(
        {n: text for n, text in specs.items() if n not in updated},
        {n: text for n, text in specs.items() if n in updated},
        [op_line(op) for op in program.all_ops()],
        dict(first_numbers(program, startup, scope)),
        dict(data),
        {"threads": executor.threads},
    )


def compare(saved: Facts, new: Facts, tensors: Mapping[str, Any]) -> Changes:
    """Return the differences. ``tensors``: the checkpoint's tensors."""
    out = Changes()
    for name, a, b in _pairs(saved.values, new.values):
        out.apart.append(_value_differs(name, a, b))
    for name, a, b in _pairs(saved.state, new.state):
        out.new.append(_value_differs(name, a, b))
    if saved.ops != new.ops and not out.apart:
        out.new += _ops_differ(saved.ops, new.ops)
    for name, a, b in _pairs(saved.numbers, new.numbers):
        # a value of the scope written since may differ from the value that the run began with
        if a is not None and b is not None and not (name in tensors and _as_list(tensors[name]) == b):
            out.new.append(f"{name} was {_numbers_text(a)}, and is {_numbers_text(b)}")
            out.numbers[name] = b
    for name, a, b in _pairs(saved.data, new.data):
        out.new.append(f"{name} of the data was {a}, and is {b}")
    out.notes += [f"{name} was {a}, and is {b}" for name, a, b in _pairs(saved.notes, new.notes)]
    return out


def _pairs(saved: Mapping[str, Any], new: Mapping[str, Any]) -> Iterator[tuple[str, Any, Any]]:
    """Yield the names with different facts, and both facts; None for a missing one."""
    for name in sorted(saved.keys() | new.keys()):
        a, b = saved.get(name), new.get(name)
        if type(a) is not type(b) or repr(a) != repr(b):  # NaN is as NaN was
            yield name, a, b


def _value_differs(name: str, saved: str | None, new: str | None) -> str:
    if new is None:
        return f"{name} ({saved}) is in the checkpoint, and the program has no such value"
    if saved is None:
        return f"{name} ({new}) is in the program, and the checkpoint has no such value"
    return f"{name} is {saved} in the checkpoint, and {new} in the program"


def _ops_differ(saved: list[str], new: list[str]) -> list[str]:
    """Return the difference op by op for equal numbers of ops; otherwise the first one."""
    places = [index for index in range(max(len(saved), len(new))) if index >= min(len(saved), len(new)) or saved[index] != new[index]]
    out: list[str] = []
    for index in places if len(saved) == len(new) else places[:1]:
        a, b = (ops[index] if index < len(ops) else "no op" for ops in (saved, new))
        out.append(f"op {index} is in the checkpoint\n        {a}\n      and in the program\n        {b}")
    return out


def _numbers_text(numbers: list[float]) -> str:
    return ", ".join(f"{n:.6g}" for n in numbers)


def _as_list(tensor: Any) -> list[float]:
    return tensor.double().reshape(-1).tolist()


def op_line(op: Op) -> str:
    ins = ", ".join(f"{slot}={' '.join(names)}" for slot, names in op.inputs.items() if names)
    outs = ", ".join(n for names in op.outputs.values() for n in names)
    attrs = ", ".join(f"{name}={value!r}" for name, value in sorted(op.attributes.values.items()) if name != "op_callstack")
    return f"{outs} = {op.type}({ins}) {{{attrs}}}"


def first_numbers(program: Program, startup: Program, scope: Scope) -> Iterator[tuple[str, list[float]]]:
    """Yield the small values read and never written by the program, as the run begins with them.

    They come from the scope, or from the constants of the startup program.
    """
    read = {n for op in program.all_ops() for n in op.input_names()}
    written = {n for op in program.all_ops() for n in op.output_names()}
    constants = {n: f for op in startup.all_ops() if (f := op.computes(Filled)) and not any(op.input_names()) for n in op.output_names()}
    for variable in persistables(program):
        name, dims = variable.name, variable.spec.known_dims
        if name not in read or name in written or variable.is_parameter or variable.dtype is None:
            continue
        sizes = [d for d in dims if isinstance(d, int)]
        if len(sizes) < len(dims) or math.prod(sizes) > MOST_NUMBERS:
            continue
        if name in scope:
            yield name, _as_list(scope.tensor(name))
        elif name in constants and (number := constants[name].number) is not None:
            yield name, _as_list(torch.full([math.prod(sizes)], number, dtype=torch_dtype(variable.dtype)))
