"""Progress of a run: a bar on a terminal, a line per epoch elsewhere, or nothing."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable, Iterator
from types import TracebackType
from typing import Any, TypeVar

from foreshape.apps.training.history import LEFT_OUT, RATE, number

T = TypeVar("T")
REFRESH_SECONDS = 0.1


class Quiet:
    """Progress that shows nothing; the base of the others."""

    def __enter__(self) -> Quiet:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        return None

    def begin(self, epoch: int, epochs: int, batches: int | None, done: int) -> None:
        """Begin an epoch, or continue it after ``done`` batches."""

    def step(self, done: int, loss: float, examples: int) -> None:
        """Count a batch as done."""

    def end(self, epoch: int, epochs: int, row: dict[str, float]) -> None:
        """End an epoch."""

    def say(self, text: str) -> None:
        """Report a fact of interest to the user."""

    def warn(self, text: str) -> None:
        """Report a fact that the user must know."""
        print(text, file=sys.stderr)


class Lines(Quiet):
    """A line per epoch."""

    def __init__(self, console: Any) -> None:
        self.console = console

    def end(self, epoch: int, epochs: int, row: dict[str, float]) -> None:
        self.say(f"epoch {epoch}/{epochs}  {figures(row)}")

    def say(self, text: str) -> None:
        self.console.print(text, markup=False, highlight=False, soft_wrap=True)

    def warn(self, text: str) -> None:
        self.say(text)


class Bar(Lines):
    """A bar per epoch, with the loss and the speed; a finished epoch leaves its line."""

    def __init__(self, console: Any) -> None:
        from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

        super().__init__(console)
        self.bar = Progress(
            TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[figures]}"), TimeRemainingColumn(),
            console=console, transient=True, auto_refresh=False,
        )  # fmt: skip
        self.task: Any = None
        self.shown = self.started = 0.0
        self.examples = 0

    def __enter__(self) -> Bar:
        self.bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None) -> None:
        self.bar.stop()

    def begin(self, epoch: int, epochs: int, batches: int | None, done: int) -> None:
        if self.task is not None:
            self.bar.remove_task(self.task)
        self.task = self.bar.add_task(f"epoch {epoch}/{epochs}", total=batches, completed=done, figures="")
        self.started, self.examples = time.perf_counter(), 0

    def step(self, done: int, loss: float, examples: int) -> None:
        self.examples += examples
        moment = time.perf_counter()
        if moment - self.shown < REFRESH_SECONDS:
            return
        self.shown = moment
        speed = self.examples / max(moment - self.started, 1e-9)
        self.bar.update(self.task, completed=done, figures=f"loss {number(loss)}  {speed:,.0f} examples/s", refresh=True)


def figures(row: dict[str, float]) -> str:
    """Return a row of the history in words."""
    names = [n for n in row if n not in ("seconds", RATE) and (n != LEFT_OUT or row[n])]
    return "  ".join(f"{name} {number(row[name])}" for name in names) + f"  {row['seconds']:.1f} s"


def shown(progress: bool | Quiet | None, console: Any) -> Quiet:
    """Return the progress display: as asked for, or by whether the console is a terminal."""
    if isinstance(progress, Quiet):
        return progress
    if progress is False:
        return Quiet()
    from rich.console import Console

    console = console if console is not None else Console()
    return Bar(console) if progress or console.is_terminal else Lines(console)


_A_MOMENT = 1.0


def counted(batches: Iterable[T], total: int | None, label: str, progress: bool | None, console: Any) -> Iterable[T]:
    """Return batches as they come, with a bar: at once if asked for, by default after a moment on a terminal."""
    if progress is False or (progress is None and console is None and not (sys.stderr.isatty() or "FORCE_COLOR" in os.environ)):
        return batches
    return _with_bar(batches, total, label, progress, console)


def _with_bar(batches: Iterable[T], total: int | None, label: str, progress: bool | None, console: Any) -> Iterator[T]:
    iterator = iter(batches)
    began, done = time.perf_counter(), 0
    while not progress and time.perf_counter() - began < _A_MOMENT:
        batch = next(iterator, _NONE)
        if batch is _NONE:
            return
        yield batch  # pyright: ignore[reportReturnType]
        done += 1
    from rich.console import Console

    console = console if console is not None else Console(stderr=True)
    if not progress and not console.is_terminal:
        yield from iterator
        return
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn()
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(label, total=total, completed=done)
        for batch in iterator:
            yield batch
            bar.advance(task)


_NONE: Any = object()
