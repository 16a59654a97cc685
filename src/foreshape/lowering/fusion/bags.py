"""Bags: a lookup and the sum of its rows in one kernel, whose gradient keeps the row of each bag once."""

from __future__ import annotations

from foreshape.kernels.bags import Bag
from foreshape.lowering.fusion.graph import Graph, attr, dims_of, fused
from foreshape.lowering.instruction import Argument, Instruction, Value

_POOLS = {"reduce_sum": "SUM", "reduce_mean": "AVERAGE"}


def apply(graph: Graph) -> bool:
    """Rewrite lookups that only a sum, mean or sequence_pool of each example's rows reads, with their gradient, sparse or not."""
    changed = False
    for i in graph.instructions("lookup_table_v2", "lookup_table"):
        changed |= _rewrite(graph, i)
    return changed


def _rewrite(graph: Graph, i: Instruction) -> bool:
    table, ids = i.arguments
    out = i.results[0]
    if not isinstance(out, Value) or graph.is_fixed(out):
        return False
    readers = graph.readers(out)
    pool = next((r for r in readers if not r.op.type.endswith("_grad")), None)
    how = _pooling(pool, out) if pool is not None else None
    back = [r for r in readers if r is not pool]
    if pool is None or how is None or pool.expression is not None or any(not graph.unused(r) for r in pool.results[1:]) or len(back) > 1:
        return False
    grad = _lookup_gradient(graph, back[0], pool, i) if back else None
    if back and grad is None:
        return False
    bag = Bag(how, attr(i, "padding_idx"), i.op.type)
    offsets: list[Argument] = [out.lod] if out.lod is not None else []
    given = ", {{{at}}}" if offsets else ""
    text = f"{{bag}}({{0}}, {{1}}{given.format(at=2)})"
    graph.remove([pool])
    graph.replace(i, fused(i, text, [table, ids, *offsets], [pool.results[0]], bag=bag.forward))
    if grad is not None:
        d_bag = back[0].arguments[-1]
        dense = "" if attr(grad, "is_sparse") else ".to_dense()"
        text = f"{{rows}}({{0}}, {{1}}, {{2}}.shape[0]{given.format(at=3)}){dense}"
        graph.remove(back)
        graph.replace(grad, fused(grad, text, [ids, d_bag, table, *offsets], [grad.results[0]], "bag gradient", rows=bag.backward))
    return True


def _pooling(pool: Instruction, out: Value) -> str | None:
    """How an op pools the rows of each example of a lookup's result; None where it does something else."""
    rank = len(dims_of(out) or ())
    if pool.op.type == "sequence_pool":
        how: str = attr(pool, "pooltype")
        return how if how in ("SUM", "AVERAGE", "SQRT") and attr(pool, "pad_value") == 0.0 and rank == 2 else None
    if pool.op.type not in _POOLS or out.lod is not None or rank != 3:
        return None
    plain = not attr(pool, "keep_dim") and not attr(pool, "reduce_all") and attr(pool, "out_dtype") < 0
    return _POOLS[pool.op.type] if plain and tuple(attr(pool, "dim")) in ((1,), (-2,)) else None


def _lookup_gradient(graph: Graph, back: Instruction, pool: Instruction, i: Instruction) -> Instruction | None:
    """The gradient op of the lookup, where it alone reads what the pooling's gradient gives."""
    if back.op.type != f"{pool.op.type}_grad" or back.expression is not None:
        return None
    grad = graph.only_reader(back.results[0])
    same = grad is not None and grad.op.type == f"{i.op.type}_grad" and grad.arguments[1] is back.results[0] and grad.arguments[2] is i.arguments[0]
    return grad if same and grad is not None and grad.arguments[0] is i.arguments[1] else None
