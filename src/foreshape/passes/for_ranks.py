"""What a strategy makes of a program: what each rank runs, and which of its values are parts of a whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from foreshape.dims import Size, product
from foreshape.program import Program
from foreshape.spec import DType


@dataclass(frozen=True, slots=True)
class Piece:
    """A value of the described program within what is divided: its elements, of ``dims``, stand from ``start`` on, in their own order.

    Where it has an ``axis``, it is not the value itself but its part along that, one of ``ways``, which ranks that come one after the other
    have; ``inner`` is what the program calls that part.
    """

    name: str
    start: Size
    dims: tuple[Size, ...]
    axis: int | None = None
    ways: int = 1
    inner: str = ""

    @property
    def whole(self) -> tuple[Size, ...]:
        """The dims of the described value."""
        return tuple(d * self.ways if at == self.axis else d for at, d in enumerate(self.dims))


@dataclass(frozen=True, slots=True)
class Part:
    """A persistable value of which each rank has a part, of ``dims``.

    It holds those elements of the pieces, one after the other, that begin at rank times its own size; or, where it is ``dealt``, of its one
    piece the rows rank, rank + ranks, rank + 2 ranks, ...; or, where it has an ``axis``, of its one piece the rank's part along that.
    Where the parts are of a group of the ranks alone, rank is this one's place in its group, and every group holds all parts.
    """

    name: str
    dtype: DType
    dims: tuple[Size, ...]
    pieces: tuple[Piece, ...]
    dealt: bool = False
    begins_whole: bool = False
    """Whether the startup program makes the pieces whole, and each rank cuts its part out of them."""
    axis: int | None = None
    ways: int = 0
    """How many parts there are; 0: as many as ranks."""
    stride: int = 1
    """How many ranks with the same part come one after the other: part p is that of the ranks r with r // stride % ways equal to p."""

    def count(self, ranks: int) -> int:
        """How many parts there are, of so many ranks."""
        return self.ways or ranks

    def place(self, rank: int, ranks: int) -> int:
        """Which part a rank has."""
        return rank // self.stride % self.count(ranks)

    def holders(self, ranks: int) -> list[int]:
        """For each part the first rank that has it."""
        return [at * self.stride for at in range(self.count(ranks))]

    @property
    def size(self) -> Size:
        """The elements of one rank."""
        return product(self.dims)


ALL, TENSOR, DATA = 0, 1, 2
"""Rings: all ranks; those that compute on the same examples, each with its part of the layers; those with the same part of the layers."""
Mesh: TypeAlias = "Mapping[int, Sequence[Sequence[int]]]"
"""Ring -> the groups that all ranks are divided into, beside that of all."""


@dataclass(frozen=True, slots=True)
class ForRanks:
    """A program that each rank runs, and the loss over all ranks in it."""

    program: Program
    loss: str
    startup: Program | None = None
    """What makes the values of one rank; None where the described startup program does."""
    parts: tuple[Part, ...] = ()
    """The values of which each rank has a part."""
    followers: tuple[tuple[str, str], ...] = ()
    """(name, of): values that no op updates any more, since they are what another is, such as the powers of beta of several parameters."""
    shards: tuple[Part, ...] = ()
    """What the updates of a rank change instead of whole parameters, whether it is kept or cut out of these: parts of them."""
    degree: int = 1
    """How many ranks that come one after the other have the same examples. Where there are more, what is called the number of ranks in the
    program is that of their groups."""
