"""Import of operators to look rows up in tables, and to put them together in bags."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.dims import equal
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_elementwise import change
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.torch_call import TorchCall, name_of
from foreshape.program import Variable
from foreshape.spec import INT64


@aten("embedding")
def _embedding(t: TorchCall, weight: Variable, ids: Variable, padding_idx: int = -1, scale_grad: bool = False, *_: Any) -> Any:
    padded = {"padding_idx": padding_idx, "keeps_padding": True} if padding_idx >= 0 and weight.trainable else None
    rows = t.op("lookup_table_v2", padded, W=weight, Ids=ids)
    return _by_frequency(t, rows, weight, ids) if scale_grad else rows


def _by_frequency(t: TorchCall, rows: Variable, weight: Variable, ids: Variable) -> Variable:
    """Return rows of a table, their gradients divided by how often each is taken."""
    flat = layer.reshape(ids, [-1])
    none = layer.fill_constant([int(weight.spec.known_dims[0])], rows.spec.known_dtype, 0.0)  # pyright: ignore[reportArgumentType]
    counts = layer.unsqueeze(layer.put_along_axis(none, flat, layer.fill_like(flat, 1.0, rows.spec.known_dtype), 0, "add"), [1])
    held = layer.assign(rows)
    held.stop_gradient = True
    return layer.add(held, layer.divide(change(rows), t.op("lookup_table_v2", None, W=counts, Ids=ids)))


@aten("embedding_bag", "_embedding_bag", "_embedding_bag_forward_only")
def _embedding_bag(
    t: TorchCall,
    weight: Variable,
    ids: Variable,
    offsets: Variable,
    scale_grad: bool = False,
    mode: int = 0,
    sparse: bool = False,
    weights: Any = None,
    include_last: bool = False,
    padding_idx: int | None = None,
) -> Any:
    if scale_grad and not weight.stop_gradient:
        raise Refused("scale_grad_by_freq: torch divides the gradients of bags by counts of other rows")
    kind = ("sum", "mean", "max")[mode]
    size = _equal_bags(t, ids, offsets)
    if size is not None and kind != "max" and weights is None and not include_last and (padding_idx is None or padding_idx < 0):
        rows = t.op("lookup_table_v2", None, W=weight, Ids=t.reshape(ids, [-1, size]))
        return [getattr(layer, f"reduce_{kind}")(rows, [1]), None, None, None]
    count = layer.slice(layer.shape(ids), [0], [0], [1])
    offsets = t.cast(offsets, INT64)
    if include_last:
        offsets = layer.slice(offsets, [0], [0], [-1])
    bag = layer.subtract(layer.searchsorted(offsets, layer.range(0, count, 1), right=True), 1)
    bags = layer.cast(layer.shape(offsets), INT64)
    rows = t.op("lookup_table_v2", None, W=weight, Ids=ids)
    rows = rows if weights is None else layer.multiply(rows, layer.unsqueeze(weights, [-1]))
    if padding_idx is not None and padding_idx >= 0:
        kept = layer.nonzero(layer.not_equal(ids, padding_idx))
        rows, bag = layer.gather_nd(rows, kept), layer.gather_nd(bag, kept)
    width = weight.spec.known_dims[-1]
    zeros = layer.fill_constant([bags, int(width)], rows.spec.known_dtype, 0.0)  # pyright: ignore[reportArgumentType]
    place = layer.expand_as(layer.unsqueeze(bag, [1]), rows)
    if kind == "max":  # of the first of equal numbers, which has the gradient
        most = layer.put_along_axis(zeros, place, rows, 0, "amax", False)
        rank = layer.expand_as(layer.unsqueeze(layer.range(0, layer.cast(layer.slice(layer.shape(rows), [0], [0], [1]), INT64), 1), [1]), place)
        later = layer.fill_like(rank, float(2**30))
        rank = t.where(layer.equal(rows, layer.take_along_axis(most, place, 0)), rank, later)
        none = layer.fill_constant([bags, int(width)], INT64, 2**30)  # pyright: ignore[reportArgumentType]
        first = layer.put_along_axis(none, place, rank, 0, "amin", True)
        empty = layer.greater_equal(first, none)
        made = t.where(empty, zeros, layer.take_along_axis(rows, t.where(empty, layer.fill_like(first, 0), first), 0))
    else:
        made = layer.put_along_axis(zeros, place, rows, 0, {"sum": "add", "mean": "mean"}[kind], kind == "sum")
    return [made, None, None, None]


def _equal_bags(t: TorchCall, ids: Variable, offsets: Variable) -> int | None:
    """Return the number of ids in each bag, where the offsets are counted from 0 in steps of it, as for ids of two dims; None for other bags."""
    made = t.node.args[2]
    if made.op != "call_function" or name_of(made.target)[0] != "arange" or len(made.args) != 3 or made.args[0] != 0 or not isinstance(made.args[2], int):
        return None
    (count,), (bags,), size = ids.spec.known_dims, offsets.spec.known_dims, made.args[2]
    return size if equal(count, bags * size) is True else None
