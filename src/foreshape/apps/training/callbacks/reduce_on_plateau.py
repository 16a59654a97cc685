"""A smaller learning rate when a figure stops improving."""

from __future__ import annotations

from foreshape.apps.training.callbacks.base import Run, Watch
from foreshape.errors import ExecutionError


class ReduceOnPlateau(Watch):
    """A callback that multiplies the learning rate by a factor when a figure has not improved for several epochs.

    Args:
        metric, mode: as for `Watch`.
        factor: between 0 and 1.
        patience: the number of epochs in a row without improvement; with 0 or 1 the rate falls at each one.
        min_rate: the learning rate gets no smaller than this.
        min_change: an improvement by no more than this does not count.
    """

    kept = ("best", "waited")

    def __init__(
        self, metric: str = "validation loss", factor: float = 0.1, patience: int = 5, *, min_rate: float = 0.0, min_change: float = 0.0,
        mode: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(metric, mode)
        if not 0 < factor < 1 or patience < 0 or min_change < 0:
            raise ExecutionError.must("factor", "between 0 and 1, patience and min_change at least 0", f"{factor}, {patience} and {min_change}")
        self.factor, self.patience, self.min_rate, self.min_change = factor, patience, min_rate, min_change
        self.waited = 0

    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        run.learning_rate = run.learning_rate  # refused here where it is a schedule, not after hours
        self.waited = 0

    def on_epoch_end(self, run: Run) -> None:
        figure = self.seen(run)
        if self.is_better(figure, self.min_change):
            self.best, self.waited = figure, 0
            return
        self.waited += 1
        rate = run.learning_rate
        if self.waited >= max(self.patience, 1) and rate > self.min_rate:
            run.learning_rate = max(rate * self.factor, self.min_rate)
            run.say(f"learning rate {rate:.3g} -> {run.learning_rate:.3g}: {self.metric} has not got better for {self.waited} epochs")
            self.waited = 0
