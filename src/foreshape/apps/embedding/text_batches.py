"""The batches of texts: so many words together as a plan's formula has room for."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, TypeVar

from foreshape.apps.tokenization.text_tokenizer import length_of
from foreshape.language.program import Variable

if TYPE_CHECKING:
    from foreshape.apps.embedding.text_network import TextNetwork

_SHARE = 8
"""A batch of several texts takes at most such a part of the memory."""
_WINDOW, _CHARACTERS = 256, 1 << 22
"""The texts taken at a time, to be cut into words and ordered by length: at most so many, and no others behind so many characters."""
Limits = Callable[[int, int, int], bool]
"""Tells for a number of texts, of all words, and of the longest text's words whether they are one batch."""
Text = TypeVar("Text")


def batch_limits(network: TextNetwork, variable: Variable, skipped: int) -> Limits:
    """Return the bounds of batches for one result of a network: by the sizes of texts alone, so the same texts are always cut to the same batches.

    Args:
        network: with its bound of memory, if it has one.
        variable: the result.
        skipped: the first rows left out of pooling.
    """

    rows = network.batch_rows(variable, skipped)

    def short(count: int, total: int, width: int) -> bool:
        return total <= rows and (not network.padded or count * width <= rows)

    if network.bound is None:
        return short
    share = network.bound.size // _SHARE
    if network.batch_nbytes(variable, rows, rows, rows, skipped) <= share:
        return short
    return lambda count, total, width: short(count, total, width) and network.batch_nbytes(variable, count, total, width, skipped) <= share


def windows(texts: Iterable[Text]) -> Iterator[list[Text]]:
    """Yield texts, or pairs, some at a time."""
    window: list[Text] = []
    characters = 0
    for text in texts:
        window.append(text)
        characters += length_of(text)
        if len(window) == _WINDOW or characters >= _CHARACTERS:
            yield window
            window, characters = [], 0
    if window:
        yield window


def batches(order: Sequence[int], lengths: Sequence[int], limits: Limits) -> Iterator[list[int]]:
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
        if batch and not limits(len(batch) + 1, total + length, max(width, length)):
            yield batch
            batch, total, width = [], 0, 0
        batch.append(i)
        total, width = total + length, max(width, length)
    if batch:
        yield batch
