"""Devices: a machine with measured kernels, or a device with known rates only."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import NamedTuple

from foreshape.compiler.cost.calibration import Calibration
from foreshape.compiler.cost.calls import CostedCall, calls_of
from foreshape.compiler.cost.predict import StepTime, Timed, predict
from foreshape.compiler.lowering import Step
from foreshape.errors import FormatError, SchemaError

_NEAR = 1 << 19
"""The bytes of a call that stay in a processor's own cache."""
_RATES = {"GFLOPS": 1e9, "TFLOPS": 1e12, "PFLOPS": 1e15}


@dataclass(frozen=True, slots=True)
class Roofline:
    """A device by its rates: a kernel takes the longer time of its work and its bytes, and no less than a launch.

    Args:
        flops: operations per second of its products; a multiply-add is two.
        bandwidth: bytes per second from its memory.
        launch: seconds of the smallest kernel.
    """

    flops: float
    bandwidth: float
    launch: float = 4e-6

    def __post_init__(self) -> None:
        if not (0 < self.flops < 1e21 and 0 < self.bandwidth < 1e18 and 0 <= self.launch < 1):
            raise SchemaError("a device has rates above 0")

    def seconds(self, call: CostedCall) -> float:
        return max(2 * call.work / self.flops, call.touched / self.bandwidth, self.launch if call.touched or call.work else 0.0)

    def __str__(self) -> str:
        return f"{self.flops / 1e12:g} TFLOPS, {self.bandwidth / 1e9:g} GB/s"


class Slower(NamedTuple):
    """The slowdown of kernels when several ranks share a machine's processors and memory, as factors of their time alone.

    ``kernels``: for kernels that read from memory. ``near``: for kernels within their processor's own cache, and the rest of a step. ``rows``: for kernels on
    rows of tables beyond this cache. As ``kernels`` by default.
    """

    kernels: float = 1.0
    near: float | None = None
    rows: float | None = None

    @property
    def besides(self) -> float:
        """Return the factor of a step besides its kernels."""
        return self.kernels if self.near is None else self.near

    def of(self, call: CostedCall) -> float:
        """Return the factor of a call."""
        if call.is_far:
            return self.kernels if self.rows is None else self.rows
        return self.besides if call.touched <= _NEAR else self.kernels

    def in_part(self, part: float) -> Slower:
        """Return the slowdown if the others compute for this part of the time."""
        near, rows = (None if times is None else 1 + (times - 1) * part for times in (self.near, self.rows))
        return Slower(1 + (self.kernels - 1) * part, near, rows)

    def __str__(self) -> str:
        near, rows = (self.kernels if times is None else times for times in (self.near, self.rows))
        return f"{self.kernels:.2f} times as long, {near:.2f} times within a cache, and {rows:.2f} times by rows of tables"


class Machine(NamedTuple):
    """A calibrated machine, with so many threads for each rank. ``slower``: the slowdown of its ranks by one another."""

    calibration: Calibration
    threads: int
    slower: Slower = Slower()

    def __str__(self) -> str:
        return f"{self.calibration.machine}; {self.threads} thread{'' if self.threads == 1 else 's'} for each rank"


Device = Machine | Roofline


def device_of(source: Device | Calibration | str | os.PathLike[str] | None, threads: int = 1) -> Device | None:
    """Return a device from itself, a calibration or its file, or rates as ``"150TFLOPS:2TB/s"``. None means this machine, and gives None unless it is
    calibrated.

    Raises:
        FormatError: a file that is no calibration. SchemaError: no rates.
    """
    if source is None:
        from foreshape.compiler.cost.calibration import default_path

        return Machine(Calibration.load(), threads) if default_path().exists() else None
    if isinstance(source, Calibration):
        return Machine(source, threads)
    if isinstance(source, (Machine, Roofline)):
        return source
    if isinstance(source, str) and ":" in source and "FLOPS" in source:
        return roofline_of(source)
    return Machine(Calibration.load(source), threads)


def roofline_of(text: str) -> Roofline:
    """Return a device from ``"150TFLOPS:2TB/s"``. Raise `SchemaError` for anything else."""
    from foreshape.compiler.cost.network import bandwidth_of

    rate, _, bandwidth = text.partition(":")
    unit = next((u for u in _RATES if rate.endswith(u)), None)
    try:
        if unit is not None:
            return Roofline(float(rate.removesuffix(unit)) * _RATES[unit], bandwidth_of(bandwidth))
    except ValueError:
        pass  # told below
    raise SchemaError(f'a device is the file of a calibration, or its rates as "150TFLOPS:2TB/s"; seen {text!r}')


def step_time(lowered: Step, values: Mapping[str, int], device: Device) -> StepTime:
    """Return the time of a lowered step on a device."""
    if isinstance(device, Roofline):
        calls = [Timed(i, call, device.seconds(call), False) for i, call in calls_of(lowered, values)]
        return StepTime(calls, device.launch, 1)
    predicted = predict(lowered, values, device.calibration, device.threads)
    calls = [replace(timed, seconds=timed.seconds * device.slower.of(timed.call)) for timed in predicted.calls]
    return StepTime(calls, predicted.besides * device.slower.besides, predicted.threads)


def require_device(device: Device | None) -> Device:
    """Return a present device. Raise `FormatError` with a remedy for None."""
    if device is None:
        raise FormatError("times are not known: run `foreshape calibrate`, or give a device")
    return device
