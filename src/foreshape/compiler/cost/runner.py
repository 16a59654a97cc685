"""Runs the kernel calls of a lowered block one by one, and takes the time of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from time import perf_counter, thread_time
from types import FunctionType
from typing import Any, NamedTuple

from foreshape.compiler.lowering import KernelCall, Step, Value
from foreshape.compiler.lowering.call_text import call_text, compiled, namer
from foreshape.compiler.lowering.kernel_calls import Argument, OpCall, values_of
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import torch

LEAST = 1e-4
"""The seconds of a measurement: it repeats a call about so long."""
REPEATS, FEWEST = 6, 2
ENOUGH = 0.02
"""After so many seconds, and the fewest repeats, a call is not measured again."""
_SWEPT = 1 << 21
"""Elements, of four bytes, read before a call on rows of a table, about as many as a step reads otherwise. Then a processor's caches hold none of the rows.
Ids are skewed, so a larger cache has many of them.
"""


def timed_calls(
    lowered: Step, tensors: Mapping[str, Any], is_needed: Callable[[KernelCall], bool], far: Callable[[KernelCall], bool] = lambda i: False
) -> Iterator[tuple[KernelCall, float]]:
    """Run a block, and yield each wanted instruction with the seconds of a call in a row of equal ones.

    A call that uses up kept values of another, as a recurrent gradient does, is measured after all earlier calls have run again. A ``far`` call is measured
    after reads of other memory.

    Args:
        tensors: the tensors of feeds and of the scope; offsets under ``name@LOD``.
    """
    values: dict[str, Any] = {repr(v): tensors[v.name] for v in (*lowered.feeds, *lowered.persistables)}
    values.update((repr(v.lod), tensors[v.name + "@LOD"]) for v in lowered.feeds if v.lod is not None)
    values.update((name, make(*(values[repr(p)] for p in parameters))) for name, parameters, make in lowered.derived)
    values.update((rate.number, values[repr(rate)].item()) for rate in lowered.rates)
    earlier_calls: list[tuple[KernelCall, _Call]] = []
    retained: set[str] = set()

    def again(call: _Call, swept: Any) -> None:
        if swept is not None:
            swept.sum()
        for instruction, earlier in earlier_calls:
            earlier.names.update(values)
            _keep(values, instruction, earlier.function())
        call.names.update(values)

    for i in lowered.calls:
        values.update((repr(copy), values[repr(source)].clone()) for copy, source in i.copies)
        call = _call(i, values)
        results = call.function()
        if is_needed(i):
            swept = torch.zeros(_SWEPT, device="cpu") if far(i) else None
            fresh = swept is not None or any(repr(v) in retained for v in values_of(i.arguments))
            yield i, shortest(call.function, prepare=lambda call=call, swept=swept: again(call, swept)) if fresh else _in_a_row(call.function)
        _keep(values, i, results)
        earlier_calls.append((i, call))
        if isinstance(i, OpCall) and i.op.operator is not None and i.op.operator.retains():
            retained.update(repr(v) for v in values_of(i.results))


def _keep(values: dict[str, Any], i: KernelCall, results: Any) -> None:
    """Store the results of a call."""
    for index, (result, value) in enumerate(zip(i.results, (results,) if len(i.results) == 1 else results or (), strict=False)):
        if index not in i.in_place:
            _put(values, result, value)


def _put(values: dict[str, Any], result: Argument, value: Any) -> None:
    if isinstance(result, Value):
        values[repr(result)] = value
    elif isinstance(result, list):
        for member, part in zip(result, value or (), strict=False):
            _put(values, member, part)


class _Call(NamedTuple):
    """A call as the step makes it, without arguments, and the values of the names in its text."""

    function: FunctionType
    names: dict[str, Any]


def _call(i: KernelCall, values: Mapping[str, Any]) -> _Call:
    names: dict[str, Any] = dict(values)
    text = call_text(i, namer(names), tuple(bool(values_of([r])) for r in i.results))
    return _Call(compiled(f"def call():\n    return {text}\n", names), names)


def shortest(call: Callable[[], Any], count: int = 1, repeats: int = REPEATS, enough: float = ENOUGH, prepare: Callable[[], None] | None = None) -> float:
    """Return the shortest time of a call, since the machine's other work only adds to it.

    Args:
        count: the calls in a row of each measurement.
        repeats: the measurements; fewer after ``enough`` seconds.
        prepare: called before each measurement.
    """
    clock = clock_for(torch.get_num_threads())
    best, until = float("inf"), clock() + enough
    for repeat in range(repeats):
        if prepare is not None:
            prepare()
        start = clock()
        for _ in range(count):
            call()
        best = min(best, (clock() - start) / count)
        if clock() > until and repeat + 1 >= FEWEST:
            break
    return best


def _in_a_row(call: Callable[[], Any]) -> float:
    """Return the shortest time of a call in a row of calls."""
    clock = clock_for(torch.get_num_threads())
    began = clock()
    call()
    once = clock() - began
    count = max(1, min(1000, int(LEAST / max(once, 1e-7))))
    return min(shortest(call, count), once if count == 1 else float("inf"))


def clock_for(threads: int) -> Callable[[], float]:
    """Return the clock of kernels on so many threads: for one, the thread's own running time, free of others."""
    return thread_time if threads == 1 else perf_counter


def offsets(lengths: Any) -> Offsets:
    """Return offsets of one level for sequences of these lengths."""
    ends = torch.tensor([0, *lengths], dtype=torch.int64).cumsum(0)
    return Offsets([ends])
