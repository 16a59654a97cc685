"""A measured step: the start, the waiting and the end of each message on each rank. Runs write it, drawings show it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final

from foreshape.core.checked_json import bounded_json
from foreshape.core.checked_json.readers import count, document, of_format, real, record, text, tupled
from foreshape.errors import FormatError
from foreshape.language.wire import read_file, replacing
from foreshape.language.wire.other_formats import JSON, instead_of

FORMAT: Final = "foreshape timeline 1"
_MOST_BYTES: Final = 1 << 25
"""Some 180,000 messages; JSON takes some ten times its bytes while it is read."""
_MOST_RANKS: Final = 1 << 20
_MOST_MESSAGES: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class MeasuredMessage:
    """One message of a rank, in seconds from the beginning of the rank's step.

    ``started``: the rank gave it. ``waited``: from here on it waited. ``done``: it was through. ``came``: the rank went on.
    """

    type: str
    ring: int
    bytes: int
    started: float
    waited: float
    done: float
    came: float


@dataclass(frozen=True, slots=True)
class MeasuredStep:
    """The step of one rank."""

    seconds: float
    messages: tuple[MeasuredMessage, ...]

    @property
    def waits(self) -> list[tuple[float, float]]:
        """Return the spans of time in which the rank waited."""
        return [(m.waited, m.came) for m in self.messages]

    @property
    def exposed(self) -> float:
        """Return the rank's seconds of waiting for messages."""
        return math.fsum(end - begin for begin, end in self.waits)

    @property
    def communicating(self) -> float:
        """Return the seconds with a message under way."""
        return math.fsum(end - begin for begin, end in joined((m.started, m.done) for m in self.messages))


@dataclass(frozen=True, slots=True)
class Measured:
    """A step of all ranks: the one with the median time, of ``steps``."""

    step: int
    steps: int
    ranks: tuple[MeasuredStep, ...]

    @property
    def seconds(self) -> float:
        """Return the seconds until the last rank was done."""
        return max(r.seconds for r in self.ranks)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file. Raise `FormatError` if it cannot be written."""
        facts = {"format": FORMAT, "step": self.step, "steps": self.steps, "ranks": [asdict(r) for r in self.ranks]}
        with replacing(path) as file:
            file.write(json.dumps(facts, allow_nan=False).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measured:
        """Read a file. Raise `FormatError` if there is none, or it is no measured step."""
        data = read_file(path, _MOST_BYTES)
        try:
            return measured_of(bounded_json.parse(data))
        except FormatError as error:
            raise FormatError(f"{os.fspath(path)}: no measured step: {instead_of(data, JSON) or error}"[:400]) from None


def _message(**fields: Any) -> MeasuredMessage:
    m = MeasuredMessage(**fields)
    if not (m.started <= m.waited <= m.came and m.started <= m.done <= m.came):
        order = f"{m.started}, {m.waited}, {m.done}, {m.came}"
        raise FormatError(f"a message of {m.type[:40]} is started, waited for and through before the rank goes on; seen {order}")
    return m


_SECONDS = real(below=1e9)
_MESSAGE = record(_message, type=text(200), ring=count(), bytes=count(), started=_SECONDS, waited=_SECONDS, done=_SECONDS, came=_SECONDS)
_STEP = record(MeasuredStep, seconds=_SECONDS, messages=tupled(_MESSAGE, _MOST_MESSAGES))
_MEASURED = document(Measured, step=count(), steps=count(), ranks=tupled(_STEP, _MOST_RANKS, 1))


def measured_of(document: Any) -> Measured:
    """Return the measured step in a file. Raise `FormatError` for anything that `save` would not write."""
    return _MEASURED("a measured step", of_format(document, FORMAT, "a measured step"))


def step_of(document: Any) -> MeasuredStep:
    """Return the step of one rank, from JSON. Raise `FormatError` for anything else."""
    return _STEP("the step of a rank", document)


def joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Return spans of time, with overlapping ones joined."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out
