"""Callbacks: what is told how a training run goes, and can change it."""

from foreshape.training.callbacks.base import Callback, Run, Watch
from foreshape.training.callbacks.early_stopping import EarlyStopping
from foreshape.training.callbacks.logs import CSVLog, TensorBoard
from foreshape.training.callbacks.moving_average import MovingAverage
from foreshape.training.callbacks.reduce_on_plateau import ReduceOnPlateau
from foreshape.training.callbacks.save_best import SaveBest
from foreshape.training.callbacks.timer import Timer

__all__ = ["CSVLog", "Callback", "EarlyStopping", "MovingAverage", "ReduceOnPlateau", "Run", "SaveBest", "TensorBoard", "Timer", "Watch"]
