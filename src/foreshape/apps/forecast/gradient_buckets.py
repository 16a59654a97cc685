"""DistributedDataParallel's buckets on one rank: flat copies of the gradients, or their only memory (``reducer.hpp``, ``distributed.py``; modelled)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from foreshape.apps.forecast.parallel import ParallelSettings
from foreshape.apps.forecast.recorder import Recorder
from foreshape.interop.torch.untyped_torch import torch

_FIRST: Final = 1 << 20
"""Bytes of the first bucket, for an early beginning of the messages."""
_BROADCAST: Final = 250 << 20
"""Bytes of parameters copied together when they are sent to all ranks, before the first step."""


class GradientBuckets:
    """The buckets of a traced module."""

    def __init__(self, recorder: Recorder, parameters: Mapping[str, Any], settings: ParallelSettings) -> None:
        self._recorder, self._settings = recorder, settings
        self._parameters = list(parameters.values())
        self._arrived: list[Any] = []
        self._is_rebuilt = False
        size = sum(p.numel() * p.element_size() for p in self._parameters)
        recorder.record.free(recorder.take(min(size, _BROADCAST), "workspace", "broadcast"))
        self._views: dict[Any, Any] = {}
        self._build(self._parameters[::-1])
        for parameter in self._parameters:
            parameter.register_post_accumulate_grad_hook(self._arrive)

    def before_forward(self) -> None:
        """Build the buckets anew in the gradients' order of arrival, once: the old ones are dropped before."""
        if self._arrived and not self._is_rebuilt:
            self._is_rebuilt = True
            self._views = {}
            self._build(self._arrived)

    def _build(self, parameters: Sequence[Any]) -> None:
        limit, size, bucket = _FIRST, 0, list[Any]()
        for parameter in [*parameters, None]:
            if bucket and (parameter is None or size >= limit or parameter.dtype is not bucket[0].dtype):
                flat = torch.empty(sum(p.numel() for p in bucket), dtype=bucket[0].dtype)
                self._recorder.rename(flat, "gradient", "bucket")
                parts = flat.split([p.numel() for p in bucket])
                self._views.update({p: part.view(p.shape) for p, part in zip(bucket, parts, strict=True)})
                limit, size, bucket = self._settings.bucket_bytes, 0, []
            if parameter is not None:
                bucket.append(parameter)
                size += parameter.numel() * parameter.element_size()

    def _arrive(self, parameter: Any) -> None:
        if not self._is_rebuilt and len(self._arrived) < len(self._parameters):
            self._arrived.append(parameter)
        if self._settings.gradients_are_views:
            parameter.grad = self._views[parameter]
