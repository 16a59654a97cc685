"""Checkpoints: everything that a run needs to go on exactly where it was, in one file each."""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from foreshape.engine import Executor, Scope
from foreshape.errors import ExecutionError, FormatError
from foreshape.program import Op, Program
from foreshape.training import container
from foreshape.training.history import History
from foreshape.training.program import persistables
from foreshape.training.random_state import RandomState, from_tensors, to_tensors

_FORMAT = "foreshape checkpoint 1"
_NAME = re.compile(r"step-(\d{9,})\.safetensors")


@dataclass(slots=True)
class Position:
    """Where in the data a run is: ``batch`` batches of epoch ``epoch`` (from 1) are done."""

    epoch: int = 1
    batch: int = 0


@dataclass(slots=True)
class State:
    """All that a run is besides the values in its scope."""

    position: Position
    history: History
    sums: dict[str, float]
    """The sums of the current epoch, from which its means are made."""
    random: RandomState
    epoch_random: RandomState
    """Where the random generators were when the epoch began: data that draw from them are drawn again from there."""


class Checkpoint:
    """Where and when a run writes its checkpoints.

    Args:
        path: a folder for this run alone; it is made where there is none. Each checkpoint is one file in it.
        every: write one after so many steps; at each epoch's end where it is left out. The end of the run always gets one.
        keep: how many of the newest checkpoints stay.

    A run that finds checkpoints in the folder goes on from the newest that is whole.
    """

    def __init__(self, path: Any, every: int | None = None, keep: int = 2) -> None:
        if every is not None and every < 1:
            raise ExecutionError(f"every must be at least 1 step; seen {every}")
        if keep < 1:
            raise ExecutionError(f"keep must be at least 1; seen {keep}")
        self.path: str = os.fspath(path)
        self.every, self.keep = every, keep

    def files(self) -> list[str]:
        """The checkpoints that there are, newest first."""
        try:
            names: list[str] = os.listdir(self.path)
        except FileNotFoundError:
            return []
        except OSError as error:
            raise FormatError(f"{self.path!r} cannot be read: {error.strerror}") from None
        found = sorted(((int(m[1]), n) for n in names if (m := _NAME.fullmatch(n))), reverse=True)
        return [os.path.join(self.path, n) for _, n in found]

    def save(self, program: Program, scope: Scope, state: State, data: dict[str, Any]) -> str:
        """Write one checkpoint, then drop those that are too old. Returns its path.

        Raises:
            FormatError: it cannot be written; the checkpoints that there are stay as they were.
        """
        import torch

        try:
            os.makedirs(self.path, exist_ok=True)
        except OSError as error:
            raise FormatError(f"{self.path!r} cannot be made: {error.strerror}") from None
        values = {f"value/{v.name}": scope.tensor(v.name) for v in persistables(program) if v.name in scope}
        tensors = {
            **values,
            **to_tensors("random/", state.random),
            **to_tensors("epoch_random/", state.epoch_random),
            "losses": torch.tensor(state.history.losses, dtype=torch.float64),
        }
        facts = {
            "format": _FORMAT,
            "program": described(program),
            "data": data,
            "position": [state.position.epoch, state.position.batch],
            "epochs": state.history.epochs,
            "sums": state.sums,
        }
        path = os.path.join(self.path, f"step-{state.history.steps:09d}.safetensors")
        container.write(path, tensors, facts)
        for old in self.files()[self.keep :]:
            with contextlib.suppress(OSError):  # an old file that stays does no harm
                os.unlink(old)
        return path

    def restore(self, program: Program, executor: Executor, scope: Scope, data: dict[str, Any], warn: Callable[[str], None]) -> State | None:
        """Bring back the newest checkpoint that is whole, and say which were not; None where there is none at all.

        Everything is read and compared before anything is changed.

        Raises:
            ExecutionError: it is of another program, or of other data; the differences are named. FormatError: there are
            checkpoints, and none is whole.
        """
        self._drop_unfinished()
        broken: list[str] = []
        for path in self.files():
            try:
                tensors, facts = container.read(path)
                if facts.get("format") != _FORMAT:
                    raise FormatError(f"{path}: not a checkpoint of a kind that is known here: {facts.get('format')!r}")
            except FormatError as error:
                broken.append(str(error))
                warn(f"skipped, and going back to the checkpoint before: {error}")
                continue
            differences = _differences(facts, described(program), data)
            if differences:
                shown = "".join(f"\n    {d}" for d in differences[:10]) + (f"\n    and {len(differences) - 10} more" if len(differences) > 10 else "")
                raise ExecutionError(f"{path} is a checkpoint of another run:{shown}")
            state = State(
                Position(*facts["position"]), History([float(x) for x in tensors["losses"].numpy()], facts["epochs"]), facts["sums"],
                from_tensors("random/", tensors), from_tensors("epoch_random/", tensors),
            )  # fmt: skip
            executor.set_random_state(state.random.executor)
            for name, tensor in tensors.items():
                if name.startswith("value/"):
                    scope.set(name.removeprefix("value/"), tensor if executor.device == "cpu" else tensor.to(executor.device))
            return state
        if broken:
            raise FormatError("no checkpoint is whole; remove them to begin anew:\n    " + "\n    ".join(broken))
        return None

    def _drop_unfinished(self) -> None:
        """Remove what a killed run was writing."""
        with contextlib.suppress(OSError):
            for name in os.listdir(self.path):
                if name.startswith(".writing-"):
                    os.unlink(os.path.join(self.path, name))


def described(program: Program) -> dict[str, Any]:
    """What makes a program the same one to a checkpoint: its values by name, and its ops, without the lines that made them."""
    return {"values": {v.name: v.spec.text() for v in persistables(program)}, "ops": [_op_line(op) for block in program.blocks for op in block.ops]}


def _op_line(op: Op) -> str:
    ins = ", ".join(f"{slot}={' '.join(names)}" for slot, names in op.inputs.items() if names)
    outs = ", ".join(n for names in op.outputs.values() for n in names)
    attrs = ", ".join(f"{name}={value!r}" for name, value in sorted(op.attributes.values.items()) if name != "op_callstack")
    return f"{outs} = {op.type}({ins}) {{{attrs}}}"


def _differences(facts: dict[str, Any], program: dict[str, Any], data: dict[str, Any]) -> list[str]:
    """In words, what a checkpoint has and the run has not, and the other way round."""
    out: list[str] = []
    saved: dict[str, str] = facts["program"]["values"]
    now: dict[str, str] = program["values"]
    for name in sorted(saved.keys() | now.keys()):
        if name not in now:
            out.append(f"{name} ({saved[name]}) is in the checkpoint, and the program has no such value")
        elif name not in saved:
            out.append(f"{name} ({now[name]}) is in the program, and the checkpoint has no such value")
        elif saved[name] != now[name]:
            out.append(f"{name} is {saved[name]} in the checkpoint, and {now[name]} in the program")
    before, after = facts["program"]["ops"], program["ops"]
    if before != after and not out:
        at = next((i for i, (a, b) in enumerate(zip(before, after, strict=False)) if a != b), min(len(before), len(after)))
        a, b = (ops[at] if at < len(ops) else "no op" for ops in (before, after))
        out.append(f"op {at} is in the checkpoint\n        {a}\n      and in the program\n        {b}")
    for name in sorted(facts["data"].keys() | data.keys()):
        a, b = facts["data"].get(name), data.get(name)
        if a != b:
            out.append(f"{name} of the data was {a}, and is {b}")
    return out


def as_checkpoint(given: Any) -> Checkpoint | None:
    """What `train` was given as a checkpoint: a folder, a `Checkpoint`, or None."""
    return given if given is None or isinstance(given, Checkpoint) else Checkpoint(given)
