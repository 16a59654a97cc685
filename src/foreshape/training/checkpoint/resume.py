"""Resumption from a checkpoint: differences are refused by name, or taken; then all values are put in their places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from foreshape.engine import Executor, Scope
from foreshape.errors import ExecutionError, FormatError
from foreshape.training.checkpoint.resume_check import Changes, Facts
from foreshape.training.checkpoint.schema import Contents
from foreshape.training.distributed.distributed_session import DistributedSession

OnChange = Literal["refuse", "take"]
WORDS = ("refuse", "take")


def refuse_unless_taken(path: str, changes: Changes, on_change: OnChange) -> None:
    """Raise `ExecutionError` with the differences, unless the run may take them."""
    if changes.apart or (changes.new and on_change == "refuse"):
        hint = "" if changes.apart else '\n  on_change="take" goes on with what this run has'
        raise ExecutionError(f"{path} is a checkpoint of another run:{changes.text()}{hint}")


def check_complete(path: str, found: Contents, now: Facts, needed: Iterable[str]) -> None:
    """Refuse a checkpoint that lacks a value read by the step, except for state of updates that the checkpoint never had.

    Raises:
        FormatError: the missing values.
    """
    here = {*found.values, *(found.divided.names if found.divided is not None else ())}
    missing = [n for n in needed if n not in here and (n in now.values or found.facts.state.get(n) == now.state.get(n))]
    if missing:
        raise FormatError(f"{path}: the checkpoint lacks {', '.join(missing[:5])}{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}")


def place(found: Contents, now: Facts, changes: Changes, executor: Executor, scope: Scope, over: DistributedSession) -> None:
    """Put a checkpoint's values into the scope, all or none, with numbers chosen otherwise by this run.

    Numbers not chosen otherwise are as in the run before. Of divided values each rank takes its part.
    """
    here, there = {**now.values, **now.state}, {**found.facts.values, **found.facts.state}
    values = {n: t if executor.device == "cpu" else t.to(executor.device) for n, t in found.values.items() if here.get(n) == there[n]}
    if found.divided is not None:
        inside = {q.name for p in over.parts for q in p.pieces}
        values |= {n: found.divided.whole(n) for n in found.divided.names if n not in inside and here.get(n) == there.get(n)}
    values = over.in_parts(values, found.divided)
    for name, numbers in changes.numbers.items():
        if name in values:
            values[name] = values[name].new_tensor(numbers).reshape(values[name].shape)
    scope.fill(values)
    now.numbers.update({n: before for n, before in found.facts.numbers.items() if n in now.numbers and n not in changes.numbers})
