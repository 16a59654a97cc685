"""The batches of texts: so many words together as a plan's formula has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, NamedTuple

from foreshape.errors import SchemaError
from foreshape.language.program import Variable

if TYPE_CHECKING:
    from foreshape.apps.embedding.text_network import TextNetwork

_ROWS = 1024
"""The words of a batch, unless memory has no room for them: more gain nothing on processors."""


class BatchLimits(NamedTuple):
    """The bounds of a batch.

    Attributes:
        rows: the most words.
        fits: tells for a number of texts, of all words, and of the longest text's words whether memory has room.
    """

    rows: int
    fits: Callable[[int, int, int], bool]


def batch_limits(memory: int | str | None, network: TextNetwork, variable: Variable, longest: int | None) -> BatchLimits:
    """Return the bounds of batches for one result of a network.

    Args:
        memory: the most bytes, or None.
        network: with its plan.
        variable: the result.
        longest: the most words of a text, or None.

    Raises:
        SchemaError: memory has no room for the longest text.
    """
    if memory is None:

        def short(count: int, total: int, width: int) -> bool:
            return total <= _ROWS and (not network.padded or count * width <= _ROWS)

        return BatchLimits(_ROWS, short)
    from foreshape.compiler.memory import bytes_of

    bound, plan = bytes_of(memory), network.plan(variable)

    def fits(count: int, total: int, width: int) -> bool:
        sizes = {str(name): count if str(name) in ("batch", "texts") else width if str(name).endswith("longest") else total for name in plan.symbols}
        return int(plan.peak(**sizes)) <= bound

    if longest is not None and not fits(1, longest, longest):
        raise SchemaError(f"a text of {longest} words takes more than memory={memory}")
    roomy = fits(_ROWS, _ROWS, min(_ROWS, longest or _ROWS))  # then all smaller batches do, and the formula need not be asked for each text

    def bounded(count: int, total: int, most: int) -> bool:
        return (roomy and total <= _ROWS) or fits(count, total, most)

    return BatchLimits(_ROWS, bounded)


def batches(order: Sequence[int], lengths: Sequence[int], limits: BatchLimits) -> Iterator[list[int]]:
    """Yield the numbers of texts batch by batch.

    Args:
        order: the numbers of the texts, by length.
        lengths: the words of each text, by its number.
        limits: the bounds; a longer text goes alone.
    """
    batch: list[int] = []
    total = width = 0
    for i in order:
        length = lengths[i]
        if batch and not (total + length <= limits.rows and limits.fits(len(batch) + 1, total + length, max(width, length))):
            yield batch
            batch, total, width = [], 0, 0
        batch.append(i)
        total, width = total + length, max(width, length)
    if batch:
        yield batch
