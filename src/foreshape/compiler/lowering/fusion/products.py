"""Products of rows with a weight matrix: finding them, and the kernel for their size. Shared by rewrites of products; no rewrite."""

from __future__ import annotations

from operator import methodcaller
from typing import ClassVar

from foreshape.compiler.lowering.fusion.graph import Graph, dims_of, spec_of
from foreshape.compiler.lowering.kernel_calls import Argument, OpCall, Value
from foreshape.core.data_class import data_class
from foreshape.core.dims import Size, product
from foreshape.language.operator.computations import Computation, FlattenedProduct, MatrixProduct
from foreshape.machine.kernels.call_record import Part, StepName
from foreshape.machine.kernels.linear import TRANSPOSED


@data_class(frozen=True)
class WeightGradient(Computation):
    """The gradient of a matrix in a product of rows: X0' X1. Rewrites make it of the product's gradient."""

    operands: ClassVar[int] = 2


def transposed_view(graph: Graph, w: Argument) -> Part:
    """Return the record of the transposed view of a matrix; made once, where the matrix stays the same tensor."""
    return StepName(graph.derive("t", w, methodcaller("t"))) if graph.is_constant(w) and isinstance(w, Value) else TRANSPOSED


def rows_of(x: Argument) -> Size:
    """Return how many rows a product of rows has."""
    return product((dims_of(x) or ())[:-1])


def products_of_rows(graph: Graph) -> list[tuple[OpCall, bool]]:
    """Return the products of rows ``[..., k]`` with a matrix ``[k, n]``, and with one ``[n, k]`` that is turned, which is True beside them."""
    products = [*graph.computing(FlattenedProduct), *graph.computing(MatrixProduct)]
    return sorted([(i, _is_turned(computation)) for i, computation in products if _is_of_rows(i, computation)], key=lambda pair: graph.position(pair[0]))


def gradients_of_rows(graph: Graph) -> list[tuple[OpCall, bool]]:
    """Return the gradient ops of such products, without complex numbers, which they conjugate."""
    gradients = [*graph.undoing(FlattenedProduct), *graph.undoing(MatrixProduct)]
    row_products = [(i, _is_turned(computation)) for i, computation in gradients if _is_of_rows(i, computation) and not _is_complex(i.arguments[0])]
    return sorted(row_products, key=lambda pair: graph.position(pair[0]))


def _is_turned(computation: FlattenedProduct | MatrixProduct) -> bool:
    return isinstance(computation, MatrixProduct) and computation.y_transposed


def _is_complex(value: Argument) -> bool:
    spec = spec_of(value)
    return spec is not None and spec.dtype is not None and spec.dtype.is_complex


def _is_of_rows(i: OpCall, computation: FlattenedProduct | MatrixProduct) -> bool:
    x, y = dims_of(i.arguments[0]), dims_of(i.arguments[1])
    if x is None or y is None or len(x) < 2 or len(y) != 2:
        return False
    if isinstance(computation, MatrixProduct):
        return not computation.x_transposed
    return computation.x_rows == len(x) - 1 and computation.y_rows == 1
