"""The largest file accepted, in several measures; a caller can raise each."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Generic, TypeVar

from foreshape.errors import FormatError

# The memory of a description's parts, in bytes, as measured on CPython with 64-bit pointers.
OP_COST: Final = 420
VARIABLE_COST: Final = 560
BLOCK_COST: Final = 600
SLOT_COST: Final = 200
NAME_COST: Final = 72
"""The cost of a name of Latin letters, beside its length; other letters take up to four bytes a character."""
FORM_COST: Final = 64
"""The cost of each byte in a variable's description, read by protobuf."""
FIELD_COST: Final = 64
"""The cost in time of a field read and dropped."""
TAIL_COST: Final = 1200
ATTRIBUTE_COST: Final = 400
ELEMENT_COST: Final = 48
LARGE: Final = 65536
"""A message of more bytes is scanned before protobuf makes a tree of it."""

_Kept = TypeVar("_Kept")


@dataclass(slots=True)
class Limits:
    """Bounds on the contents of a file."""

    bytes: int = 2**31 - 1
    """The size of the file."""
    memory: int = 160 * 2**20
    """The bytes of memory for its description, by estimate, beyond `memory_per_byte` times the file's size."""
    memory_per_byte: int = 2
    """The bytes of memory allowed for each byte of the file."""
    blocks: int = 10_000
    """The largest number of blocks in a program."""
    depth: int = 64
    """The largest depth of nested sub-blocks."""
    name: int = 2**20
    """The length of a name of a variable, in bytes."""


DEFAULT_LIMITS = Limits()


class Budget:
    """A count of the memory taken by a description as it is read."""

    __slots__ = ("left", "limits")

    def __init__(self, limits: Limits, size: int) -> None:
        if size > limits.bytes:
            raise FormatError(f"the file has {size} bytes; the limit is {limits.bytes} (Limits.bytes)")
        self.limits = limits
        self.left = limits.memory + limits.memory_per_byte * size

    def expect(self, amount: int, place: str) -> None:
        """Refuse a need for ``amount`` bytes beyond the rest of the budget."""
        if amount > self.left:
            self.take(amount, place)

    def take(self, amount: int, place: str) -> None:
        self.left -= amount
        if self.left < 0:
            raise FormatError(f"{place}: what the file describes takes more memory than the limit of {self.limits.memory} bytes (Limits.memory)")


class ResultCache(Generic[_Kept]):
    """The results of equal bytes read before, up to a total cost in bytes; all are dropped at the limit."""

    __slots__ = ("_cost", "_found", "_mark", "_most")

    def __init__(self, limit: int) -> None:
        self._found: dict[bytes, _Kept] = {}
        self._cost = 0
        self._most = limit
        self._mark = 0

    @property
    def get(self) -> Callable[[bytes], _Kept | None]:
        """Return the lookup of results by bytes; it returns None for new bytes."""
        return self._found.get

    def read_by(self, mark: int) -> None:
        """Drop all where it was read under another mark."""
        if self._mark != mark:
            self._found.clear()
            self._cost, self._mark = 0, mark

    def put(self, data: bytes, value: _Kept, cost: int) -> None:
        cost += 2 * len(data)
        if cost > self._most // 64:
            return
        self._cost += cost
        if self._cost > self._most:
            self._found.clear()
            self._cost = cost
        self._found[data] = value
