"""Intended infinities: -inf as a constant of the program, as in masks of attention, and ops that only move it or add to it."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

from foreshape.compiler.lowering.kernel_calls import KernelCall, region_of
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.program import Op
from foreshape.machine.process.this_run import this_run

_PUT = (-1.0, -1025.0)
"""The two substitutes of -inf, one after the other, by which a result is seen to follow it."""


def operands_before(i: KernelCall, values: Mapping[str, Any]) -> dict[str, Any] | None:
    """Return copies of the operands with -inf of an instruction; None without any."""
    if region_of(i) is not None:  # its own instructions are looked at one by one
        return None
    read = {repr(v): values[repr(v)] for v in i.reads() if repr(v) in values} | {repr(s): values[repr(s)] for _, s in i.copies if repr(s) in values}
    if not any(_has_infinity(t) for t in read.values()):
        return None
    return {name: t.clone() if isinstance(t, torch.Tensor) else t for name, t in read.items()}


def is_meant(i: KernelCall, name: str, result: Tensor, operands: Mapping[str, Any] | None, run: Callable[[dict[str, Any]], None]) -> bool:
    """Return True if the infinities of a result are intended -inf.

    Args:
        name: the result's in the step's text.
        operands: the result of `operands_before`.
        run: executes the instruction over values by name, and puts its results there.
    """
    if bool((torch.isnan(result) | (result == math.inf)).any()):
        return False
    if region_of(i) is not None:
        return True
    if operands is None:
        return writes_infinity(i.op)
    infinite = result == -math.inf
    results: list[Tensor] = []
    state = this_run.generator.get_state() if this_run.generator is not None else None
    for number in _PUT:
        values = {n: _filled(t, number) for n, t in operands.items()}
        values["store"] = _keep  # the scope stays as it is
        if state is not None and this_run.generator is not None:
            this_run.generator.set_state(state)
        run(values)
        results.append(values[name])
    difference = (results[0] - results[1])[infinite].double()
    return bool(torch.allclose(difference, torch.full_like(difference, _PUT[0] - _PUT[1]), rtol=0.02))


def writes_infinity(op: Op) -> bool:
    """Return True if an attribute of an op is -inf, or a list with one in it."""
    values: list[Any] = list(op.attrs.values())
    return any(_is_infinity(v) or (isinstance(v, (list, tuple)) and any(map(_is_infinity, v))) for v in values)  # pyright: ignore[reportUnknownArgumentType]


def _keep(name: str, value: Any, owned: bool = True) -> Any:
    return value


def _is_infinity(value: Any) -> bool:
    return (isinstance(value, float) and value == -math.inf) or (isinstance(value, str) and value.strip().lower() in ("-inf", "-infinity"))


def _has_infinity(value: Any) -> bool:
    return isinstance(value, torch.Tensor) and value.is_floating_point() and bool((value == -math.inf).any())


def _filled(value: Any, number: float) -> Any:
    if not isinstance(value, torch.Tensor):
        return value
    return value.masked_fill(value == -math.inf, number) if value.is_floating_point() else value.clone()
