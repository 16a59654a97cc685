"""Rows of sequences: layers that regroup the rows of ragged variables, and attention within sequences.

All of them work on the innermost sequences, whatever the number of levels.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import INT64, dtype
from foreshape.language.program.variable import Variable
from foreshape.layer.functions import apply


def sequence_slice(x: Variable, offset: Variable, length: Variable) -> Variable:
    """Return the ``length[i]`` rows of each sequence i from its row ``offset[i]`` on. Both are integers ``[sequences, 1]``.

    A range outside of its sequence is an error of the run.

    Args:
        x: ragged rows.
        offset, length: int32 or int64; an offset counts from 0.
    """
    return apply("sequence_slice", {"X": x, "Offset": offset, "Length": length})


def sequence_pad(x: Variable, pad_value: Variable | float, maxlen: int | None = None) -> tuple[Variable, Variable]:
    """Pad the sequences to one length, side by side.

    Args:
        x: ragged rows ``[rows, *row]``, of at least 2 dims.
        pad_value: a number, or a variable of one, or of one row of ``x``.
        maxlen: the length; at least every sequence's; by default the longest sequence's.

    Returns:
        ``[sequences, maxlen, *row]``, and the sequences' own lengths, int64 ``[sequences]``.
    """
    if not isinstance(pad_value, Variable):
        element_type = x.spec.known_dtype
        text = str(int(pad_value)) if element_type.is_integer else ""
        pad_value = apply("fill_constant", {}, shape=[1], dtype=element_type, value=float(pad_value), str_value=text)
    padded, length = apply("sequence_pad", {"X": x, "PadValue": pad_value}, padded_length=-1 if maxlen is None else maxlen)
    length.stop_gradient = True
    return padded, length


def sequence_unpad(x: Variable, length: Variable) -> Variable:
    """Return the first ``length[i]`` rows of each entry ``x[i]`` as ragged rows; ``x`` is ``[sequences, time, *row]``, ``length`` ``[sequences]``.

    Args:
        x: ``[sequences, time, ...]``.
        length: ``[sequences]``, int64.
    """
    return apply("sequence_unpad", {"X": x, "Length": length})


def sequence_mask(x: Variable, maxlen: int | Variable | None = None, dtype: Any = INT64) -> Variable:
    """Return for each length in ``x`` a row of ``maxlen`` numbers: 1 at positions before the length, 0 from there on.

    Args:
        x: lengths, any shape.
        maxlen: a number, or a variable of one; by default the largest length.
        dtype: the element type of the result.
    """
    return _mask(x, maxlen, dtype)


def _mask(x: Variable, maxlen: int | Variable | None, out_dtype: Any) -> Variable:
    if isinstance(maxlen, Variable):
        return apply("sequence_mask", {"X": x, "MaxLenTensor": maxlen}, maxlen=-1, out_dtype=dtype(out_dtype))
    return apply("sequence_mask", {"X": x}, maxlen=-1 if maxlen is None else maxlen, out_dtype=dtype(out_dtype))


def sequence_reshape(x: Variable, new_dim: int) -> Variable:
    """Return the numbers of each sequence in rows of ``new_dim``, a divisor of their count; ``x`` is ``[rows, width]``.

    Args:
        x: ragged ``[rows, width]``.
        new_dim: the new width.
    """
    return apply("sequence_reshape", {"X": x}, new_dim=new_dim)


def sequence_enumerate(x: Variable, win_size: int, pad_value: int = 0) -> Variable:
    """Return for each row the ``win_size`` ids from it on, ``pad_value`` past the end of its sequence; ``x`` is integers ``[rows, 1]``.

    Args:
        x: ragged integers ``[rows, 1]``.
        win_size: the number of ids of each row.
        pad_value: the value past the end.
    """
    return apply("sequence_enumerate", {"X": x}, win_size=win_size, pad_value=pad_value)


def sequence_erase(x: Variable, tokens: Sequence[int]) -> Variable:
    """Return ``x``, integers ``[rows, 1]``, without the rows in ``tokens``.

    Args:
        x: ragged integers ``[rows, 1]``.
        tokens: the numbers to drop.
    """
    return apply("sequence_erase", {"X": x}, tokens=list(tokens))


def sequence_scatter(x: Variable, index: Variable, updates: Variable) -> Variable:
    """Return ``x``, ``[sequences, width]``, with the updates of sequence i added to its row i, at the columns ``index``.

    ``index`` (integers) and ``updates`` are ragged with the same sequences, ``[rows, 1]`` or ``[rows]``.

    Args:
        x: ``[sequences, width]``, floats or integers.
        index: ragged int32 or int64, columns of x.
        updates: ragged as index, of the element type of x.
    """
    return apply("sequence_scatter", {"X": x, "Ids": index, "Updates": updates})


def sequence_topk_avg_pooling(x: Variable, row: Variable, col: Variable, topks: Sequence[int], channel_num: int) -> Variable:
    """Return averages of the largest numbers in the rows of matrices; each sequence of ``x`` holds ``channel_num``.

    Args:
        x: ragged ``[numbers, 1]``; sequence i is ``channel_num`` matrices, as high as sequence i of ``row`` is long, and as wide
            as sequence i of ``col`` is long.
        row, col: ragged rows, as long as the matrices are high and wide; their numbers are not read.
        topks: how many numbers each average is of, rising; where a row has fewer, the sum of all is still divided by it.
        channel_num: how many matrices a sequence holds.

    Returns:
        ``[rows of row, channel_num * len(topks)]``, ragged as ``row``.
    """
    return apply("sequence_topk_avg_pooling", {"X": x, "ROW": row, "COLUMN": col}, topks=list(topks), channel_num=channel_num)[0]


def lod_reset(x: Variable, y: Variable | None = None, target_lod: Sequence[int] | None = None) -> Variable:
    """Group the rows of ``x`` into other sequences.

    Args:
        x: rows, dense or ragged.
        y: ragged, with as many rows as ``x``: its sequences are taken; or integers ``[sequences + 1]``, the offsets.
        target_lod: the offsets, which rise from 0 to the number of rows.
    """
    return apply("lod_reset", {"X": x, "Y": y}, target_lod=[] if target_lod is None or y is not None else list(target_lod))


def lod_append(x: Variable, level: Variable | Sequence[int]) -> Variable:
    """Return ``x`` with one more level of sequences, below the present ones: ``level`` are its offsets, as many sequences as ``x`` has rows.

    A dense ``x`` gets its first level. Of a ragged variable ``level`` all levels are taken, in place of the levels of ``x``.

    Args:
        x: dense or ragged rows.
        level: the offsets, from 0 to the number of rows, or a variable of them.
    """
    if isinstance(level, Variable):
        return apply("lod_reset", {"X": x, "Y": level}, append=True)
    return apply("lod_reset", {"X": x}, target_lod=list(level), append=True)


def sequence_attention(
    query: Variable, key: Variable, value: Variable, heads: int = 1, causal: bool = False, scale: float | None = None, bias: Variable | None = None
) -> Variable:
    """Compute multi-head scaled dot-product attention within each sequence, without padding (Vaswani et al., 2017).

    Args:
        query: ragged ``[rows, width]``; sequence i attends to sequence i of ``key`` and ``value``.
        key: ragged ``[key rows, width]``, as many sequences as ``query``; their lengths may be others.
        value: as ``key``, with the same sequences.
        heads: the equal parts of the columns that attend each on their own.
        causal: row j of a sequence of ``query`` sees rows 0..j only.
        scale: the factor of the products; by default one over the root of width / heads.
        bias: dense ``[1 or heads, time, key time]``, at least as long as the longest sequences: ``bias[head, i, j]`` is added to the scaled score of row i
            of a sequence of ``query`` and row j of its sequence of ``key``. A -inf hides the key, and each row must see one at least.

    Returns:
        Ragged rows as ``query``; zeros where a sequence of ``key`` has no rows.
    """
    return apply("sequence_attention", {"Q": query, "K": key, "V": value, "Bias": bias}, heads=heads, causal=causal, scale=scale or 0.0)[0]
