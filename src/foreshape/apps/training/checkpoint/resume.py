"""Resumption from a checkpoint: differences are refused by name, or taken; then all values are put in their places."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from foreshape.apps.training.checkpoint.resume_check import Changes, Facts
from foreshape.apps.training.checkpoint.schema import Contents
from foreshape.apps.training.distributed.distributed_session import DistributedSession
from foreshape.errors import ExecutionError, FormatError
from foreshape.runtime.engine import Executor, Scope

OnChange = Literal["refuse", "take"]
WORDS = ("refuse", "take")


def refuse_unless_taken(path: str, changes: Changes, on_change: OnChange) -> None:
    """Raise `ExecutionError` with the differences, unless the run may take them."""
    if changes.apart or (changes.new and on_change == "refuse"):
        hint = "" if changes.apart else '\n  on_change="take" goes on with what this run has'
        raise ExecutionError(f"{path} is a checkpoint of another run:{changes.text()}{hint}")


def check_complete(path: str, checkpoint: Contents, facts: Facts, needed: Iterable[str]) -> None:
    """Refuse a checkpoint that lacks a value read by the step, except for state of updates that the checkpoint never had.

    Raises:
        FormatError: the missing values.
    """
    names = {*checkpoint.values, *(checkpoint.divided.names if checkpoint.divided is not None else ())}
    missing = [n for n in needed if n not in names and (n in facts.values or checkpoint.facts.state.get(n) == facts.state.get(n))]
    if missing:
        raise FormatError(f"{path}: the checkpoint lacks {', '.join(missing[:5])}{f' and {len(missing) - 5} more' if len(missing) > 5 else ''}")


def place(checkpoint: Contents, facts: Facts, changes: Changes, executor: Executor, scope: Scope, session: DistributedSession) -> None:
    """Put a checkpoint's values into the scope, all or none, with numbers chosen otherwise by this run.

    Numbers not chosen otherwise are as in the run before. Of divided values each rank takes its part.
    """
    specs, saved_specs = {**facts.values, **facts.state}, {**checkpoint.facts.values, **checkpoint.facts.state}
    values = {n: t if executor.device == "cpu" else t.to(executor.device) for n, t in checkpoint.values.items() if specs.get(n) == saved_specs[n]}
    if checkpoint.divided is not None:
        inside = {q.name for p in session.parts for q in p.pieces}
        values |= {n: checkpoint.divided.whole(n) for n in checkpoint.divided.names if n not in inside and specs.get(n) == saved_specs.get(n)}
    values = session.in_parts(values, checkpoint.divided)
    for name, numbers in changes.numbers.items():
        if name in values:
            values[name] = values[name].new_tensor(numbers).reshape(values[name].shape)
    scope.fill(values)
    facts.numbers.update({n: number for n, number in checkpoint.facts.numbers.items() if n in facts.numbers and n not in changes.numbers})
