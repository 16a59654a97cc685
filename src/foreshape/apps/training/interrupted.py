"""The words for a training ended by Ctrl-C: its position, and the files kept of it."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable
from types import TracebackType
from typing import Any

from foreshape.apps.training.callbacks import Callback
from foreshape.apps.training.checkpoint.checkpoint import Checkpoint
from foreshape.apps.training.checkpoint.state import State
from foreshape.core.pictures.figures import plural
from foreshape.errors import ForeshapeError

_ended: list[str] = []
"""The lines on the last ended training of this process, and on its files."""


def begun() -> None:
    """Forget the files of an earlier training."""
    _ended.clear()


def ended(state: State | None, checkpoint: Checkpoint | None, callbacks: Iterable[Callback]) -> None:
    """Note the files left by a training, for an interrupt later in the script."""
    files = [*_newest(checkpoint), *_files(callbacks)]
    steps = plural(state.history.steps if state is not None else 0, "step")
    _ended[:] = [f"the training had ended, after {steps}; " + (f"it wrote: {', '.join(files)}" if files else "it wrote no file")]


def after() -> list[str]:
    """Return a line on the training ended before; none without a training, or while it runs."""
    return list(_ended)


def tell(interrupt: KeyboardInterrupt, state: State | None, checkpoint: Checkpoint | None, callbacks: Iterable[Callback]) -> None:
    """Let a script that does not catch the interrupt end in two lines, in place of a traceback through the loop."""
    end_in(interrupt, f"{_place(state)}\n{_remedy(state, checkpoint, _files(callbacks))}")


def end_in(interrupt: KeyboardInterrupt, words: str) -> None:
    """Let a script that does not catch the interrupt end in these words."""
    interrupt.add_note(words)
    previous = sys.excepthook

    def hook(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        if error is interrupt:
            print(words, file=sys.stderr)
        else:
            previous(kind, error, trace)

    sys.excepthook = hook


def _place(state: State | None) -> str:
    if state is None or not state.history.steps:
        return "interrupted before the first step of the training"
    return f"interrupted after step {state.history.steps} (epoch {state.position.epoch}, batch {state.position.batch})"


def _remedy(state: State | None, checkpoint: Checkpoint | None, files: list[str]) -> str:
    newest = _newest(checkpoint)
    if newest:
        return f"kept: {newest[0]}; the same command goes on from there" + (f"; also {', '.join(files)}" if files else "")
    words = f"kept: {', '.join(files) if files else 'nothing on disk'}; "
    if checkpoint is None:
        return words + "give checkpoint= a folder to go on later"
    if checkpoint.every is None:
        when = "at the end of an epoch" if state is None else f"at the end of epoch {state.position.epoch}"
    else:
        when = f"after step {checkpoint.every}"
    return f"{words}no checkpoint has been written yet: the first in {checkpoint.path} comes {when}"


def _newest(checkpoint: Checkpoint | None) -> list[str]:
    """Return the newest checkpoint, if any. An unreadable folder has none: an interrupt is no time for another error."""
    try:
        return checkpoint.files()[:1] if checkpoint is not None else []
    except ForeshapeError:
        return []


def _files(callbacks: Iterable[Callback]) -> list[str]:
    """Return the files written by callbacks that exist."""
    written: list[Any] = [path for callback in callbacks for path in callback.files_written()]
    return [os.fsdecode(path) for path in dict.fromkeys(written) if os.path.exists(path)]
