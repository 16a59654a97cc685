"""Ragged inputs of written code: rows, and the offsets of their sequences."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from foreshape.core.values.offsets import Offsets


def sequences_of(offsets: Tensor | Sequence[Tensor], rows: int) -> Offsets:
    """Return the sequences of an input of ``rows`` rows, by its offsets: a tensor, or one for each level, outermost first."""
    sequences = Offsets([offsets] if isinstance(offsets, Tensor) else [*offsets])
    sequences.kept("rows", lambda: rows)
    return sequences
