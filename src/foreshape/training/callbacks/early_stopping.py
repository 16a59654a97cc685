"""Ends a run that gets no better."""

from __future__ import annotations

from typing import Any

from foreshape.errors import ExecutionError
from foreshape.training.callbacks.base import Run, Watch


class EarlyStopping(Watch):
    """Ends a run when a figure has not got better for so many epochs.

    Args:
        metric, mode: as `Watch` has them; the validation loss where it is left out.
        patience: the run ends after so many epochs in a row without anything better, at the first one where it is 0 or 1.
        restore_best: put the values of the best epoch back at the end. They are kept beside the others, and in checkpoints.
        min_change: what is better by no more than this is not better.
    """

    kept = ("best", "waited", "epoch", "values")

    def __init__(
        self, metric: str = "validation loss", patience: int = 3, restore_best: bool = False, *, min_change: float = 0.0, mode: str | None = None
    ) -> None:
        super().__init__(metric, mode)
        if patience < 0 or min_change < 0:
            raise ExecutionError(f"patience and min_change must be at least 0; seen {patience} and {min_change}")
        self.patience, self.restore_best, self.min_change = patience, restore_best, min_change
        self.waited = 0
        self.epoch = 0
        """The best one, from 1; 0 where there is none."""
        self.values: dict[str, Any] = {}

    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        if self.restore_best and run.divided:
            raise ExecutionError("EarlyStopping cannot restore the best values where parameters are divided over ranks: use a Checkpoint instead")
        self.waited, self.epoch, self.values = 0, 0, {}

    def on_resume(self, run: Run) -> None:
        if self.waited >= max(self.patience, 1):  # it was stopped already
            run.stop()

    def on_epoch_end(self, run: Run) -> None:
        now = self.seen(run)
        if self.is_better(now, self.min_change):
            self.best, self.epoch, self.waited = now, len(run.history.epochs), 0
            if self.restore_best:
                self.values = {name: value.clone() for name, value in run.network().items()}
            return
        self.waited += 1
        if self.waited >= max(self.patience, 1):
            run.say(f"stopped: {self.metric} was best in epoch {self.epoch}, {self.waited} epoch{'' if self.waited == 1 else 's'} ago")
            run.stop()

    def on_train_end(self, run: Run) -> None:
        if self.values:
            run.restore(self.values)
