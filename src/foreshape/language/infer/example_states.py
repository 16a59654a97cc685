"""Answers for the numbers of a value as a batch grows: shared, made of its sizes, a part for each example, numbers of examples, or a mixture."""

from __future__ import annotations

from typing import Final

from foreshape.core.data_class import data_class
from foreshape.core.dims import Size
from foreshape.language.program.op import Op


class Shared:
    """A value equal in every batch."""


SHARED: Final = Shared()


@data_class(frozen=True)
class OfSizes:
    """A value made of these sizes of the batch, and not of its numbers."""

    symbols: frozenset[str]


@data_class(frozen=True)
class PerExample:
    """A value with the examples behind one another along an axis.

    The axis has ``outer`` times ``count`` times further entries, in row-major order; ``count`` runs over the examples, or over their rows.
    """

    axis: int
    outer: Size
    count: Size


@data_class(frozen=True)
class Mixed:
    """A value whose examples may change one another; ``proven`` if the operator says so, open if it only fails to say otherwise."""

    op: Op
    why: str
    proven: bool

    def __str__(self) -> str:
        site = self.op.call_site
        return f"{self.op.type}{f' ({site.short()})' if site is not None else ''} {self.why}"


@data_class(frozen=True)
class Numbered:
    """Whole numbers made of the number of each example in the batch: ``stride`` times it, plus a number equal in all examples, from ``low`` to ``high``.

    Attributes:
        place: where the examples are.
        column: the entry of the last axis with such numbers, beside entries equal for each example; None: all are such numbers.
    """

    place: PerExample
    stride: Size
    low: Size
    high: Size
    column: int | None = None


State = Shared | OfSizes | PerExample | Numbered | Mixed
