"""What computes: a machine whose kernels were measured, or a device of which only its rates are known."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from foreshape.cost.calibration import Calibration
from foreshape.cost.calls import Call, calls_of
from foreshape.cost.predict import StepTime, Timed, predict
from foreshape.errors import FormatError, SchemaError
from foreshape.lowering import Lowered

_NEAR = 1 << 19
"""What touches so many bytes finds them in the cache that a processor has for itself."""
_RATES = {"GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15}


@dataclass(frozen=True, slots=True)
class Roofline:
    """A device by its rates: a kernel takes as long as its work or its bytes do, whichever is longer, and no less than a launch.

    Args:
        flops: operations per second that its products reach, a multiply-add being two.
        bandwidth: bytes per second from its memory.
        launch: seconds of the smallest kernel.
    """

    flops: float
    bandwidth: float
    launch: float = 4e-6

    def __post_init__(self) -> None:
        if not (0 < self.flops < 1e21 and 0 < self.bandwidth < 1e18 and 0 <= self.launch < 1):
            raise SchemaError("a device has rates above 0")

    def seconds(self, call: Call) -> float:
        return max(2 * call.work / self.flops, call.touched / self.bandwidth, self.launch if call.touched or call.work else 0.0)

    def __str__(self) -> str:
        return f"{self.flops / 1e12:g} TFLOPS, {self.bandwidth / 1e9:g} GB/s"


class Slower(NamedTuple):
    """How many times as long kernels take as they did when nothing else ran, where several ranks share a machine's processors and memory.

    ``kernels``: those that go to memory. ``near``: those that find all in their processor's own cache, and what a step does besides its kernels.
    ``rows``: those that go by rows of tables which are in no such cache. As ``kernels`` where they are left out.
    """

    kernels: float = 1.0
    near: float | None = None
    rows: float | None = None

    @property
    def besides(self) -> float:
        """Of what a step does besides its kernels."""
        return self.kernels if self.near is None else self.near

    def of(self, call: Call) -> float:
        """Of a call."""
        if call.is_far:
            return self.kernels if self.rows is None else self.rows
        return self.besides if call.touched <= _NEAR else self.kernels

    def in_part(self, part: float) -> Slower:
        """Where the others compute for such a part of the time."""
        near, rows = (None if times is None else 1 + (times - 1) * part for times in (self.near, self.rows))
        return Slower(1 + (self.kernels - 1) * part, near, rows)

    def __str__(self) -> str:
        near, rows = (self.kernels if times is None else times for times in (self.near, self.rows))
        return f"{self.kernels:.2f} times as long, {near:.2f} times within a cache, and {rows:.2f} times by rows of tables"


class Machine(NamedTuple):
    """A calibrated machine, with so many threads for each rank. ``slower``: by how much the ranks that share it slow down one another."""

    calibration: Calibration
    threads: int
    slower: Slower = Slower()

    def __str__(self) -> str:
        return f"{self.calibration.machine}; {self.threads} thread{'' if self.threads == 1 else 's'} for each rank"


Device = Machine | Roofline


def device_of(given: Device | Calibration | str | os.PathLike[str] | None, threads: int = 1) -> Device | None:
    """A device from itself, a calibration or its file, or rates as ``"150TFLOPS:2TB/s"``. This machine where nothing is given: None where it
    was not calibrated.

    Raises:
        FormatError: a file that is no calibration. SchemaError: no rates.
    """
    if given is None:
        from foreshape.cost.calibration import default_path

        return Machine(Calibration.load(), threads) if default_path().exists() else None
    if isinstance(given, Calibration):
        return Machine(given, threads)
    if isinstance(given, (Machine, Roofline)):
        return given
    if isinstance(given, str) and ":" in given and "FLOPS" in given:
        return roofline_of(given)
    return Machine(Calibration.load(given), threads)


def roofline_of(text: str) -> Roofline:
    """A device from ``"150TFLOPS:2TB/s"``. Raises `SchemaError` for anything else."""
    from foreshape.cost.network import bandwidth_of

    rate, _, bandwidth = text.partition(":")
    unit = next((u for u in _RATES if rate.endswith(u)), None)
    try:
        if unit is not None:
            return Roofline(float(rate.removesuffix(unit)) * _RATES[unit], bandwidth_of(bandwidth))
    except ValueError:
        pass  # told below
    raise SchemaError(f'a device is the file of a calibration, or its rates as "150TFLOPS:2TB/s"; seen {text!r}')


def step_time(lowered: Lowered, values: Mapping[str, int], device: Device) -> StepTime:
    """The time of a lowered step on a device."""
    if isinstance(device, Roofline):
        calls = [Timed(i, call, device.seconds(call), False) for i, call in calls_of(lowered, values)]
        return StepTime(calls, device.launch, 1)
    found = predict(lowered, values, device.calibration, device.threads)
    calls = [replace(timed, seconds=timed.seconds * device.slower.of(timed.call)) for timed in found.calls]
    return StepTime(calls, found.besides * device.slower.besides, found.threads)


def require_device(device: Device | None) -> Device:
    """A device that there is. Raises `FormatError` with what to do."""
    if device is None:
        raise FormatError("times are not known: run `foreshape calibrate`, or give a device")
    return device
