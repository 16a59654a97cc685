"""A product of rows with a weight matrix, with its bias, on the kernel that fits its size.

Before: ``y = x w`` of rows ``[..., k]`` with a matrix ``[k, n]``; ``out = y + b``, where ``b`` is ``[n]`` (or nothing)
After: ``out = addmm(b, x, w)`` (``mm``), or oneDNN's linear where the product is large and oneDNN the better choice
Unless: something else reads y, which then gets no bias
"""

from __future__ import annotations

from foreshape.kernels import products
from foreshape.lowering.fusion.graph import Graph, computes, dims_of, fused
from foreshape.lowering.fusion.products import ANY_ORDER, MM, NO_COPIES, ONEDNN, TRANSPOSED, choice, elements_for_onednn, gaps_of, products_of_rows, rows_of
from foreshape.lowering.instruction import Argument, Instruction, Value
from foreshape.operator.computations import Sum
from foreshape.values.torch_proxy import Lazy, torch

_ADDMM = Lazy(lambda: torch.addmm)


def apply(graph: Graph) -> int:
    return sum(_product(graph, i) for i in products_of_rows(graph))


def _product(graph: Graph, i: Instruction) -> bool:
    x, w = i.arguments
    out = i.results[0]
    add = graph.only_reader(out)
    if add is not None and _adds_bias(add, out):  # the product's place is that of the sum: the bias may be made between the two
        made = _forward(graph, add, x, w, add.arguments[1], add.results[0])
        if graph.replace({i: (), add: [made]}):
            return True
    return graph.replace({i: [_forward(graph, i, x, w, None, out)]})


def _adds_bias(add: Instruction, out: Argument) -> bool:
    total, wide = computes(add, Sum), dims_of(out)
    if total is None or not wide or add.arguments[0] is not out:
        return False
    shape = dims_of(add.arguments[1])
    return shape is not None and len(shape) == 1 and shape[0] == wide[-1] and total.axis in (-1, len(wide) - 1)


def _forward(graph: Graph, like: Instruction, x: Argument, w: Argument, bias: Argument, out: Argument) -> Instruction:
    dims, rank = dims_of(w), len(dims_of(x) or ())
    assert dims is not None
    arguments = [x, w] if bias is None else [x, w, bias]
    rows = "{0}" if rank == 2 else "{0}.flatten(0, -2)"
    back = "" if rank == 2 else ".unflatten(0, {0}.shape[:-1])"
    small = (f"{{mm}}({rows}, {{1}})" if bias is None else f"{{addmm}}({{2}}, {rows}, {{1}})") + back
    least = elements_for_onednn(dims[0], dims[1], w)
    if least is None:
        if rank > 2:
            return fused(like, small, arguments, [out], "product", in_rows=(0,), in_order={1: ()}, gaps={1: 0}, mm=MM, addmm=_ADDMM)
        return fused(like, small, arguments, [out], "product", in_order=ANY_ORDER, gaps=NO_COPIES, mm=MM, addmm=_ADDMM)
    transposed = graph.derive("t", w, TRANSPOSED) if graph.is_constant(w) and isinstance(w, Value) else "{1}.t()"
    large = f"{{onednn}}({{0}}, {transposed}, {'None' if bias is None else '{2}'}, 'none', (), '')"
    text, needs = choice(large, small, "{0}", least), lambda: products.workspace(rows_of(x), dims[0], dims[1], longer=True)
    gaps = gaps_of(x, dims)
    return fused(
        like, text, arguments, [out], "product", workspace=needs, in_rows=(0,), in_order={1: ()}, gaps=gaps, mm=MM, addmm=_ADDMM, onednn=ONEDNN
    )  # fmt: skip
