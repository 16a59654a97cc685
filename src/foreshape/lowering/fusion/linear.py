"""A product with a bias, and the two products behind it, on the kernel that fits their size."""

from __future__ import annotations

from operator import methodcaller

from foreshape.dims import Size, product
from foreshape.kernels import products
from foreshape.lowering.fusion.graph import Graph, attr, dims_of, fused, spec_of
from foreshape.lowering.instruction import Argument, Instruction, Value
from foreshape.spec import FP32
from foreshape.values.torch_proxy import Late, torch

_MM, _ADDMM, _ONEDNN = Late(lambda: torch.mm), Late(lambda: torch.addmm), Late(products.onednn_linear)
_TRANSPOSED = methodcaller("t")


def apply(graph: Graph) -> bool:
    """Rewrite products of rows with a weight matrix: forward with their bias, backward one kernel per gradient."""
    changed = False
    for i in graph.instructions("mul", "matmul_v2"):
        if is_plain(i):
            _product(graph, i)
            changed = True
    for i in graph.instructions("mul_grad", "matmul_v2_grad"):
        if is_plain(i):
            _split_gradient(graph, i)
            changed = True
    return changed


def is_plain(i: Instruction) -> bool:
    """Whether it is the product of rows ``[..., k]`` with a matrix ``[k, n]``, both as they are."""
    x, y = dims_of(i.arguments[0]), dims_of(i.arguments[1])
    if x is None or y is None or len(x) < 2 or len(y) != 2:
        return False
    if i.op.type.startswith("matmul"):
        return not (attr(i, "trans_x") or attr(i, "trans_y"))
    return attr(i, "x_num_col_dims") == len(x) - 1 and attr(i, "y_num_col_dims") == 1


def elements_for_onednn(k: object, n: object, of: Argument) -> int | None:
    """From how many elements in ``[..., k]`` on oneDNN is the better kernel for its product with ``[k, n]``; None: never."""
    spec = spec_of(of)
    if not isinstance(k, int) or not isinstance(n, int) or spec is None or spec.dtype is not FP32 or not products.prefers_onednn() or k * n == 0:
        return None
    return -(-products.LARGE // n)


def is_fp32(of: Argument) -> bool:
    spec = spec_of(of)
    return spec is not None and spec.dtype is FP32


def rows_of(x: Argument) -> Size:
    """How many rows a product of rows has."""
    return product((dims_of(x) or ())[:-1])


def choice(large: str, small: str, argument: str, least: int) -> str:
    """The expression that takes ``large`` where the argument has at least ``least`` elements."""
    return f"({large} if {argument}.numel() >= {least} else {small})"


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
        return fused(like, small, arguments, [out], "product", in_rows=(0,), mm=_MM, addmm=_ADDMM)
    transposed = graph.derive("t", w, _TRANSPOSED) if graph.is_constant(w) and isinstance(w, Value) else "{1}.t()"
    large = f"{{onednn}}({{0}}, {transposed}, {'None' if bias is None else '{2}'}, 'none', (), '')"
    text, needs = choice(large, small, "{0}", least), lambda: products.workspace(rows_of(x), dims[0], dims[1], longer=True)
    return fused(like, text, arguments, [out], "product", workspace=needs, in_rows=(0,), mm=_MM, addmm=_ADDMM, onednn=_ONEDNN)


def _split_gradient(graph: Graph, i: Instruction) -> None:
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
        made.append(fused(i, text, [x, d], [d_w], "weight gradient", workspace=needs, in_rows=(0, 1) if flat else (), mm=products.mm))
    graph.replace(i, *made)


def _input_gradient(graph: Graph, i: Instruction, d: Argument, w: Argument, d_x: Argument, rank: int) -> Instruction:
    dims = dims_of(w)
    assert dims is not None
    transposed = graph.derive("t", w, _TRANSPOSED) if graph.is_constant(w) and isinstance(w, Value) else "{1}.t()"
    small = f"{{mm}}({{0}}, {transposed})" if rank == 2 else f"{{mm}}({{0}}.flatten(0, -2), {transposed}).unflatten(0, {{0}}.shape[:-1])"
    least = elements_for_onednn(dims[1], dims[0], w)
    if least is None:
        return fused(i, small, [d, w], [d_x], in_rows=(0,) if rank > 2 else (), mm=_MM)
    large = "{onednn}({0}, {1}, None, 'none', (), '')"
    text, needs = choice(large, small, "{0}", least), lambda: products.workspace(rows_of(d), dims[1], dims[0], longer=True)
    return fused(i, text, [d, w], [d_x], workspace=needs, in_rows=(0,), mm=_MM, onednn=_ONEDNN)
