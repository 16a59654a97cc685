"""A step that was measured: when each message was started, waited for and through on each rank. Runs write it, drawings show it."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any, Final, cast

from foreshape.errors import FormatError
from foreshape.wire import bounded_json, read_file, replacing
from foreshape.wire.other_formats import JSON, instead_of

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
        """From when to when the rank waited."""
        return [(m.waited, m.came) for m in self.messages]

    @property
    def exposed(self) -> float:
        """Seconds in which the rank waited for messages."""
        return math.fsum(end - begin for begin, end in self.waits)

    @property
    def communicating(self) -> float:
        """Seconds from the first to the last moment of messages that were under way."""
        return math.fsum(end - begin for begin, end in joined((m.started, m.done) for m in self.messages))


@dataclass(frozen=True, slots=True)
class Measured:
    """A step of all ranks: that of a run which took the median time, of ``steps``."""

    step: int
    steps: int
    ranks: tuple[MeasuredStep, ...]

    @property
    def seconds(self) -> float:
        """Until the last rank was done."""
        return max(r.seconds for r in self.ranks)

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file. Raises `FormatError` where it cannot be written."""
        facts = {"format": FORMAT, "step": self.step, "steps": self.steps, "ranks": [asdict(r) for r in self.ranks]}
        with replacing(path) as file:
            file.write(json.dumps(facts, allow_nan=False).encode())

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Measured:
        """Read a file. Raises `FormatError` where there is none, or it is no measured step."""
        data = read_file(path, _MOST_BYTES)
        try:
            return measured_of(bounded_json.parse(data))
        except FormatError as error:
            raise FormatError(f"{os.fspath(path)}: no measured step: {instead_of(data, JSON) or error}"[:400]) from None


def measured_of(found: Any) -> Measured:
    """From what a file says. Raises `FormatError` for anything that `save` would not write."""
    top = _fields(found, "a measured step", ("format", "step", "steps", "ranks"))
    if top["format"] != FORMAT:
        raise FormatError(f"a measured step of format {str(top['format'])[:40]!r}; this version reads {FORMAT!r}")
    ranks = _list(top["ranks"], "ranks", _MOST_RANKS)
    if not ranks:
        raise FormatError("a measured step of no rank")
    return Measured(_whole(top["step"], "step"), _whole(top["steps"], "steps"), tuple(step_of(one) for one in ranks))


def step_of(found: Any) -> MeasuredStep:
    """The step of one rank, from JSON. Raises `FormatError` for anything else."""
    one = _fields(found, "the step of a rank", ("seconds", "messages"))
    messages = tuple(_message(m) for m in _list(one["messages"], "messages", _MOST_MESSAGES))
    return MeasuredStep(_seconds(one["seconds"], "seconds"), messages)


def joined(spans: Iterable[tuple[float, float]]) -> list[tuple[float, float]]:
    """Spans of time, those that overlap as one."""
    out: list[tuple[float, float]] = []
    for begin, end in sorted(spans):
        if out and begin <= out[-1][1]:
            out[-1] = (out[-1][0], max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def _message(found: Any) -> MeasuredMessage:
    one = _fields(found, "a message", ("type", "ring", "bytes", "started", "waited", "done", "came"))
    if not isinstance(one["type"], str) or not 1 <= len(one["type"]) <= 200:
        raise FormatError("the type of a message is a word")
    started, waited, done, came = (_seconds(one[n], n) for n in ("started", "waited", "done", "came"))
    if not (started <= waited <= came and started <= done <= came):
        seen = f"{started}, {waited}, {done}, {came}"
        raise FormatError(f"a message of {one['type'][:40]} is started, waited for and through before the rank goes on; seen {seen}")
    return MeasuredMessage(one["type"], _whole(one["ring"], "ring"), _whole(one["bytes"], "bytes"), started, waited, done, came)


def _fields(found: Any, what: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(found, dict) or set(cast("dict[str, Any]", found)) != set(names):
        raise FormatError(f"{what} has {', '.join(names)}")
    return cast("dict[str, Any]", found)


def _list(found: Any, what: str, most: int) -> list[Any]:
    if not isinstance(found, list) or len(cast("list[Any]", found)) > most:
        raise FormatError(f"{what} are a list of at most {most}")
    return cast("list[Any]", found)


def _whole(found: Any, what: str) -> int:
    if type(found) is not int or not 0 <= found <= 2**53:
        raise FormatError(f"{what} must be a whole number; seen {str(found)[:40]}")
    return found


def _seconds(found: Any, what: str) -> float:
    if type(found) not in (int, float) or not 0 <= found < 1e9:
        raise FormatError(f"{what} must be seconds; seen {str(found)[:40]}")
    return float(found)
