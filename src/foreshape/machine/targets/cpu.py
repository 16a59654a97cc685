"""The processor."""

from foreshape.machine.targets.target import Feature, Target

CPU = Target("cpu", frozenset({Feature.ONEDNN, Feature.THREADS}), is_tested=True)
