"""The answer of a rank to a job before it begins, the facts shared by all ranks, and rank 0's result at the end."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foreshape.apps.training import History
from foreshape.apps.training.checkpoint.resume_check import op_line
from foreshape.apps.training.program import persistables
from foreshape.core.checked_json import bounded_json
from foreshape.core.checked_json.readers import MOST_WORDS, count, document, listing, mapping, number, optional, real, text
from foreshape.errors import FormatError
from foreshape.language.program import Program

MOST_REPLY: Final = 1 << 18
"""The bytes of one rank's answer."""
MOST_RESULT: Final = 1 << 28
MOST_RANKS: Final = 100_000
_ALIKE: Final = {
    "foreshape": "the version of foreshape", "torch": "the version of torch", "ops": "the ops of the program", "values": "dims or element types of values",
    "feeds": "dims or element types of inputs", "collectives": "the order of the collectives", "data": "the data",
}  # fmt: skip
"""The facts that all ranks must share."""


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer of one rank."""

    rank: int
    host: str
    alike: dict[str, str] = field(repr=False)
    """The facts that all ranks must share, as versions and checksums."""
    examples: int = 0
    """The number of examples in its data."""
    share: int = 0
    """The most examples of a batch in its share."""
    peak: int | None = None
    """Its peak memory in bytes, as planned for its largest share; None if unknown."""
    left_out: str = ""
    """The parts left out of the plan, in words."""
    memory: int | None = None
    """The memory of its machine or container in bytes; None if the system does not tell."""
    error: str = ""
    """The obstacle to the job, in words; empty without one."""

    @property
    def fits(self) -> bool:
        """Tell whether its needs are met, as far as both are known."""
        return self.peak is None or self.memory is None or self.peak <= self.memory

    def to_bytes(self) -> bytes:
        """Return the answer as JSON."""
        return json.dumps(dataclasses.asdict(dataclasses.replace(self, error=self.error[:MOST_WORDS]))).encode()


reply_of = document(
    Reply, rank=count(0, MOST_RANKS), host=text(1000, 0), alike=mapping(text(200), 100), examples=count(), share=count(), peak=optional(count()),
    left_out=text(MOST_WORDS, 0), memory=optional(count()), error=text(MOST_WORDS, 0),
)  # fmt: skip
"""An answer, all of it looked at."""


def reply_from(data: bytes | bytearray) -> Reply:
    """Return the answer in bytes. Raises `FormatError` if there is none."""
    return reply_of("a reply", bounded_json.parse(bytes(data)))


def replies_from(data: bytes | bytearray) -> list[Reply]:
    """Return the answers of all ranks. Raises `FormatError` if they are none."""
    return listing(reply_of, MOST_RANKS)("replies", bounded_json.parse(bytes(data)))


def replies_to_bytes(replies: Iterable[Reply]) -> bytes:
    """Return the answers of all ranks."""
    return b"[" + b",".join(r.to_bytes() for r in replies) + b"]"


@dataclass(frozen=True, slots=True)
class JobResult:
    """The result of a job."""

    history: History
    files: list[str]
    """The files written by rank 0, besides checkpoints."""
    error: str = ""

    def to_bytes(self) -> bytes:
        """Return the result as JSON."""
        out = {"losses": self.history.losses, "epochs": self.history.epochs, "files": self.files, "error": self.error[:MOST_WORDS]}
        return json.dumps(out).encode()

    @staticmethod
    def from_bytes(data: bytes | bytearray) -> JobResult:
        """Return a result after all checks. Raises `FormatError` if it is none."""

        def build(losses: list[float], epochs: list[dict[str, float]], files: list[str], error: str) -> JobResult:
            return JobResult(History(losses, epochs), files, error)

        result = document(build, losses=listing(number, 2**40), epochs=listing(row, 2**24), files=listing(text()), error=text(MOST_WORDS, 0))
        return result("the result", bounded_json.parse(bytes(data)))


def row(subject: str, value: Any) -> dict[str, float]:
    """Return the figures of an epoch."""
    figures = mapping(number)(subject, value)
    if "seconds" not in figures:
        raise FormatError(f"{subject} lacks 'seconds'")
    real()("seconds", figures["seconds"])
    return figures


def alike_of(program: Program, feeds: Mapping[str, str], data: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a rank that all ranks must share.

    Args:
        program: the program to run.
        feeds: input -> its spec.
        data: facts of its data.
    """
    from foreshape.core.values.torch_proxy import torch
    from foreshape.core.version import VERSION

    ops = list(program.all_ops())
    return {
        "foreshape": VERSION,
        "torch": torch.__version__,
        "ops": digest(map(op_line, ops)),
        "values": digest(f"{v.name} {v.spec.text()}" for v in persistables(program)),
        "feeds": digest(f"{name} {spec}" for name, spec in sorted(feeds.items())),
        "collectives": digest(op_line(op) for op in ops if op.operator is not None and op.operator.collective),
        "data": digest(f"{name} {fact}" for name, fact in sorted(data.items())),
    }


def described(program: Program) -> str:
    """Return a checksum of all facts of a program: its ops, and the specs of its variables."""
    return digest([*map(op_line, program.all_ops()), *(f"{v.name} {v.spec.text()}" for v in program.all_variables())])


def digest(lines: Iterable[str]) -> str:
    """Return the SHA-256 of lines."""
    out = hashlib.sha256()
    for line in lines:
        data = line.encode(errors="surrogatepass")
        out.update(f"{len(data)} ".encode() + data)
    return out.hexdigest()


def differences(replies: Sequence[Reply]) -> str:
    """Return the differences between ranks in words; empty without any."""
    answered = [r for r in replies if not r.error]
    words: list[str] = []
    for key, subject in _ALIKE.items():
        groups: dict[str, list[int]] = {}
        for reply in answered:
            groups.setdefault(reply.alike.get(key, ""), []).append(reply.rank)
        if len(groups) > 1:
            plain = key in ("foreshape", "torch")
            words.append(f"{subject} differs: " + " | ".join(f"rank {numbers(ranks)}{f' has {value}' if plain else ''}" for value, ranks in groups.items()))
    return "; ".join(words)


def numbers(ranks: Sequence[int]) -> str:
    """Return ``0, 1, 2 and 40 more``."""
    return ", ".join(map(str, ranks[:8])) + (f" and {len(ranks) - 8} more" if len(ranks) > 8 else "")
