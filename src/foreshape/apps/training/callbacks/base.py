"""The interfaces of a callback and of the run in its hands."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from foreshape.apps.training.checkpoint.state import CallbackState, Position
from foreshape.apps.training.history import History, check_row
from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.hints import did_you_mean
from foreshape.errors import ExecutionError, FormatError
from foreshape.language.program import Program
from foreshape.runtime.engine import Executor, Scope


class Run(Protocol):
    """A training run, as its callbacks have it in hand."""

    @property
    def program(self) -> Program:
        """Return the program that runs for each batch, with gradients and updates."""
        ...

    @property
    def scope(self) -> Scope:
        """Return the scope of the values."""
        ...

    @property
    def executor(self) -> Executor:
        """Return the executor."""
        ...

    @property
    def history(self) -> History:
        """Return the losses and figures so far, including those before a resumption."""
        ...

    @property
    def position(self) -> Position:
        """Return the position of the run: the batches done in this epoch (from 1); at the end of an epoch, none of the next."""
        ...

    @property
    def epochs(self) -> int:
        """Return the number of epochs asked for."""
        ...

    @property
    def figures(self) -> list[str]:
        """Return the names of the figures in each row of the history."""
        ...

    @property
    def rows_grow(self) -> bool:
        """Tell whether callbacks of the user could write other figures into a row."""
        ...

    @property
    def first(self) -> bool:
        """Tell whether this process writes files and shows progress: rank 0, or the only one."""
        ...

    @property
    def divided(self) -> bool:
        """Tell whether parameters are divided over ranks, so that no rank has the whole."""
        ...

    @property
    def learning_rate(self) -> float:
        """Return the learning rate of the last step.

        It can be set if it is a number, not a schedule. Raises `ExecutionError` otherwise, and if updates have several rates.
        """
        ...

    @learning_rate.setter
    def learning_rate(self, value: float) -> None: ...

    @property
    def seconds(self) -> tuple[float, float]:
        """Return the seconds of waiting for data and of computing steps, since the run began or was resumed."""
        ...

    def stop(self) -> None:
        """End the run: after this batch, or after this epoch with several ranks."""
        ...

    def say(self, text: str) -> None:
        """Show a line of ``text``, where the run shows anything."""
        ...

    def network(self) -> dict[str, Any]:
        """Return the network's own values, name -> tensor, as used by evaluations: averages, if a callback keeps some."""
        ...

    def restore(self, values: Mapping[str, Any]) -> None:
        """Put back values returned by `network`."""
        ...

    restored: bool
    """True after a callback has put values back."""
    averages: Mapping[str, Any] | None
    """The values for evaluations in place of the scope's; set by the callback that keeps them."""


class Callback(ConstructorRepr):
    """The base of callbacks, told how a run goes and able to change it. A method left alone costs nothing.

    An attribute named in `kept` is written into checkpoints and comes back when a killed run is resumed. It is a number, a text, True, False,
    None, or a dict of tensors by the names of values of the network. With several ranks, each has the callback, called with
    the same figures: write files only if ``run.first``.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    """The attributes held by a checkpoint."""
    adds: tuple[str, ...] = ()
    """The names of figures added to the row of each epoch by `added`: other callbacks can watch, log and save them."""

    def added(self, run: Run) -> Mapping[str, float]:
        """Return the figures named in `adds` for the epoch of ``run`` just ended; called before any `on_epoch_end`."""
        raise ExecutionError(f"{type(self).__name__} must have the method added(run), which gives {', '.join(self.adds)}")

    def figures_of(self, run: Run) -> dict[str, float]:
        """Return the figures to add to a row of ``run``. Raises `ExecutionError` if they are not those of `adds`."""
        figures: Any = self.added(run) if self.adds else {}
        if not isinstance(figures, Mapping) or set(cast("Mapping[Any, Any]", figures)) != set(self.adds):
            raise ExecutionError(f"{type(self).__name__}.added must give a number for each of {', '.join(self.adds)}; seen {figures!r:.80}")
        row: dict[str, float] = dict(cast("Mapping[str, float]", figures))
        check_row(row)
        return row

    def on_train_begin(self, run: Run) -> None:
        """Begin, before the first step of ``run``, with all values there. Kept attributes are put back after this."""

    def on_resume(self, run: Run) -> None:
        """Continue after the attributes held by a checkpoint were put back into ``run``."""

    def on_batch_end(self, run: Run) -> None:
        """Follow a step; its loss is ``run.history.losses[-1]``."""

    def on_checkpoint(self, run: Run) -> None:
        """Prepare for a checkpoint of ``run`` about to be written: a killed run continues from there, and does not repeat anything before it."""

    def on_evaluation_begin(self, run: Run) -> None:
        """Prepare for an evaluation of ``run`` on the validation data."""

    def on_evaluation_end(self, run: Run) -> None:
        """Follow an evaluation of ``run``, also one that failed."""

    def on_epoch_end(self, run: Run) -> None:
        """Follow an epoch; its row is ``run.history.epochs[-1]``."""

    def on_train_end(self, run: Run) -> None:
        """End, after the last step of a ``run`` not broken off."""

    def files_written(self) -> Sequence[str | os.PathLike[str]]:
        """Return the files, or folders, written in this run, to be named when a run is interrupted."""
        return ()

    def to_kept(self) -> CallbackState:
        """Return the state of this callback for a checkpoint."""
        out = CallbackState(type(self).__name__)
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, dict):
                out.tensors[name] = cast("dict[str, Any]", value)
            elif value is None or isinstance(value, (bool, int, float, str)):
                out.numbers[name] = value
            else:
                kind = type(value).__name__
                raise ExecutionError.must(f"{out.kind}.{name} is kept, and", "a number, a text, None, or a dict of tensors", kind)
        return out

    def take_kept(self, found: CallbackState) -> None:
        """Put back the state ``found`` in a checkpoint.

        Raises:
            FormatError: an attribute is missing, surplus, or of another kind.
        """
        tensors = {n for n in self.kept if isinstance(getattr(self, n), dict)}
        if found.numbers.keys() != {*self.kept} - tensors or not found.tensors.keys() <= tensors:
            raise FormatError(f"the checkpoint's {found.kind} must have {', '.join(self.kept)}; seen {', '.join([*found.numbers, *found.tensors])}")
        for name, value in found.numbers.items():
            present_value = getattr(self, name)
            numbers = isinstance(value, (int, float)) and isinstance(present_value, (int, float)) and isinstance(value, bool) is isinstance(present_value, bool)
            if value is not None and present_value is not None and not numbers and type(value) is not type(present_value):
                raise FormatError.must(f"the checkpoint's {found.kind}.{name}", f"as {present_value!r} is", f"{value!r}")
        for name, value in found.numbers.items():
            setattr(self, name, value)
        for name in tensors:
            setattr(self, name, {n: t.clone() for n, t in found.tensors.get(name, {}).items()})


class Watch(Callback):
    """The base of callbacks watching one figure of the epochs.

    Args:
        metric: its name in the history, such as "validation loss".
        mode: whether "min" or "max" is better. Left out it is told by the name: "loss" and "error" in it are better small, "accuracy",
            "auc", "precision" and "recall" large.
    """

    kept = ("best",)

    def __init__(self, metric: str, mode: str | None = None) -> None:
        self.metric = metric
        self.mode = mode if mode is not None else _mode_of(metric)
        if self.mode not in ("min", "max"):
            raise ExecutionError.one_of(f"{type(self).__name__} cannot tell whether {metric!r} is better small or large: mode", ("min", "max"), mode)
        self.best: float | None = None

    def _arguments(self) -> Mapping[str, Any]:
        return {"mode": None if self.mode == _mode_of(self.metric) else self.mode}

    def on_train_begin(self, run: Run) -> None:
        self.best = None
        if self.metric not in run.figures and not run.rows_grow:
            raise ExecutionError(self._missing(run.figures))

    def seen(self, run: Run) -> float:
        """Return the figure of the epoch of ``run`` just ended."""
        row = run.history.epochs[-1]
        if self.metric not in row:
            raise ExecutionError(self._missing(list(row)))
        check_row(row)
        return row[self.metric]

    def _missing(self, figures: Sequence[str]) -> str:
        return (
            f"{type(self).__name__} watches {self.metric!r}; the history of this run has {', '.join(map(repr, figures))}; a callback that adds a "
            f"figure names it in `adds`, or stands before this one and writes it into the row{did_you_mean(self.metric, figures)}"
        )

    def is_better(self, now: float, by: float = 0.0) -> bool:
        """Tell whether the figure ``now`` is better than the best so far by more than ``by``; NaN never is."""
        if now != now or self.best is None:
            return now == now
        return now < self.best - by if self.mode == "min" else now > self.best + by


def _mode_of(metric: str) -> str | None:
    words = metric.lower().replace("_", " ").split()
    if any(w in words for w in ("loss", "error", "perplexity", "mse", "mae", "rmse")):
        return "min"
    return "max" if any(w in words for w in ("accuracy", "auc", "precision", "recall", "f1")) else None
