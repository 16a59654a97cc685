"""A prepared run of the same step again and again, in training or prediction: the fetch is looked up once."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from foreshape.language.program import Program
from foreshape.machine.process import torch_modes as modes
from foreshape.runtime.engine.executor import CompiledStep, Executor
from foreshape.runtime.engine.scope import Scope


def repeated(executor: Executor, program: Program, fetch: Sequence[str], scope: Scope) -> Callable[[Any], list[Any]]:
    """Return `Executor.run` of one program for the same variables over one scope: a function from a feed to the fetched values.

    Raises:
        Nothing by itself; the function raises as `Executor.run` does.
    """
    steps: list[CompiledStep] = []

    def run(feed: Any) -> list[Any]:
        if steps and steps[0].version == program.version and not modes.is_set():
            return executor.run_step(steps[0], feed, scope)
        fetched = executor.run(program, feed, fetch, scope)
        steps[:] = [executor.step(program, fetch)]
        return fetched

    return run
