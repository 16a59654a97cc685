"""Products of rows with a weight matrix: which they are, and the kernel that fits their size. What rewrites of products share; no rewrite."""

from __future__ import annotations

from collections.abc import Sequence
from operator import methodcaller

from foreshape.dims import Size, product
from foreshape.kernels import products
from foreshape.lowering.fusion.graph import Graph, dims_of, spec_of
from foreshape.lowering.instruction import Argument, Instruction
from foreshape.operator.computations import FlattenedProduct, MatrixProduct
from foreshape.spec import FP32
from foreshape.values.torch_proxy import Lazy, torch

MM, ONEDNN = Lazy(lambda: torch.mm), Lazy(products.onednn_linear)
TRANSPOSED = methodcaller("t")
ANY_ORDER: dict[int, tuple[int, ...]] = {0: (), 1: ()}
"""Both matrices may be transposed views; what is broadcast is written out."""
NO_COPIES: dict[int, Size] = {0: 0, 1: 0}
"""BLAS takes matrices with gaps between their rows."""


def products_of_rows(graph: Graph) -> list[Instruction]:
    """The products of rows ``[..., k]`` with a matrix ``[k, n]``, both as they are."""
    found = [*graph.computing(FlattenedProduct), *graph.computing(MatrixProduct)]
    return sorted([i for i, of in found if _is_of_rows(i, of)], key=graph.position)


def gradients_of_rows(graph: Graph) -> list[Instruction]:
    """The gradient ops of such products, but of complex numbers, which those conjugate."""
    found = [*graph.undoing(FlattenedProduct), *graph.undoing(MatrixProduct)]
    return sorted([i for i, of in found if _is_of_rows(i, of) and not _is_complex(i.arguments[0])], key=graph.position)


def _is_complex(of: Argument) -> bool:
    spec = spec_of(of)
    return spec is not None and spec.dtype is not None and spec.dtype.is_complex


def _is_of_rows(i: Instruction, of: FlattenedProduct | MatrixProduct) -> bool:
    x, y = dims_of(i.arguments[0]), dims_of(i.arguments[1])
    if x is None or y is None or len(x) < 2 or len(y) != 2:
        return False
    if isinstance(of, MatrixProduct):
        return not (of.x_transposed or of.y_transposed)
    return of.x_rows == len(x) - 1 and of.y_rows == 1


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


def gaps_of(x: Argument, dims: Sequence[Size]) -> dict[int, Size]:
    """The bytes of the copies of rows ``[..., k]`` and of the matrix ``[k, n]`` of these dims, where they lie in order with gaps.

    Rows of more than two dims are copied whole to become a matrix, by BLAS, too.
    """
    of_rows, of_matrix = products.copied(rows_of(x), *dims)
    return {0: of_rows, 1: of_matrix} if len(dims_of(x) or ()) == 2 else {1: of_matrix}


def choice(large: str, small: str, argument: str, least: int) -> str:
    """The expression that takes ``large`` where the argument has at least ``least`` elements."""
    return f"({large} if {argument}.numel() >= {least} else {small})"
