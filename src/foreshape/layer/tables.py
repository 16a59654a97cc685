"""Lookups in tables of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.errors import ShapeError
from foreshape.layer.parameter import create_parameter
from foreshape.program.program import current_block
from foreshape.program.variable import Variable
from foreshape.spec import dtype as dtype_of


def embedding(
    ids: Variable, size: Sequence[int], is_sparse: bool = False, padding_idx: int | None = None, *, weight: Any = None, dtype: Any = "fp32",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """The rows of a table that ``ids`` name.

    Args:
        ids: row numbers (int32, int64) of any shape, dense or ragged.
        size: ``[rows, width]`` of the table.
        is_sparse: its gradient is the rows that were looked up, so that a step does not cost what the table's height is.
        padding_idx: a row number that gives zeros and is not trained; negative ones count from the end.
        weight: the table's name, initializer or `ParamAttr`.

    Returns:
        ``[*ids, width]``, ragged as ids.

    Raises:
        ShapeError: a size that is not two numbers, or a padding_idx that is no row.
    """
    if len(size) != 2 or min(size) < 0:
        raise ShapeError(f"embedding({ids.name}): size must be [rows, width]; seen {list(size)}")
    rows = size[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise ShapeError(f"embedding({ids.name}): padding_idx must be in [{-rows}, {rows}); seen {padding_idx}")
    block = current_block()
    prefix = name or block.program.unique_name("embedding")
    table = create_parameter(tuple(size), dtype_of(dtype), weight, prefix=prefix)
    padding = -1 if padding_idx is None else padding_idx % rows
    return block.apply("lookup_table_v2", {"W": table, "Ids": ids}, {"is_sparse": is_sparse, "remote_prefetch": is_sparse, "padding_idx": padding}, prefix)
