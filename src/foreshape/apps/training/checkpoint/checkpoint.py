"""Checkpoints: the whole state of a run, to continue exactly, in one file each."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Mapping
from typing import Any

from foreshape.apps.training.checkpoint import container, divided
from foreshape.apps.training.checkpoint.random_state import EPOCH, NOW, to_tensors
from foreshape.apps.training.checkpoint.resume_check import Facts
from foreshape.apps.training.checkpoint.schema import OTHERS, Contents, callback_tensors, contents, sum_tensors, to_facts, value_tensors
from foreshape.apps.training.checkpoint.state import State
from foreshape.apps.training.program import persistables
from foreshape.core.constructor_repr import ConstructorRepr
from foreshape.core.folders import require_writable
from foreshape.core.hints import tells_arguments
from foreshape.core.values.conversion import to_numpy
from foreshape.core.values.torch_types import dtype_of_torch
from foreshape.errors import ExecutionError, FormatError
from foreshape.interop.parameters import Pieces
from foreshape.language.program import Program
from foreshape.runtime.engine import Executor, Scope

_PIECE = 1 << 22
"""The elements written at once."""
_NAME = re.compile(r"step-([0-9]{9,18})\.safetensors")


class Checkpoint(ConstructorRepr):
    """The folder and the intervals of a run's checkpoints.

    Args:
        path: a folder for this run alone; it is made if missing. Each checkpoint is one file in it.
        every: write one after so many steps; by default at the end of each epoch. The end of the run always gets one.
        keep: the number of newest checkpoints that stay. Only complete ones count.

    A run that finds checkpoints in the folder continues from the newest complete one.
    """

    @tells_arguments
    def __init__(self, path: Any, every: int | None = None, keep: int = 2) -> None:
        if every is not None and every < 1:
            raise ExecutionError.must("every", "at least 1 step", every)
        if keep < 1:
            raise ExecutionError.must("keep", "at least 1", keep)
        try:
            self.path: str = os.fsdecode(path)
        except TypeError as error:
            raise FormatError(f"{path!r} is no path of a folder: {error}") from None
        self.every, self.keep = every, keep
        self._whole: dict[str, tuple[int, ...]] = {}
        """The files whose bytes this process has written or compared, as they were then."""

    def files(self) -> list[str]:
        """Return the checkpoints in the folder, newest first, including incomplete ones."""
        try:
            names: list[str] = os.listdir(self.path)
        except FileNotFoundError:
            return []
        except (OSError, ValueError) as error:
            raise FormatError(f"{self.path!r} cannot be read: {getattr(error, 'strerror', None) or error}") from None
        numbered = sorted(((int(m[1]), n) for n in names if (m := _NAME.fullmatch(n))), reverse=True)
        return [os.path.join(self.path, n) for _, n in numbered]

    def place(self, steps: int) -> str:
        """Return the path of the checkpoint after so many steps, in a folder made if missing.

        Raises:
            FormatError: the folder cannot be made or written to.
        """
        path = os.path.join(self.path, f"step-{steps:09d}.safetensors")
        require_writable(path)
        return path

    def written(self, path: str) -> None:
        """Take note of the file ``path``, written by a rank beside the checkpoint. The index comes after the files of all."""

    def save(self, program: Program, scope: Scope, state: State, facts: Facts, parts: Any = None) -> str:
        """Write one checkpoint, then remove the old ones. Returns its path.

        Args:
            program: the program that runs: its persistable values are written.
            scope: their scope.
            state: the progress of the run: history, random generators, callbacks.
            facts: the facts that a resumed run must share.
            parts: the division of values written by ranks already (`foreshape.apps.training.checkpoint.divided.described`).

        Raises:
            FormatError: it cannot be written; the present checkpoints stay as they were.
        """
        import torch

        path = self.place(state.history.steps)
        values = {v.name: scope.tensor(v.name) for v in persistables(program) if v.name in scope}
        tensors = {
            **value_tensors(values),
            **to_tensors(NOW, state.random),
            **to_tensors(EPOCH, state.epoch_random),
            "losses": torch.tensor(state.history.losses, dtype=torch.float64),
            **({} if state.others is None else {OTHERS: state.others}),
            **callback_tensors(state),
            **sum_tensors(state),
        }
        container.write(path, tensors, to_facts(facts, state, parts))
        self._note_whole(path)
        self._drop_old(path)
        return path

    def newest(self, program: Program, executor: Executor, warn: Callable[[str], None]) -> tuple[str, Contents] | None:
        """Return the newest complete checkpoint with its path; None if there is none at all. Incomplete ones are reported. Nothing is changed.

        Args:
            program: the program to run.
            executor: element types and devices are checked for it.
            warn: is called with a line for each incomplete checkpoint.

        Raises:
            FormatError: there are checkpoints, and all are incomplete.
        """
        self._drop_unfinished()
        broken: list[str] = []
        for path in self.files():
            try:
                tensors, facts = container.read(path)
                try:
                    checkpoint = contents(tensors, facts, program, path)
                    _try_state(executor, checkpoint.state.random.executor)
                    _try_state(executor, checkpoint.state.epoch_random.executor)
                except (FormatError, ExecutionError) as error:
                    raise FormatError(f"{path}: {error}") from None
            except FormatError as error:
                broken.append(str(error))
                warn(f"skipped, and going back to the checkpoint before: {error}")
                continue
            self._note_whole(path)
            return path, checkpoint
        if broken:
            raise FormatError("no checkpoint is whole; remove them to begin anew:\n    " + "\n    ".join(broken))
        return None

    def values(self) -> SavedValues:
        """Return the values of the newest complete checkpoint, left in its files: for `save_inference_model`'s ``scope``.

        Raises:
            FormatError: there is no complete one.
        """
        broken: list[str] = []
        for path in self.files():
            try:
                tensors, facts = container.read(path)
                checkpoint = contents(tensors, facts, Program(), path)
            except FormatError as error:
                broken.append(str(error))
                continue
            return SavedValues(checkpoint.values, checkpoint.divided if checkpoint.divided is not None else divided.NOTHING)
        raise FormatError(f"{self.path!r} has no checkpoint that is whole{''.join(chr(10) + '    ' + b for b in broken)}")

    # --- old files

    def _drop_old(self, written: str) -> None:
        """Remove the files older than the one just written, except as many complete ones as are kept beside it.

        Newer ones are incomplete, or the run would have begun there; they are left for inspection.
        """
        files = self.files()
        older = files[files.index(written) + 1 :] if written in files else []
        count = 1
        for path in older:
            if count < self.keep:
                count += self._is_whole(path)
                continue
            with contextlib.suppress(OSError):  # an old file left behind does no harm
                os.unlink(path)
                self._whole.pop(path, None)
                divided.drop(path)

    def _is_whole(self, path: str) -> bool:
        """Tell whether a file is complete, byte for byte; it is read again only if changed since this process has seen it."""
        identity = self._whole.get(path)
        if identity is not None and identity == _identity(path):
            return True
        try:
            container.read(path)
        except FormatError:
            return False
        self._note_whole(path)
        return True

    def _note_whole(self, path: str) -> None:
        identity = _identity(path)
        if identity is not None:
            self._whole[path] = identity

    def _drop_unfinished(self) -> None:
        """Remove the unfinished file of a killed run."""
        with contextlib.suppress(OSError, ValueError):  # an invalid path is refused when it is used
            for name in os.listdir(self.path):
                if name.startswith(".writing-"):
                    os.unlink(os.path.join(self.path, name))


class SavedValues:
    """The values of a checkpoint mapped into memory from its files, including the parts of all ranks."""

    def __init__(self, values: Mapping[str, Any], parts: divided.ShardedCheckpoint) -> None:
        self._whole, self._parts = dict(values), parts

    def names(self) -> list[str]:
        """Return the names of all values, sorted."""
        return sorted({*self._whole, *self._parts.names})

    def __contains__(self, name: object) -> bool:
        return name in self._whole or name in self._parts.names

    def pieces(self, name: str) -> Pieces:
        """Return a value in pieces. Raises `ExecutionError` for an unknown name."""
        if name in self._parts.names:
            return Pieces(*self._parts.described(name), (to_numpy(rows) for _, rows in self._parts.blocks(name)))
        if name not in self._whole:
            raise ExecutionError(f"there is no value for {name!r} in the checkpoint; it has {len(self.names())} values")
        tensor = self._whole[name]
        return Pieces(dtype_of_torch(tensor.dtype), tuple(tensor.shape), (to_numpy(some) for some in tensor.reshape(-1).split(_PIECE)))


def _identity(path: str) -> tuple[int, ...] | None:
    """Return an identity that changes when a file is written to or replaced."""
    try:
        status = os.stat(path)
    except OSError:
        return None
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns


def _try_state(executor: Executor, state: Any) -> None:
    """Refuse a state not accepted by the executor's generator; the generator is left as it was."""
    previous = executor.random_state()
    executor.set_random_state(state)
    executor.set_random_state(previous)


def as_checkpoint(checkpoint: Any) -> Checkpoint | None:
    """Return the `Checkpoint` of `train`'s argument: a folder, a `Checkpoint`, or None."""
    return checkpoint if checkpoint is None or isinstance(checkpoint, Checkpoint) else Checkpoint(checkpoint)
