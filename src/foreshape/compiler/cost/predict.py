"""The time of a step before it runs: each kernel call of the lowered, fused step at its size, by the calibration of a machine."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from foreshape.compiler.cost.calibration import Calibration, Kernels
from foreshape.compiler.cost.calls import CostedCall, calls_of
from foreshape.compiler.lowering import KernelCall, Step
from foreshape.compiler.lowering.threads import threads_for

_OTHER = ("elementwise_add", "elementwise_mul")
"""Kinds in place of an unmeasured one: it moves its bytes."""
_RATE = ("product addmm mm onednn", "product addmm mm")
"""Kinds for the rate of an unmeasured one with products."""
_SIDES = 3
"""The coordinates of these: the sides of a product."""


@dataclass(frozen=True, slots=True)
class Timed:
    """A kernel call with its predicted seconds."""

    instruction: KernelCall
    call: CostedCall
    seconds: float
    measured: bool
    """True if its kind was measured: otherwise the time is a guess from bytes and work."""


@dataclass(frozen=True, slots=True)
class StepTime:
    """The predicted time of a step."""

    calls: list[Timed]
    besides: float
    """Seconds of a step besides its kernels: taking the feeds, giving the fetches."""
    threads: int

    @property
    def seconds(self) -> float:
        return self.besides + sum(c.seconds for c in self.calls)

    def by_kind(self) -> dict[str, float]:
        """Return seconds by kind of kernel, the most first."""
        out: dict[str, float] = {}
        for c in self.calls:
            out[c.call.kind] = out.get(c.call.kind, 0.0) + c.seconds
        return dict(sorted(out.items(), key=lambda pair: -pair[1]))

    @property
    def guessed(self) -> float:
        """Return the share of the time of unmeasured kinds."""
        total = self.seconds
        return sum(c.seconds for c in self.calls if not c.measured) / total if total else 0.0


def predict(lowered: Step, values: Mapping[str, int], calibration: Calibration, threads: int | None = None) -> StepTime:
    """Return the time of a lowered step.

    Args:
        values: of the program's symbols; unknown ones, told only by the run, count as 1.
        threads: of a large step; by default the most calibrated.
    """
    limit = threads if threads is not None else calibration.most
    count = threads_for(lowered, values, limit)
    kernels = calibration.on(count)
    calls = list(calls_of(lowered, values))
    cold = _ReuseDistances(kernels)
    timed: list[Timed] = []
    for i, call in calls:
        seconds, measured = seconds_of(call, kernels)
        timed.append(Timed(i, call, seconds + cold.extra(call), measured))
    return StepTime(timed, kernels.step, count)


def seconds_of(call: CostedCall, kernels: Kernels) -> tuple[float, bool]:
    """Return the seconds of a call whose operands were just used, other calls before it, and whether its kind was measured."""
    if call.kind.startswith("step "):
        return 1e-7, True
    seconds, measured = _in_a_row(call, kernels)
    return seconds + kernels.among + kernels.copying(call.copied), measured


def _in_a_row(call: CostedCall, kernels: Kernels) -> tuple[float, bool]:
    curve = kernels.curve(call.kind)
    if curve is not None and curve.coordinates == len(call.at):
        return curve(call.at, call.scaling), True
    moving = next((c for k in _OTHER if (c := kernels.curve(k)) is not None and c.coordinates == 1), None)
    moving_seconds = moving((call.touched,)) if moving is not None else kernels.moving(max(call.touched, 1.0))
    rate = next((c for k in _RATE if (c := kernels.curve(k)) is not None and c.coordinates == _SIDES), None)
    if call.work and rate is not None:
        return max(rate((call.work ** (1 / _SIDES),) * _SIDES), moving_seconds), False
    return moving_seconds, False


class _ReuseDistances:
    """The values last used so long ago that they come from memory, not from a cache as in the measurement."""

    def __init__(self, kernels: Kernels) -> None:
        self.kernels = kernels
        self._last: dict[int, float] = {}
        self._moved = 0.0

    def extra(self, call: CostedCall) -> float:
        """Return seconds beside the measured ones."""
        if not call.touched:
            return 0.0
        warm = self.kernels.moving(call.touched) / call.touched
        total = 0.0
        for index, count in call.reads if not call.is_far else ():  # its measurement has the caches of a step
            since = self._moved - self._last.get(index, -1e18)
            if since > call.touched:
                away = self.kernels.moving(since) / since if since < 1e17 else self.kernels.beyond(1.0)
                total += count * max(away - warm, 0.0)
        self._moved += call.touched
        for index, _ in (*call.reads, *call.writes):
            self._last[index] = self._moved
        return total
