"""Callbacks: objects that follow a training run, and can change it."""

from typing import TYPE_CHECKING, Any

from foreshape.apps.training.callbacks.base import Callback, Run, Watch
from foreshape.apps.training.callbacks.early_stopping import EarlyStopping
from foreshape.apps.training.callbacks.logs import CSVLog, TensorBoard
from foreshape.apps.training.callbacks.memory_preflight import Preflight
from foreshape.apps.training.callbacks.moving_average import MovingAverage
from foreshape.apps.training.callbacks.reduce_on_plateau import ReduceOnPlateau
from foreshape.apps.training.callbacks.save_best import SaveBest
from foreshape.apps.training.callbacks.timer import Timer
from foreshape.core.hints import no_such_name

__all__ = ["CSVLog", "Callback", "EarlyStopping", "MovingAverage", "Preflight", "ReduceOnPlateau", "Run", "SaveBest", "TensorBoard", "Timer", "Watch"]

_CALLED_ELSEWHERE = {
    "ModelCheckpoint": "callbacks.SaveBest(path, metric) for the best values; fs.train(..., checkpoint=folder) for a run that can go on",
    "BackupAndRestore": "fs.train(..., checkpoint=folder)",
    "ReduceLROnPlateau": "callbacks.ReduceOnPlateau",
    "LearningRateScheduler": "a learning rate that is a schedule: fs.optimizer.cosine, warmup and others",
    "CSVLogger": "callbacks.CSVLog",
    "LambdaCallback": "a plain function of an epoch's number and row, in the list of callbacks",
    **dict.fromkeys(("EMA", "ExponentialMovingAverage", "SwapEMAWeights"), "callbacks.MovingAverage"),
}


if not TYPE_CHECKING:  # type checkers report a wrong name

    def __getattr__(name: str) -> Any:
        raise no_such_name(__name__, name, _CALLED_ELSEWHERE, __all__, "fs.callbacks")
