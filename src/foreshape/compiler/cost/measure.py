"""The measurement of this machine's kernels: `calibrate`."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import chain
from math import inf, prod
from statistics import median
from typing import Any

from foreshape.compiler.cost.calibration import Calibration, Kernels, Points, this_machine
from foreshape.compiler.cost.calls import NumericSizes, call_of, calls_of
from foreshape.compiler.cost.predict import seconds_of
from foreshape.compiler.cost.probes import Probe, mixed, probes
from foreshape.compiler.cost.runner import offsets, shortest, timed_calls
from foreshape.compiler.lowering import KernelCall, fuse, lower
from foreshape.compiler.memory.liveness import liveness
from foreshape.core.values.torch_proxy import torch
from foreshape.core.values.torch_types import torch_dtype
from foreshape.language.program import Program
from foreshape.machine.kernels.pages import full

MOST, LARGE = 1 << 29, 1 << 26
"""The multiply-adds of the largest measured product, and the bytes of the largest moved value."""
_STEPS = 200
_LEAST_AMONG = 1e-9
"""Less than any clock shows."""
_DRAWN = 1 << 20
"""Larger values are one number: to draw them takes longer than to measure them."""

Step = Callable[[Program, dict[str, Any], str], Any]
"""Runs a program for feeds and one fetch."""


def calibrate(step: Step, threads: Sequence[int] = (), most: int = MOST, large: int = LARGE, said: Callable[[str, float], None] | None = None) -> Calibration:
    """Measure this machine: about half a minute for each number of threads.

    Args:
        step: runs a whole step, as an executor does, to measure its time besides kernels.
        threads: 1 and torch's number by default.
        most, large: the multiply-adds of the largest product, and the bytes of the largest value.
        said: called with the current measurement, and the share done, from 0 to 1.
    """
    previous = torch.get_num_threads()
    kernels: dict[int, Kernels] = {}
    try:
        counts = list(dict.fromkeys(threads)) or sorted({1, previous})
        for index, count in enumerate(counts):
            torch.set_num_threads(count)

            def tell(words: str, done: float, index: int = index, count: int = count) -> None:
                if said is not None:
                    said(f"{count} thread{'' if count == 1 else 's'}: {words}", (index + done) / len(counts))

            kernels[count] = _kernels(step, most, large, tell)
    finally:
        torch.set_num_threads(previous)
    return Calibration(this_machine(), kernels)


def _kernels(step: Step, limit: int, large: int, report: Callable[[str, float], None]) -> Kernels:
    kinds: dict[str, dict[tuple[float, ...], list[float]]] = {}
    total = sum(1 for _ in chain(probes(limit, large), mixed()))
    with torch.inference_mode():
        kernels = Kernels(0.0, 0.0, {}, _memory(large))
        for count, probe in enumerate(chain(probes(limit, large), mixed())):
            report(f"network {count + 1} of {total}", count / total)
            _measure(probe, kinds, kernels)
    kernels.kinds = {kind: [[*coordinates, min(seconds)] for coordinates, seconds in sorted(points.items())] for kind, points in sorted(kinds.items())}
    kernels.step = _step(step)
    kernels.among = max(median([_among(step, probe, kernels) for probe in mixed()]), _LEAST_AMONG)
    return kernels


def _measure(probe: Probe, kinds: dict[str, dict[tuple[float, ...], list[float]]], kernels: Kernels) -> None:
    lowered = fuse(lower(probe.program.global_block, [probe.loss]))
    liveness(lowered)  # it lets results use the memory of operands
    sizes = NumericSizes(probe.symbols)

    def is_needed(i: KernelCall) -> bool:
        sizes.make_rows(i)
        call = call_of(i, sizes)
        timings = kinds.get(call.kind, {}).get(call.at, ())
        return len(timings) < 2

    tensors = {v.name: tensor_of(v.variable, probe) for v in (*lowered.feeds, *lowered.persistables)}
    tensors.update((name + "@LOD", offsets(lengths)) for name, lengths in probe.lengths.items())
    for i, seconds in timed_calls(lowered, tensors, is_needed, lambda i: call_of(i, sizes).is_far):
        call = call_of(i, sizes)
        points = kinds.setdefault(call.kind, {})
        if not points or len(next(iter(points))) == len(call.at):
            points.setdefault(call.at, []).append(max(seconds - kernels.copying(call.copied), seconds / 4))


def tensor_of(variable: Any, probe: Probe) -> Any:
    """Return values for a variable of a probe: ids within their table, and small positive numbers for all else."""
    spec = variable.spec
    shape = probe.shapes.get(variable.name) or tuple(int(d) for d in spec.known_dims)
    dtype = torch_dtype(spec.known_dtype)
    if spec.known_dtype.is_integer:
        return torch.randint(0, probe.below.get(variable.name, 2), shape, dtype=dtype)
    if not shape or prod(shape) > _DRAWN:
        return full(shape, 0.05, dtype)
    return torch.rand(shape, dtype=dtype) * 0.1 + 0.01


def _memory(large: int) -> Points:
    """Return the times of adding to a tensor, again and again: bytes read and written against seconds."""
    out: Points = []
    size = 1 << 12
    while size <= 4 * large:
        copy = partial(torch.zeros(size // 8).copy_, torch.ones(size // 8))
        out.append([float(size), shortest(copy, max(1, (1 << 22) // size), 5, inf)])
        size *= 2
    return out


def _step(step: Step) -> float:
    """Return the seconds of a step besides its kernels: of a program with two feeds and hardly anything to compute, the call itself included."""
    import numpy

    from foreshape import layer
    from foreshape.language.program import program_guard

    main = Program()
    with program_guard(main, Program()):
        x, y = layer.data("x", shape=["batch", 8]), layer.data("y", shape=["batch", 8])
        total = x + y
    feed = {"x": numpy.zeros((4, 8), numpy.float32), "y": numpy.zeros((4, 8), numpy.float32)}
    return _shortest(step, main, feed, total.name)


def _among(step: Step, probe: Probe, kernels: Kernels) -> float:
    """Return the extra seconds of a call among the different calls of a step, against a row of equal ones."""
    feed = {name: tensor_of(probe.program.global_block.var(name), probe).numpy() for name in probe.shapes}
    step_seconds = _shortest(step, probe.program, feed, probe.loss)
    lowered = fuse(lower(probe.program.global_block, [probe.loss]))
    liveness(lowered)
    alone = [seconds_of(call, kernels)[0] for _, call in calls_of(lowered, probe.symbols)]
    return (step_seconds - kernels.step - sum(alone)) / len(alone)


def _shortest(step: Step, program: Program, feed: dict[str, Any], fetch: str) -> float:
    """Return the seconds of a step, of many."""
    step(program, feed, fetch)
    return shortest(partial(step, program, feed, fetch), _STEPS, 10, inf)
