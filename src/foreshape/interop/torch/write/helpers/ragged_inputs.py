"""Ragged inputs of written code: rows, and the offsets of their sequences."""

# pyright: reportUnknownMemberType=false, reportUnknownVariableType=false, reportUnknownArgumentType=false
# torch says no types of `split`, `tolist`, `unflatten`, `unique` and its linear algebra.

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from foreshape.core.values.offsets import Offsets


def sequences_of(offsets: Tensor | Sequence[Tensor], rows: int) -> Offsets:
    """Return the sequences of an input of ``rows`` rows, by its offsets: a tensor, or one for each level, outermost first."""
    sequences = Offsets([offsets] if isinstance(offsets, Tensor) else [*offsets])
    sequences.kept("rows", lambda: rows)
    return sequences


def in_sequences(lengths: Tensor) -> Offsets:
    """Return the sequences of these lengths."""
    return Offsets.of_lengths(lengths)


def images_of(numbers: Tensor, rows: int) -> Offsets:
    """Return the rows of each image, from their numbers."""
    numbers = numbers.reshape(-1).long()
    if (numbers.numel() and (int(numbers.min()) < 0 or int(numbers.max()) > rows)) or int(numbers.sum()) != rows:
        raise ValueError(f"the numbers of rows of each image must sum to {rows}; seen {numbers[:8].tolist()}")
    return Offsets.of_lengths(numbers)
