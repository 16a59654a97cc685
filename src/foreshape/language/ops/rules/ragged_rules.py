"""The shape rules of ragged operands and results: with the offsets of an operand, with new ones, or in padded form.

The padded form is ``[sequences, width, ...]`` with a tensor of lengths. Operators with both forms compute on packed rows; functions here tell the
rows in the padded tensor.
"""

from __future__ import annotations

from collections.abc import Sequence

from foreshape.core.dims import Size, symbol
from foreshape.core.spec import LOD_TENSOR, DType, Lod, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator.require import PLACEHOLDER, RuleError, require, require_equal


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


def rows(dtype: DType | None, dims: Sequence[Size], lod: Lod | None) -> Spec:
    """Return the spec of packed rows with this raggedness."""
    return Spec(LOD_TENSOR, dtype, tuple(dims), lod)


def one_per_sequence(spec: Spec, slot: str, row: Sequence[Size]) -> Spec:
    """Return the spec of one row for every innermost sequence: ``[sequences, *row]``, grouped by the outer levels."""
    lod = ragged(spec, slot)
    return rows(spec.dtype, (lod.counts[-1], *row), outer_lod(lod))


def same_sequences(x: Spec, y: Spec, x_slot: str, y_slot: str) -> None:
    """Require equal numbers of innermost sequences in X and Y."""
    require_equal(sequences(x, x_slot), sequences(y, y_slot), f"{x_slot} and {y_slot} must have as many sequences", **{x_slot: 0, y_slot: 0})


def check_lengths(lengths: Spec, slot: str, padded: Spec, padded_slot: str, axis: int = 0) -> None:
    """Require ``[sequences]`` or ``[sequences, 1]`` lengths, one for each sequence along ``axis`` of the padded tensor."""
    dims = lengths.known_dims
    require(len(dims) in (1, 2), f"{slot} must be [sequences] or [sequences, 1], not of {len(dims)} dims", **{slot: None})
    sides: dict[str, int | None] = {slot: 0, padded_slot: axis}
    require_equal(dims[0], padded.known_dims[axis], f"{slot} must have one length for each sequence of {padded_slot}", **sides)
    if len(dims) == 2:
        require_equal(dims[1], 1, f"{slot} must have 1 column", **{slot: 1})


def offsets_of(lengths: Tensor, width: int, slot: str) -> Offsets:
    """Return the offsets of sequences with these lengths.

    Raises:
        ExecutionError: a length is not in [0, width].
    """
    lengths = lengths.reshape(-1).long()
    if lengths.numel():
        low, high = (int(x) for x in lengths.aminmax())
        if low < 0 or high > width:
            raise ExecutionError(f"the lengths in {slot} must be in [0, {width}], the padded width; seen {low} to {high}")
    return Offsets.of_lengths(lengths)


def places(offsets: Offsets, width: int) -> Tensor:
    """Return the place of each packed row in ``[sequences * width]``: int64 ``[rows]``."""
    return offsets.kept(("places", width), lambda: offsets.segments * width + offsets.positions)


def unpadded(x: Tensor, offsets: Offsets) -> Tensor:
    """Return the packed rows ``[rows, *row]`` of ``[sequences, width, *row]``."""
    return x.flatten(0, 1).index_select(0, places(offsets, x.shape[1]))


def padded(rows: Tensor, offsets: Offsets, width: int, fill: float = 0) -> Tensor:
    """Return packed rows as ``[sequences, width, *row]``, ``fill`` after the end of each sequence."""
    out = torch.full((offsets.count * width, *rows.shape[1:]), fill, dtype=rows.dtype, device=rows.device)
    out.index_copy_(0, places(offsets, width), rows)
    return out.view(offsets.count, width, *rows.shape[1:])


def check_numbers(numbers: Tensor, below: int, subject: str) -> None:
    """Refuse numbers outside of [0, below); the error calls them ``subject``.

    Raises:
        ExecutionError: with the numbers seen.
    """
    if numbers.numel():
        low, high = (int(x) for x in numbers.aminmax())
        if low < 0 or high >= below:
            raise ExecutionError(f"{subject} must be in [0, {below}); seen {low} to {high}")


def divide(numbers: Tensor, rows: int) -> bool:
    """Tell whether the numbers of rows of parts sum to ``rows``, with none below 0.

    None may be above ``rows`` either: a sum past 64 bits wraps, and may come to anything.
    """
    if not numbers.numel():
        return not rows
    low, high = (int(n) for n in numbers.aminmax())
    return low >= 0 and high <= rows and int(numbers.sum()) == rows


def same_offsets(a: Offsets, b: Offsets, words: str) -> None:
    """Refuse two ragged operands with different offsets (shared offsets are proved by the description).

    Raises:
        ExecutionError: the innermost offsets differ.
    """
    if a is not b and a.host != b.host:
        raise ExecutionError(f"{words}; their sequences have the lengths {_some(a)} and {_some(b)}")


def _some(offsets: Offsets) -> str:
    lengths = offsets.host_lengths
    return f"[{', '.join(map(str, lengths[:8]))}{', ...' if len(lengths) > 8 else ''}]"
