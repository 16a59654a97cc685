"""A callback that ends a run without improvement."""

from __future__ import annotations

from typing import Any

from foreshape.apps.training.callbacks.base import Run, Watch
from foreshape.errors import ExecutionError


class EarlyStopping(Watch):
    """A callback that ends a run when a figure has not improved for several epochs.

    Args:
        metric, mode: as for `Watch`; the validation loss by default.
        patience: the number of epochs in a row without improvement; with 0 or 1 the run ends at the first one.
        restore_best: put the values of the best epoch back at the end. They are kept beside the others, and in checkpoints.
        min_change: an improvement by no more than this does not count.
    """

    kept = ("best", "waited", "epoch", "values")

    def __init__(
        self, metric: str = "validation loss", patience: int = 3, restore_best: bool = False, *, min_change: float = 0.0, mode: str | None = None
    ) -> None:
        super().__init__(metric, mode)
        if patience < 0 or min_change < 0:
            raise ExecutionError.must("patience and min_change", "at least 0", f"{patience} and {min_change}")
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
        figure = self.seen(run)
        if self.is_better(figure, self.min_change):
            self.best, self.epoch, self.waited = figure, len(run.history.epochs), 0
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
