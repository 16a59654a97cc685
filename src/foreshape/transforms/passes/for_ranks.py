"""The result of a strategy: the program of each rank, and its divided values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from foreshape.core.dims import Size, product
from foreshape.core.spec import DType
from foreshape.language.program import Program


@dataclass(frozen=True, slots=True)
class ShardPiece:
    """A value of the described program within a divided one: its elements, of ``dims``, stand from ``start`` on, in their own order.

    With an ``axis`` it is a part of the value along this axis, one of ``ways``, on consecutive ranks;
    ``inner`` is the program's name of the part.
    """

    name: str
    start: Size
    dims: tuple[Size, ...]
    axis: int | None = None
    ways: int = 1
    inner: str = ""

    @property
    def whole(self) -> tuple[Size, ...]:
        """Return the dims of the described value."""
        return tuple(d * self.ways if axis == self.axis else d for axis, d in enumerate(self.dims))


@dataclass(frozen=True, slots=True)
class ShardedValue:
    """A persistable value of which each rank has a part, of ``dims``.

    It holds the elements of the pieces, one after the other, from rank times its own size on. If ``dealt``, it holds the rows rank, rank + ranks,
    rank + 2 ranks, ... of its one piece. With an ``axis`` it holds the rank's part of its one piece along this axis.
    For parts over a group of the ranks, rank is the place in the group, and every group holds all parts.
    """

    name: str
    dtype: DType
    dims: tuple[Size, ...]
    pieces: tuple[ShardPiece, ...]
    dealt: bool = False
    begins_whole: bool = False
    """True if the startup program makes the pieces whole, and each rank cuts its part out of them."""
    axis: int | None = None
    ways: int = 0
    """The number of parts; 0: as many as ranks."""
    stride: int = 1
    """The number of consecutive ranks with the same part: part p is on the ranks r with r // stride % ways equal to p."""

    def count(self, ranks: int) -> int:
        """Return the number of parts for so many ranks."""
        return self.ways or ranks

    def place(self, rank: int, ranks: int) -> int:
        """Return the part of a rank."""
        return rank // self.stride % self.count(ranks)

    def holders(self, ranks: int) -> list[int]:
        """Return for each part the first rank with it."""
        return [part * self.stride for part in range(self.count(ranks))]

    @property
    def size(self) -> Size:
        """Return the elements of one rank."""
        return product(self.dims)


ALL, TENSOR, DATA = 0, 1, 2
"""Rings: all ranks; ranks with the same examples and different parts of the layers; ranks with the same part of the layers."""
Mesh: TypeAlias = "Mapping[int, Sequence[Sequence[int]]]"
"""Ring -> the groups of all ranks, beside the group of all."""


@dataclass(frozen=True, slots=True)
class ForRanks:
    """A program for each rank, and its loss over all ranks."""

    program: Program
    loss: str
    startup: Program | None = None
    """The startup program of one rank; None for the described one."""
    parts: tuple[ShardedValue, ...] = ()
    """The divided values."""
    followers: tuple[tuple[str, str], ...] = ()
    """(name, of): values no longer updated, since they equal another one, such as the powers of beta of several parameters."""
    shards: tuple[ShardedValue, ...] = ()
    """The parts of parameters changed by the updates of a rank, whether kept or cut out of the parameters."""
    degree: int = 1
    """The number of consecutive ranks with the same examples. Above 1, the number of ranks in the program is the number of their groups."""
