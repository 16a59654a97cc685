"""How large a file may be before it is refused; a caller can raise each."""

from __future__ import annotations

from dataclasses import dataclass

from foreshape.errors import FormatError


@dataclass(slots=True)
class Limits:
    """Bounds on what a file may hold."""

    bytes: int = 2**31 - 1
    """The size of the file."""
    memory: int = 160 * 2**20
    """The bytes of memory that its description may take, by estimate, beyond `memory_per_byte` times the file's size."""
    memory_per_byte: int = 2
    blocks: int = 10_000
    depth: int = 64
    """How deeply sub-blocks may be nested."""
    name: int = 2**20
    """The length of a name, in bytes."""


DEFAULT_LIMITS = Limits()


class Budget:
    """Counts the memory that a description takes while it is read."""

    __slots__ = ("left", "limits")

    def __init__(self, limits: Limits, size: int) -> None:
        if size > limits.bytes:
            raise FormatError(f"the file has {size} bytes; the limit is {limits.bytes} (Limits.bytes)")
        self.limits = limits
        self.left = limits.memory + limits.memory_per_byte * size

    def take(self, amount: int, where: str) -> None:
        self.left -= amount
        if self.left < 0:
            raise FormatError(f"{where}: what the file describes takes more memory than the limit of {self.limits.memory} bytes (Limits.memory)")
