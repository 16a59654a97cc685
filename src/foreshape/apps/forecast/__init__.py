"""Forecasts of the memory that eager torch takes on a GPU for a training step and for a run over many batches, without a GPU.

Begin with `forecasting`. It asks `caching_allocator` (CUDA's, simulated) and `cards`; its answer is in `forecast_results`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from foreshape.core.lazy_names import lazy_names, lazy_value

if TYPE_CHECKING:
    from foreshape.apps.forecast.public_names import *

_EXPORTS = "foreshape.apps.forecast.public_names"
"""The list of names and their files, each imported when its name is first used: the names of cards are completed by the shell."""


def __getattr__(name: str) -> Any:
    if name not in lazy_names(_EXPORTS):
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = lazy_value(_EXPORTS, name)
    return value


__all__ = ["CARDS", "Advice", "Card", "Forecast", "Largest", "PeakTensor", "StepPeak", "forecast"]
