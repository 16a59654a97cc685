"""The messages of a collective: their way between the ranks, and their sizes."""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Final, TypeAlias

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size
from foreshape.core.spec import Spec

ALL_REDUCE, ALL_GATHER, REDUCE_SCATTER, ALL_TO_ALL, BROADCAST, BARRIER = "all-reduce", "all-gather", "reduce-scatter", "all-to-all", "broadcast", "barrier"
REDUCE, SCATTER = "reduce", "scatter"
"""The ways of reductions to one rank, and of parts from one rank."""
NOTHING: Final = ""
"""The way of a collective that sends nothing: it waits, or takes a part of a tensor of its own rank."""
Messages: TypeAlias = "list[tuple[str, Size]]"
"""The messages of a rank, one after the other: the way of each, and the rank's bytes in it."""


@data_class(frozen=True)
class Given:
    """The operands and requested results of one op of a collective.

    Attributes:
        specs: slot -> the specs of its operands; absent slots are left out.
        requested: the result slots with a reader.
        rows: for sparse rows, their number.
        values: the number of values these rows share; None for a value per row.
    """

    specs: Mapping[str, tuple[Spec, ...]]
    requested: Set[str]
    rows: Size | None = None
    values: Size | None = None

    @property
    def nbytes(self) -> Size:
        """Return the bytes of all its operands."""
        total: Size = 0
        for spec in (s for specs in self.specs.values() for s in specs if s.dims is not None and s.dtype is not None):
            total = total + spec.nbytes
        return total
