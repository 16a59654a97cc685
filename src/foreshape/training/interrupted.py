"""What a person is told who ends a training by Ctrl-C: where it was, and which files are kept of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from foreshape.errors import ForeshapeError
from foreshape.pictures.figures import plural
from foreshape.training.callbacks import Callback
from foreshape.training.checkpoint import Checkpoint
from foreshape.training.state import State

_ended: list[str] = []
"""Of the last training of this process that has ended: that it has, and what it wrote."""


def begun() -> None:
    """What an earlier training wrote is no longer what matters."""
    _ended.clear()


def ended(state: State | None, checkpoint: Checkpoint | None, callbacks: Iterable[Callback]) -> None:
    """Note what a training has left, for an interrupt of what follows it in the script."""
    files = [*_newest(checkpoint), *_files(callbacks)]
    steps = plural(state.history.steps if state is not None else 0, "step")
    _ended[:] = [f"the training had ended, after {steps}; " + (f"it wrote: {', '.join(files)}" if files else "it wrote no file")]


def after() -> list[str]:
    """A line on the training that had ended before; none where there was no training, or it had not."""
    return list(_ended)


def tell(interrupt: KeyboardInterrupt, state: State | None, checkpoint: Checkpoint | None, callbacks: Iterable[Callback]) -> None:
    """Let a script that nobody stops the interrupt in end in two lines, in place of a traceback through the loop."""
    words = f"{_where(state)}\n{_kept(state, checkpoint, _files(callbacks))}"
    interrupt.add_note(words)
    before = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is interrupt:
            print(words, file=sys.stderr)
        else:
            before(kind, error, trace)

    sys.excepthook = hook


def _where(state: State | None) -> str:
    if state is None or not state.history.steps:
        return "interrupted before the first step of the training"
    return f"interrupted after step {state.history.steps} (epoch {state.position.epoch}, batch {state.position.batch})"


def _kept(state: State | None, checkpoint: Checkpoint | None, files: list[str]) -> str:
    newest = _newest(checkpoint)
    if newest:
        return f"kept: {newest[0]}; the same command goes on from there" + (f"; also {', '.join(files)}" if files else "")
    found = f"kept: {', '.join(files) if files else 'nothing on disk'}; "
    if checkpoint is None:
        return found + "give checkpoint= a folder to go on later"
    if checkpoint.every is None:
        when = "at the end of an epoch" if state is None else f"at the end of epoch {state.position.epoch}"
    else:
        when = f"after step {checkpoint.every}"
    return f"{found}no checkpoint has been written yet: the first in {checkpoint.path} comes {when}"


def _newest(checkpoint: Checkpoint | None) -> list[str]:
    """The newest checkpoint, if there is one. A folder that cannot be read has none: an interrupt is no time for another error."""
    try:
        return checkpoint.files()[:1] if checkpoint is not None else []
    except ForeshapeError:
        return []


def _files(callbacks: Iterable[Callback]) -> list[str]:
    """What callbacks have written that is there."""
    written: list[Any] = [path for callback in callbacks for path in callback.files_written()]
    return [os.fsdecode(path) for path in dict.fromkeys(written) if os.path.exists(path)]
