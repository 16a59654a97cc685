"""`DeviceTarget`: a kind of device, as the compiler and the planner see it."""

from __future__ import annotations

from enum import Enum
from typing import Any

from foreshape.core.data_class import data_class


class Feature(Enum):
    """A part of a machine that rewrites and kernels may need."""

    ONEDNN = "oneDNN's kernels"
    CUDNN = "cuDNN's kernels"
    THREADS = "kernels that share their work among threads of the processor, each with memory of its own"


@data_class(frozen=True)
class DeviceTarget:
    """A kind of device.

    Attributes:
        kind: "cpu", "cuda" or another of torch's.
        features: of its machine.
        block: memory is taken there in multiples of so many bytes.
        is_tested: False where no run on such a device has shown what is said of it.
        device: the ``torch.device`` of a step; None for the processor, and for a plan alone.
    """

    kind: str
    features: frozenset[Feature] = frozenset()
    block: int = 1
    is_tested: bool = False
    device: Any = None

    @property
    def is_processor(self) -> bool:
        """Return True for the processor."""
        return Feature.THREADS in self.features

    def has(self, *features: Feature) -> bool:
        """Return True if the target has all of some features."""
        return self.features.issuperset(features)
