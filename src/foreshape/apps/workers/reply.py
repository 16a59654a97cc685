"""The answer of a rank to a job before it begins: its needs, and the facts shared by all ranks."""

from __future__ import annotations

import hashlib
import socket
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from foreshape.apps.training.checkpoint.resume_check import op_line
from foreshape.apps.training.program import persistables
from foreshape.compiler.memory import byte_text
from foreshape.language.program import Program
from foreshape.language.text.literal import escape

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


def alike_of(program: Program, feeds: Mapping[str, str], data: Mapping[str, Any]) -> dict[str, str]:
    """Return the facts of a rank to be shared by all ranks.

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


def refusal(rank: int, error: BaseException) -> Reply:
    """Return the answer of a rank unable to do a job."""
    return Reply(rank, socket.gethostname(), {}, error=f"{type(error).__name__}: {error}")


def obstacles(replies: Sequence[Reply]) -> str:
    """Return the obstacles to a job, each with its ranks; empty without any."""
    reasons: dict[str, list[int]] = {}
    for reply in replies:
        if reply.error:
            reasons.setdefault(reply.error, []).append(reply.rank)
    words = [f"rank {numbers(ranks)}: {reason}" for reason, ranks in reasons.items()]
    if apart := differences(replies):
        words.append(f"the ranks do not have the same: {apart}")
    return "; ".join(words)


def too_much(replies: Sequence[Reply]) -> str:
    """Return the machines whose ranks need more memory than there is, in words; empty without any."""
    words: list[str] = []
    for host in dict.fromkeys(r.host for r in replies):
        replies_of_host = [r for r in replies if r.host == host]
        memory = min((r.memory for r in replies_of_host if r.memory is not None), default=None)
        needed = sum(r.peak or 0 for r in replies_of_host)
        if memory is not None and needed > memory:
            words.append(f"rank {numbers([r.rank for r in replies_of_host])} on {host}: {byte_text(needed)} are needed, and {byte_text(memory)} are there")
    return "; ".join(words)


def table(replies: Sequence[Reply]) -> Any:
    """Return the answers of ranks, to be printed."""
    from rich import box
    from rich.table import Table
    from rich.text import Text

    out = Table(title=Text("what each rank needs", style="bold"), title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    for name in ("rank", "machine", "examples", "largest share", "peak", "memory there"):
        out.add_column(name, overflow="fold")
    for r in replies:
        peak, memory = ("not known" if size is None else byte_text(size) for size in (r.peak, r.memory))
        out.add_row(*(Text(escape(cell)) for cell in (str(r.rank), r.host, f"{r.examples:,}", f"{r.share:,}", peak + r.left_out, memory)))
    return out
