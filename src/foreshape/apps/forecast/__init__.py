"""Forecasts of the memory that eager torch takes on a GPU for a training step and for a run over many batches, without a GPU.

Begin with `forecasting`. It asks `caching_allocator` (CUDA's, simulated) and `cards`; its answer is in `forecast_results`.
"""

from foreshape.apps.forecast.cards import CARDS, Card
from foreshape.apps.forecast.forecast_results import Advice, Forecast, Largest, PeakTensor, StepPeak
from foreshape.apps.forecast.forecasting import forecast

__all__ = ["CARDS", "Advice", "Card", "Forecast", "Largest", "PeakTensor", "StepPeak", "forecast"]
