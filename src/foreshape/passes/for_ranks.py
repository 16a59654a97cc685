"""What a strategy makes of a program: what each rank runs, and which of its values are parts of a whole."""

from __future__ import annotations

from dataclasses import dataclass

from foreshape.dims import Size, product
from foreshape.program import Program
from foreshape.spec import DType


@dataclass(frozen=True, slots=True)
class Piece:
    """A value of the described program within what is divided: its elements stand from ``start`` on, in their own order."""

    name: str
    start: Size
    dims: tuple[Size, ...]


@dataclass(frozen=True, slots=True)
class Part:
    """A persistable value of which each rank has a part, of ``dims``.

    It holds those elements of the pieces, one after the other, that begin at rank times its own size; or, where it is ``dealt``, of its one
    piece the rows rank, rank + ranks, rank + 2 ranks, ...
    """

    name: str
    dtype: DType
    dims: tuple[Size, ...]
    pieces: tuple[Piece, ...]
    dealt: bool = False
    begins_whole: bool = False
    """Whether the startup program makes the pieces whole, and each rank cuts its part out of them."""

    @property
    def size(self) -> Size:
        """The elements of one rank."""
        return product(self.dims)


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
