"""The figures of a run for other programs: a table of comma-separated values, TensorBoard."""

from __future__ import annotations

import csv
import os
from collections.abc import Sequence
from typing import Any

from foreshape.apps.training.callbacks.base import Callback, Run
from foreshape.core.folders import cannot_be_written, make_folder
from foreshape.errors import ExecutionError


class CSVLog(Callback):
    """A callback that writes a row for each epoch into a CSV file with a head; a resumed run writes the earlier rows, too.

    Args:
        path: the file, in a folder made if missing; it is replaced when a run begins.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = path
        self._names: list[str] = []

    def on_train_begin(self, run: Run) -> None:
        self._names = list(dict.fromkeys(["epoch", *run.figures, *(n for row in run.history.epochs for n in row)]))
        if run.first:
            self._write_all(run)

    def on_epoch_end(self, run: Run) -> None:
        row = run.history.epochs[-1]
        new = [name for name in row if name not in self._names]  # written by a callback before this one
        self._names += new
        if run.first and new:
            self._write_all(run)
        elif run.first:
            self._write("a", [self._row(len(run.history.epochs), row)])

    def _write_all(self, run: Run) -> None:
        self._write("w", [dict(zip(self._names, self._names, strict=True)), *(self._row(epoch, row) for epoch, row in enumerate(run.history.epochs, 1))])

    def files_written(self) -> Sequence[str | os.PathLike[str]]:
        return [self.path] if self._names else []

    def _row(self, number: int, row: dict[str, float]) -> dict[str, Any]:
        return {"epoch": number, **row}

    def _write(self, mode: str, rows: list[dict[str, Any]]) -> None:
        try:
            make_folder(self.path)
            with open(self.path, mode, newline="", encoding="utf-8") as file:
                csv.DictWriter(file, self._names, extrasaction="ignore", lineterminator="\n").writerows(rows)
        except (OSError, ValueError) as error:
            raise cannot_be_written(self.path, error) from None


class TensorBoard(Callback):
    """A callback that writes the loss of every step and the figures of every epoch for TensorBoard.

    A killed run resumed from a checkpoint adds a file, from the step after it. TensorBoard shows each step once, and every step up to the
    checkpoint: a checkpoint is written after them.

    Args:
        folder: of this run alone.
        every: write the loss of one step in so many.

    Raises:
        ExecutionError: tensorboard is not installed.
    """

    def __init__(self, folder: str | os.PathLike[str], every: int = 1) -> None:
        if every < 1:
            raise ExecutionError.must("every", "at least 1 step", every)
        self.folder, self.every = folder, every
        self._writer: Any = None
        self._begun = False

    def on_train_begin(self, run: Run) -> None:
        if not run.first:
            return
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise ExecutionError("TensorBoard needs tensorboard, which is not installed: pip install tensorboard") from error
        steps = run.history.steps
        self._writer = SummaryWriter(os.fspath(self.folder), purge_step=max(steps, 1))
        self._begun = True
        if steps:  # the killed run may have written the row of an epoch at this step, and the checkpoint be from before it
            self.on_batch_end(run)
            if run.position.batch == 0:
                self._write_row(run)

    def on_batch_end(self, run: Run) -> None:
        if self._writer is not None and run.history.steps % self.every == 0:
            self._writer.add_scalar("step/loss", run.history.losses[-1], run.history.steps)

    def on_checkpoint(self, run: Run) -> None:
        if self._writer is not None:
            self._writer.flush()

    def on_epoch_end(self, run: Run) -> None:
        if self._writer is not None:
            self._write_row(run)
            self._writer.flush()

    def _write_row(self, run: Run) -> None:
        for name, value in run.history.epochs[-1].items():
            self._writer.add_scalar(f"epoch/{name}", value, run.history.steps)

    def files_written(self) -> Sequence[str | os.PathLike[str]]:
        return [self.folder] if self._begun else []

    def on_train_end(self, run: Run) -> None:
        if self._writer is not None:
            self._writer.close()
            self._writer = None
