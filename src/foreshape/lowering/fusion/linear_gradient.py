"""The two products behind a product of rows with a weight matrix, each a kernel of its own.

Before: ``d_x, d_w = product_gradient(x, w, d_out)`` of ``out = x w``
After: ``d_x = mm(d_out, w')``, or oneDNN's linear; ``d_w = mm(x', d_out)``; each only where somebody reads it
"""

from __future__ import annotations

from foreshape.kernels import products
from foreshape.lowering.fusion.graph import Graph, dims_of, fused
from foreshape.lowering.fusion.products import (
    ANY_ORDER,
    MM,
    NO_COPIES,
    ONEDNN,
    TRANSPOSED,
    choice,
    elements_for_onednn,
    gaps_of,
    gradients_of_rows,
    is_fp32,
    rows_of,
)
from foreshape.lowering.instruction import Argument, Instruction, Value


def apply(graph: Graph) -> int:
    return sum(_split(graph, i) for i in gradients_of_rows(graph))


def _split(graph: Graph, i: Instruction) -> bool:
    x, w, d = i.arguments
    d_x, d_w = i.results
    rank = len(dims_of(x) or ())
    made: list[Instruction] = []
    if not graph.unused(d_x):
        made.append(_input_gradient(graph, i, d, w, d_x, rank))
    if not graph.unused(d_w):
        flat = "" if rank == 2 else ".flatten(0, -2)"
        of = dims_of(w)
        assert of is not None
        needs = (lambda: products.workspace(of[0], rows_of(x), of[1], turned=True)) if is_fp32(w) else None
        text = f"{{mm}}({{0}}{flat}.t(), {{1}}{flat})"
        rows, order = ((0, 1), None) if flat else ((), ANY_ORDER)
        gaps = None if flat else {0: 0, 1: products.copied(of[0], rows_of(x), of[1])[1] if is_fp32(w) else 0}
        made.append(fused(i, text, [x, d], [d_w], "weight gradient", workspace=needs, in_rows=rows, in_order=order, gaps=gaps, mm=products.mm))
    return graph.replace({i: made})


def _input_gradient(graph: Graph, i: Instruction, d: Argument, w: Argument, d_x: Argument, rank: int) -> Instruction:
    dims = dims_of(w)
    assert dims is not None
    transposed = graph.derive("t", w, TRANSPOSED) if graph.is_constant(w) and isinstance(w, Value) else "{1}.t()"
    small = f"{{mm}}({{0}}, {transposed})" if rank == 2 else f"{{mm}}({{0}}.flatten(0, -2), {transposed}).unflatten(0, {{0}}.shape[:-1])"
    least = elements_for_onednn(dims[1], dims[0], w)
    if least is None:
        if rank > 2:
            return fused(i, small, [d, w], [d_x], in_rows=(0,), in_order={1: ()}, gaps={1: 0}, mm=MM)
        return fused(i, small, [d, w], [d_x], in_order=ANY_ORDER, gaps=NO_COPIES, mm=MM)
    large = "{onednn}({0}, {1}, None, 'none', (), '')"
    text, needs = choice(large, small, "{0}", least), lambda: products.workspace(rows_of(d), dims[1], dims[0], longer=True)
    gaps = gaps_of(d, (dims[1], dims[0]))
    return fused(i, text, [d, w], [d_x], workspace=needs, in_rows=(0,), in_order={1: ()}, gaps=gaps, mm=MM, onednn=ONEDNN)
