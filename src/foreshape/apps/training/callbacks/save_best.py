"""The network's values saved at the best epoch."""

from __future__ import annotations

import os
from collections.abc import Sequence

from foreshape.apps.training.callbacks.base import Run, Watch
from foreshape.core.folders import require_writable
from foreshape.errors import ExecutionError
from foreshape.interop.tensors import save_safetensors
from foreshape.runtime.engine import Scope


class SaveBest(Watch):
    """A callback that writes the network's values, parameters and statistics, into a safetensors file whenever an epoch is the best so far.

    ``fs.load_safetensors(path)`` puts them into a scope.

    Args:
        path: the file, in a folder made if missing; a better one replaces it only when complete.
        metric, mode: as for `Watch`.
    """

    def __init__(self, path: str | os.PathLike[str], metric: str = "validation loss", *, mode: str | None = None) -> None:
        super().__init__(metric, mode)
        self.path = path

    def on_train_begin(self, run: Run) -> None:
        super().on_train_begin(run)
        if run.divided:
            raise ExecutionError("SaveBest cannot write parameters that are divided over ranks: use a Checkpoint, which can")
        if run.first:
            require_writable(self.path)

    def files_written(self) -> Sequence[str | os.PathLike[str]]:
        return [self.path] if self.best is not None else []

    def on_epoch_end(self, run: Run) -> None:
        figure = self.seen(run)
        if self.is_better(figure):
            self.best = figure
            if run.first:
                values = Scope()
                for name, value in run.network().items():
                    values.store(name, value)
                save_safetensors(self.path, values)
