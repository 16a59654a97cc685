"""The processor."""

from foreshape.machine.targets.target import DeviceTarget, Feature

CPU = DeviceTarget("cpu", frozenset({Feature.ONEDNN, Feature.THREADS}), is_tested=True)
