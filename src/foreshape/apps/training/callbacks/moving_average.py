"""Averages of the parameters over the steps, for evaluations."""

from __future__ import annotations

from typing import Any

from foreshape.apps.training.callbacks.base import Callback, Run
from foreshape.core.values.torch_proxy import torch
from foreshape.errors import ExecutionError


class MovingAverage(Callback):
    """A callback that keeps ``average = d * average + (1 - d) * value`` of each parameter, with ``d = min(decay, (1 + steps) / (10 + steps))``.

    (Polyak and Juditsky, 1992; the smaller factor at the beginning as in TensorFlow's ExponentialMovingAverage.) Validation data are measured with
    the averages, and `EarlyStopping` and `SaveBest` keep them. They are in checkpoints.

    Args:
        decay: between 0 and 1.
        keep: let the scope hold the averages at the end of the run; otherwise the parameters as the last step left them.
    """

    kept = ("steps", "values")

    def __init__(self, decay: float = 0.999, *, keep: bool = True) -> None:
        if not 0 < decay < 1:
            raise ExecutionError.must("decay", "between 0 and 1", decay)
        self.decay, self.keep = decay, keep
        self.steps = 0
        self.values: dict[str, Any] = {}
        self._own: dict[str, Any] | None = None

    def on_train_begin(self, run: Run) -> None:
        if run.divided:
            raise ExecutionError("MovingAverage cannot average parameters that are divided over ranks")
        trained = {v.name for v in run.program.global_block.vars.values() if v.is_parameter and v.trainable}
        self.steps, self.values = 0, {n: v.clone() for n, v in run.network().items() if n in trained and v.is_floating_point()}

    def on_resume(self, run: Run) -> None:
        run.averages = self.values  # an epoch may have no batch left, and only end

    def on_batch_end(self, run: Run) -> None:
        self.steps += 1
        decay = min(self.decay, (1 + self.steps) / (10 + self.steps))
        with torch.inference_mode():
            for name, average in self.values.items():
                average.lerp_(run.scope.tensor(name), 1 - decay)
        run.averages = self.values

    def on_evaluation_begin(self, run: Run) -> None:
        self._own = {name: run.scope.tensor(name).clone() for name in self.values}
        run.scope.fill(self.values)

    def on_evaluation_end(self, run: Run) -> None:
        if self._own is not None:
            run.scope.fill(self._own)
            self._own = None

    def on_train_end(self, run: Run) -> None:
        if self.keep and not run.restored:
            run.restore(self.values)
