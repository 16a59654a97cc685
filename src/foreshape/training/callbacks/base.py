"""What a callback is, and what it has in hand: the run."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar, Protocol, cast

from foreshape.constructor_repr import ConstructorRepr
from foreshape.engine import Executor, Scope
from foreshape.errors import ExecutionError, FormatError
from foreshape.program import Program
from foreshape.training.history import History, check_row
from foreshape.training.state import Kept, Position


class Run(Protocol):
    """A training run, as its callbacks have it in hand."""

    @property
    def program(self) -> Program:
        """What is run for each batch, with gradients and updates."""
        ...

    @property
    def scope(self) -> Scope:
        """Where the values are."""
        ...

    @property
    def executor(self) -> Executor:
        """What runs."""
        ...

    @property
    def history(self) -> History:
        """The losses and figures so far, those before a resumption included."""
        ...

    @property
    def position(self) -> Position:
        """How far the run is: so many batches of this epoch (from 1) are done; where an epoch has just ended, none of the next."""
        ...

    @property
    def epochs(self) -> int:
        """How many epochs are asked for."""
        ...

    @property
    def figures(self) -> list[str]:
        """The names that each row of the history has."""
        ...

    @property
    def rows_grow(self) -> bool:
        """Whether callbacks of the user could write figures into a row that are not among these."""
        ...

    @property
    def first(self) -> bool:
        """Whether this is the process that writes files and shows things: rank 0, or the only one."""
        ...

    @property
    def divided(self) -> bool:
        """Whether parameters are divided over ranks, so that none of them has the whole."""
        ...

    @property
    def learning_rate(self) -> float:
        """That of the last step. Can be set where it is a number, not a schedule; raises `ExecutionError` otherwise, and where updates have several."""
        ...

    @learning_rate.setter
    def learning_rate(self, value: float) -> None: ...

    @property
    def seconds(self) -> tuple[float, float]:
        """How long the run has waited for data, and how long it has computed steps, since it began or went on."""
        ...

    def stop(self) -> None:
        """End the run: after this batch, or after this epoch where there are several ranks."""
        ...

    def say(self, text: str) -> None:
        """Show a line of ``text``, where the run shows anything."""
        ...

    def network(self) -> dict[str, Any]:
        """The network's own values, name -> tensor, as an evaluation uses them: averages where a callback keeps such."""
        ...

    def restore(self, values: Mapping[str, Any]) -> None:
        """Put values back that `network` gave."""
        ...

    restored: bool
    """Whether a callback has put values back."""
    averages: Mapping[str, Any] | None
    """What an evaluation uses in place of values of the scope; set by the callback that keeps them."""


class Callback(ConstructorRepr):
    """Is told how a run goes, and can change it. Override what you need; what is not overridden costs nothing.

    An attribute that is named in `kept` is written into checkpoints and comes back when a killed run goes on: a number, a text, True,
    False, None, or a dict of tensors that are values of the network by name. Where several ranks train, each has the callback, called with
    the same figures: write files where ``run.first``.
    """

    kept: ClassVar[tuple[str, ...]] = ()
    """The attributes that a checkpoint holds."""
    adds: tuple[str, ...] = ()
    """The names of figures that it adds to the row of each epoch, as `added` gives them: others can watch, log and save them."""

    def added(self, run: Run) -> Mapping[str, float]:
        """The figures that are named in `adds`, of the epoch of ``run`` that has ended; before any `on_epoch_end`."""
        raise ExecutionError(f"{type(self).__name__} must have the method added(run), which gives {', '.join(self.adds)}")

    def figures_of(self, run: Run) -> dict[str, float]:
        """What it adds to a row of ``run``. Raises `ExecutionError` where that is not what it says in `adds`."""
        given: Any = self.added(run) if self.adds else {}
        if not isinstance(given, Mapping) or set(cast("Mapping[Any, Any]", given)) != set(self.adds):
            raise ExecutionError(f"{type(self).__name__}.added must give a number for each of {', '.join(self.adds)}; seen {given!r:.80}")
        row: dict[str, float] = dict(cast("Mapping[str, float]", given))
        check_row(row)
        return row

    def on_train_begin(self, run: Run) -> None:
        """Before the first step of ``run``, when all values are there. What is kept is put back after this."""

    def on_resume(self, run: Run) -> None:
        """After what a checkpoint held of this callback was put back into ``run``."""

    def on_batch_end(self, run: Run) -> None:
        """After each step; its loss is ``run.history.losses[-1]``."""

    def on_checkpoint(self, run: Run) -> None:
        """Before a checkpoint of ``run`` is written: a killed run goes on from there, and does not make again what came before."""

    def on_evaluation_begin(self, run: Run) -> None:
        """Before ``run`` measures the validation data."""

    def on_evaluation_end(self, run: Run) -> None:
        """After ``run`` has measured them, also where that failed."""

    def on_epoch_end(self, run: Run) -> None:
        """After each epoch; its row is ``run.history.epochs[-1]``."""

    def on_train_end(self, run: Run) -> None:
        """After the last step of a ``run`` that was not broken off."""

    def files_written(self) -> Sequence[str | os.PathLike[str]]:
        """The files, or folders, that it has written in this run: whoever interrupts a run is told them."""
        return ()

    def to_kept(self) -> Kept:
        """What a checkpoint holds of this callback."""
        out = Kept(type(self).__name__)
        for name in self.kept:
            value = getattr(self, name)
            if isinstance(value, dict):
                out.tensors[name] = cast("dict[str, Any]", value)
            elif value is None or isinstance(value, (bool, int, float, str)):
                out.numbers[name] = value
            else:
                kind = type(value).__name__
                raise ExecutionError(f"{out.kind}.{name} is kept, and must be a number, a text, None, or a dict of tensors; seen {kind}")
        return out

    def take_kept(self, found: Kept) -> None:
        """Put back what a checkpoint holds, ``found``.

        Raises:
            FormatError: an attribute is missing, surplus, or of another kind.
        """
        tensors = {n for n in self.kept if isinstance(getattr(self, n), dict)}
        if found.numbers.keys() != {*self.kept} - tensors or not found.tensors.keys() <= tensors:
            raise FormatError(f"the checkpoint's {found.kind} must have {', '.join(self.kept)}; seen {', '.join([*found.numbers, *found.tensors])}")
        for name, value in found.numbers.items():
            now = getattr(self, name)
            numbers = isinstance(value, (int, float)) and isinstance(now, (int, float)) and isinstance(value, bool) is isinstance(now, bool)
            if value is not None and now is not None and not numbers and type(value) is not type(now):
                raise FormatError(f"the checkpoint's {found.kind}.{name} must be as {now!r} is; seen {value!r}")
        for name, value in found.numbers.items():
            setattr(self, name, value)
        for name in tensors:
            setattr(self, name, {n: t.clone() for n, t in found.tensors.get(name, {}).items()})


class Watch(Callback):
    """The base of those that watch one figure of the epochs.

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
            raise ExecutionError(f"{type(self).__name__} cannot tell whether {metric!r} is better small or large: mode must be 'min' or 'max'; seen {mode!r}")
        self.best: float | None = None

    def _arguments(self) -> Mapping[str, Any]:
        return {"mode": None if self.mode == _mode_of(self.metric) else self.mode}

    def on_train_begin(self, run: Run) -> None:
        self.best = None
        if self.metric not in run.figures and not run.rows_grow:
            raise ExecutionError(self._missing(run.figures))

    def seen(self, run: Run) -> float:
        """The figure of the epoch of ``run`` that has ended."""
        row = run.history.epochs[-1]
        if self.metric not in row:
            raise ExecutionError(self._missing(list(row)))
        check_row(row)
        return row[self.metric]

    def _missing(self, figures: Sequence[str]) -> str:
        return (f"{type(self).__name__} watches {self.metric!r}; the history of this run has {', '.join(map(repr, figures))}; a callback that adds a "
                "figure names it in `adds`, or stands before this one and writes it into the row")  # fmt: skip

    def is_better(self, now: float, by: float = 0.0) -> bool:
        """Whether a figure, ``now``, is better than the best so far, by more than ``by``; NaN never is."""
        if now != now or self.best is None:
            return now == now
        return now < self.best - by if self.mode == "min" else now > self.best + by


def _mode_of(metric: str) -> str | None:
    words = metric.lower().replace("_", " ").split()
    if any(w in words for w in ("loss", "error", "perplexity", "mse", "mae", "rmse")):
        return "min"
    return "max" if any(w in words for w in ("accuracy", "auc", "precision", "recall", "f1")) else None
