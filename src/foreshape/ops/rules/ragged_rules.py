"""The shape rules of ragged operands and results: results with the offsets of an operand, or with new ones."""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.dims import Size, symbol
from foreshape.errors import TypeMismatchError
from foreshape.operator.require import PLACEHOLDER, RuleError, require_equal
from foreshape.spec import LOD_TENSOR, DType, Lod, Spec


def ragged(spec: Spec, slot: str, levels: int | None = None) -> Lod:
    """Return the raggedness of the value in ``slot``; it must be ragged (of ``levels`` levels, if given)."""
    lod = spec.lod
    if lod is None:
        raise RuleError(f"{slot} must be ragged (lod_level of 1 or more), and it is dense, {spec.text()}", {slot: None}, TypeMismatchError)
    if levels is not None and len(lod.counts) != levels:
        raise RuleError(f"{slot} must have {levels} level{'s' if levels > 1 else ''} of sequences, not {len(lod.counts)}", {slot: None})
    return lod


def sequences(spec: Spec, slot: str) -> Size:
    """Return the number of innermost sequences of a ragged value."""
    return ragged(spec, slot).counts[-1]


def longest(lod: Lod) -> Size:
    """Return the length of the longest innermost sequence: one symbol for all values with these offsets, so padding two of them gives one shape."""
    level = len(lod.counts)
    return symbol(f"{lod.source[:500]}.longest{level if level > 1 else ''}")


def longest_outermost(lod: Lod) -> Size:
    """Return the rows of the longest outermost sequence, one symbol likewise; with one level the length of the longest."""
    return longest(lod) if len(lod.counts) == 1 else symbol(f"{lod.source[:500]}.longest_rows")


def new_lod(name: str, counts: Sequence[Size]) -> Lod:
    """Return the raggedness of a result with new offsets; ``name`` tells it from others of the same op."""
    return Lod(PLACEHOLDER + name, tuple(counts))


def outer_lod(lod: Lod, levels: int = -1) -> Lod | None:
    """Return the first ``levels`` levels of ``lod`` (-1: all but the innermost); None if there is none."""
    counts = lod.counts[:levels]
    return Lod(lod.source, counts) if counts else None


def rows(of: DType | None, dims: Sequence[Size], lod: Lod | None) -> Spec:
    """Return the spec of packed rows with this raggedness."""
    return Spec(LOD_TENSOR, of, tuple(dims), lod)


def one_per_sequence(spec: Spec, slot: str, row: Sequence[Size]) -> Spec:
    """Return the spec of one row for every innermost sequence: ``[sequences, *row]``, grouped by the outer levels."""
    lod = ragged(spec, slot)
    return rows(spec.dtype, (lod.counts[-1], *row), outer_lod(lod))


def same_sequences(x: Spec, y: Spec, x_slot: str, y_slot: str) -> None:
    """Require equal numbers of innermost sequences in X and Y."""
    require_equal(sequences(x, x_slot), sequences(y, y_slot), f"{x_slot} and {y_slot} must have as many sequences", **{x_slot: 0, y_slot: 0})
