"""What a collective sends: which way its messages go round the ranks, and what their sizes follow from."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final, TypeAlias

from foreshape.data_class import data_class
from foreshape.dims import Size
from foreshape.spec import Spec

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, BARRIER = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "barrier"
REDUCE, SCATTER = "reduce", "scatter"
"""To one rank, and from one rank to each its part."""
NOTHING: Final = ""
"""The way of what sends nothing: it waits, or takes a part of what each rank has."""
Messages: TypeAlias = "list[tuple[str, Size]]"
"""What a rank gives to each message, one after the other: which way it goes round, and the bytes."""


@data_class(frozen=True)
class Given:
    """What an op of a collective reads, and is asked for.

    Attributes:
        specs: slot -> the specs of what is in it; nothing of what is absent.
        requested: the result slots that somebody reads.
        rows: of sparse rows, how many there are.
        values: how many values these share; None where each has its own.
    """

    specs: Mapping[str, tuple[Spec, ...]]
    requested: Set[str]
    rows: Size | None = None
    values: Size | None = None

    @property
    def nbytes(self) -> Size:
        """The bytes of all that it reads."""
        total: Size = 0
        for spec in (s for specs in self.specs.values() for s in specs if s.dims is not None and s.dtype is not None):
            total = total + spec.nbytes
        return total
