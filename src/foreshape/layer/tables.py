"""Embeddings: lookups in tables of parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.spec import dtype as dtype_of
from foreshape.errors import SchemaError, ShapeError
from foreshape.language.program.call_site import tells_line
from foreshape.language.program.current import current_block
from foreshape.language.program.variable import Variable
from foreshape.layer.parameter import create_parameter


@tells_line
def embedding(
    ids: Variable, size: Sequence[int], is_sparse: bool = False, padding_idx: int | None = None, *, weight: Any = None, dtype: Any = "fp32",
    name: str | None = None,
) -> Variable:  # fmt: skip
    """Return the rows of a table at ``ids``.

    Examples:
        >>> words = layer.data("words", ["batch", 20], "int64")
        >>> layer.embedding(words, [5000, 64])  # [batch, 20, 64]

    Args:
        ids: row numbers (int32, int64) of any shape, dense or ragged.
        size: ``[rows, width]`` of the table.
        is_sparse: its gradient is the rows looked up, so the time of a step does not grow with the table's height.
        padding_idx: a row number for zeros, not trained; negative ones count from the end.
        weight: the table's name, initializer or `ParamAttr`.
        dtype: of the table: floats.
        name: the prefix of the table's name.

    Returns:
        ``[*ids, width]``, ragged as ids.

    Raises:
        ShapeError: a size other than two numbers, or a padding_idx outside of the table.
    """
    return _lookup("lookup_table_v2", ids, size, is_sparse, padding_idx, weight, dtype, name, "embedding")


@tells_line
def embedding_bag(
    ids: Variable, size: Sequence[int], pool_type: str = "sum", padding_idx: int | None = None, is_sparse: bool = True, *, weight: Any = None,
    dtype: Any = "fp32", name: str | None = None,
) -> Variable:  # fmt: skip
    """Return the sum (or mean) of a table's rows at each example's ids: a lookup and a sum, run as one kernel.

    Args:
        ids: row numbers (int32, int64): dense ``[batch, n]``, or ragged ``[words]`` or ``[words, 1]``, one bag per innermost sequence.
        size: ``[rows, width]`` of the table.
        pool_type: "sum", "mean", or of ragged ids also "sqrt", the sum over the root of the length. An empty sequence gives zeros.
        padding_idx: a row number for zeros, not trained, but counted in the length; negative ones count from the end.
        is_sparse: the table's gradient is the rows looked up, so the time of a step does not grow with the table's height.
        weight: the table's name, initializer or `ParamAttr`.
        dtype: of the table: floats.
        name: the prefix of the table's name.

    Returns:
        ``[bags, width]``; of ids with more than one level of sequences, ragged as its outer levels are.

    Raises:
        ShapeError: ids of other dims, a size other than two numbers, or a padding_idx outside of the table. SchemaError: another pool_type.
    """
    ragged = ids.spec.lod is not None
    rank = ids.spec.rank
    if rank not in ((1, 2) if ragged else (2,)) or (ragged and rank == 2 and ids.spec.known_dims[1] != 1):
        raise ShapeError.must(f"embedding_bag({ids.name}): ids", "[batch, n], or ragged [words] or [words, 1]", f"{ids.spec.text()}")
    modes = {"sum": "SUM", "mean": "AVERAGE"} | ({"sqrt": "SQRT"} if ragged else {})
    if pool_type not in modes:
        raise SchemaError.must(f"embedding_bag({ids.name}): pool_type", f"one of {', '.join(modes)}", f"{pool_type!r}")
    rows = _lookup("lookup_table" if ragged and rank == 2 else "lookup_table_v2", ids, size, is_sparse, padding_idx, weight, dtype, name, "embedding_bag")
    if not ragged:
        return current_block().apply(f"reduce_{pool_type}", {"X": rows}, {"dim": [1]})
    return current_block().apply("sequence_pool", {"X": rows}, {"pooltype": modes[pool_type]})[0]


def _lookup(
    type: str, ids: Variable, size: Sequence[int], is_sparse: bool, padding_idx: int | None, weight: Any, dtype: Any, name: str | None, layer: str
) -> Variable:
    if not isinstance(size, Sequence) or len(size) != 2 or min(size) < 0:  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ShapeError.must(f"{layer}({ids.name}): size", "[rows, width]", f"{size!r}")
    rows = size[0]
    if padding_idx is not None and not -rows <= padding_idx < rows:
        raise ShapeError.must(f"{layer}({ids.name}): padding_idx", f"in [{-rows}, {rows})", padding_idx)
    block = current_block()
    prefix = block.program.layer_name(layer, name)
    table = create_parameter(tuple(size), dtype_of(dtype), weight, prefix=prefix)
    padding = -1 if padding_idx is None else padding_idx % rows
    return block.apply(type, {"W": table, "Ids": ids}, {"is_sparse": is_sparse, "remote_prefetch": is_sparse, "padding_idx": padding}, prefix)


def segment_pool(x: Variable, segment: Variable, pool_type: str = "sum") -> Variable:
    """Pool the rows of each segment: ``[segments, *row]``, zeros where a segment has none.

    Args:
        x: ``[n, *row]``, floats.
        segment: the segment of each row, int32 or int64 ``[n]``, rising from 0.
        pool_type: "sum", "mean", "max" or "min".
    """
    return current_block().apply("segment_pool", {"X": x, "SegmentIds": segment}, {"pooltype": pool_type.upper()})[0]


def graph_send_recv(x: Variable, source: Variable, destination: Variable, pool_type: str = "sum", output_size: int | None = None) -> Variable:
    """Pool the rows of the nodes with edges to each node: ``[nodes, *row]``, zeros without any.

    Args:
        x: a row for each node, floats ``[nodes, *row]``.
        source, destination: the ends of each edge, int32 or int64 ``[edges]``.
        pool_type: "sum", "mean", "max" or "min".
        output_size: the number of nodes in the result; by default x's.
    """
    inputs = {"X": x, "Src_index": source, "Dst_index": destination}
    return current_block().apply("graph_send_recv", inputs, {"reduce_op": pool_type.upper(), "out_size": [output_size or 0]})[0]
