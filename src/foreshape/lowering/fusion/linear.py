"""A product with a bias on the kernel that fits its size."""

from __future__ import annotations

from foreshape.kernels import products
from foreshape.lowering.fusion.graph import Graph, attr, dims_of, fused
from foreshape.lowering.fusion.products import MM, ONEDNN, TRANSPOSED, choice, elements_for_onednn, is_plain, rows_of
from foreshape.lowering.instruction import Argument, Instruction, Value
from foreshape.values.torch_proxy import Late, torch

_ADDMM = Late(lambda: torch.addmm)


def apply(graph: Graph) -> bool:
    """Rewrite products of rows with a weight matrix, with their bias where there is one."""
    changed = False
    for i in graph.instructions("mul", "matmul_v2"):
        if is_plain(i):
            _product(graph, i)
            changed = True
    return changed


def _product(graph: Graph, i: Instruction) -> None:
    x, w = i.arguments
    out, bias, like, gone = i.results[0], None, i, list[Instruction]()
    add = graph.only_reader(out)
    wide = dims_of(out)
    if add is not None and wide is not None and add.op.type == "elementwise_add" and add.expression is None and add.arguments[0] is out:
        shape = dims_of(add.arguments[1])
        if shape is not None and len(shape) == 1 and shape[0] == wide[-1] and attr(add, "axis") in (-1, len(wide) - 1):
            # The product's place is that of the sum: the bias may be made between the two.
            bias, out, like, gone = add.arguments[1], add.results[0], add, [i]
    graph.remove(gone)
    graph.replace(like, _forward(graph, like, x, w, bias, out))


def _forward(graph: Graph, like: Instruction, x: Argument, w: Argument, bias: Argument, out: Argument) -> Instruction:
    dims, rank = dims_of(w), len(dims_of(x) or ())
    assert dims is not None
    arguments = [x, w] if bias is None else [x, w, bias]
    rows = "{0}" if rank == 2 else "{0}.flatten(0, -2)"
    back = "" if rank == 2 else ".unflatten(0, {0}.shape[:-1])"
    small = (f"{{mm}}({rows}, {{1}})" if bias is None else f"{{addmm}}({{2}}, {rows}, {{1}})") + back
    least = elements_for_onednn(dims[0], dims[1], w)
    if least is None:
        return fused(like, small, arguments, [out], "product", in_rows=(0,), mm=MM, addmm=_ADDMM)
    transposed = graph.derive("t", w, TRANSPOSED) if graph.is_constant(w) and isinstance(w, Value) else "{1}.t()"
    large = f"{{onednn}}({{0}}, {transposed}, {'None' if bias is None else '{2}'}, 'none', (), '')"
    text, needs = choice(large, small, "{0}", least), lambda: products.workspace(rows_of(x), dims[0], dims[1], longer=True)
    return fused(like, text, arguments, [out], "product", workspace=needs, in_rows=(0,), mm=MM, addmm=_ADDMM, onednn=ONEDNN)
