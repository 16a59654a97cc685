"""A product of rows with a weight matrix, with its bias, on the kernel for its size.

Before: ``y = x w`` of rows ``[..., k]`` with a matrix ``[k, n]``, or ``y = x w'`` with one ``[n, k]``; ``out = y + b``, where ``b`` is ``[n]`` (or nothing)
After: ``out = addmm(b, x, w)`` (``mm``, ``linear``), or oneDNN's linear where the product is large and oneDNN the better choice
Unless: something else reads y; then the bias stays a call of its own
"""

from __future__ import annotations

from foreshape.compiler.lowering.fusion.graph import Graph, computes, dims_of, fused, spec_of
from foreshape.compiler.lowering.fusion.products import products_of_rows, transposed_view
from foreshape.compiler.lowering.fusion.rewrite_order import RewriteStage, rewrite
from foreshape.compiler.lowering.kernel_calls import Argument, KernelCall
from foreshape.language.operator.computations import FlattenedProduct, MatrixProduct, Sum
from foreshape.machine.kernels import linear


@rewrite(
    RewriteStage.FUSE,
    begins=(FlattenedProduct, MatrixProduct),
    after={
        "bias_gradient": "lets the sum alone read the product",
        "frozen_values": "computes products of constants alone",
        "frozen_linear": "takes more steps behind a product of constants",
    },
)
def apply(graph: Graph) -> int:
    return sum(_product(graph, i, transposed) for i, transposed in products_of_rows(graph))


def _product(graph: Graph, i: KernelCall, transposed: bool) -> bool:
    x, w = i.arguments
    out = i.results[0]
    add = graph.only_reader(out)
    if add is not None and _adds_bias(add, out):  # the product's place is the sum's: the bias may be made between the two
        call = _forward(graph, add, x, w, add.arguments[1], add.results[0], transposed)
        if graph.replace({i: (), add: [call]}):
            return True
    elif graph.attempts is not None:
        _note(graph, out, add)
    return graph.replace({i: [_forward(graph, i, x, w, None, out, transposed)]})


def _note(graph: Graph, out: Argument, add: KernelCall | None) -> None:
    """Note for the sums of a product why they stay calls of their own."""
    for reader in graph.readers(out):
        if add is None and _adds_bias(reader, out):
            graph.shared(reader, out, reader)
        elif computes(reader, Sum) is not None:
            graph.stopped(reader, "it adds no vector with a number for each column of the product, as its second operand")


def _adds_bias(add: KernelCall, out: Argument) -> bool:
    total, wide = computes(add, Sum), dims_of(out)
    if total is None or not wide or add.arguments[0] is not out:
        return False
    shape = dims_of(add.arguments[1])
    return shape is not None and len(shape) == 1 and shape[0] == wide[-1] and total.axis in (-1, len(wide) - 1)


def _forward(graph: Graph, like: KernelCall, x: Argument, w: Argument, bias: Argument, out: Argument, transposed: bool) -> KernelCall:
    of_x, of_w = spec_of(x), spec_of(w)
    assert of_x is not None and of_w is not None
    if transposed:
        kernel = linear.forward_turned(of_x, of_w, bias is not None, transposed_view(graph, w) if of_x.rank == 2 else None)
    else:
        kernel = linear.forward(of_x, of_w, bias is not None, transposed_view(graph, w) if linear.may_be_large(of_w) else None)
    return fused(like, kernel, [x, w] if bias is None else [x, w, bias], [out])
