"""Products of rows with a weight matrix, their gradients, and the step of gradient descent fused with a gradient.

Rows are ``[..., k]``, the matrix ``[k, n]``. oneDNN computes the large ones where it is the better kernel; see `foreshape.machine.kernels.products`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from math import prod

from foreshape.core.dims import Size, product
from foreshape.core.spec import FP32, Spec
from foreshape.core.values.torch_proxy import F, Lazy, torch
from foreshape.machine.kernels import products
from foreshape.machine.kernels.call_record import (
    BySize,
    NamedConstant,
    Negative,
    NumberedOperand,
    Part,
    StepName,
    Subscript,
    X,
    Y,
    Z,
    call,
    method,
    of_operands,
)
from foreshape.machine.kernels.fused import Effects, FusedKernel, Sizes, work_of_product
from foreshape.machine.kernels.instructions import PRODUCT, ROWS, Instruction
from foreshape.machine.kernels.view_calls import shape

_MM, _ADDMM = NamedConstant("mm", Lazy(lambda: torch.mm)), NamedConstant("addmm", Lazy(lambda: torch.addmm))
_LINEAR = NamedConstant("linear", Lazy(lambda: F.linear))
TRANSPOSED = method(Y, "t")
"""The transposed view of the second operand."""
_MATRICES = Effects(axis_order={0: (), 1: ()}, gap_bytes={0: 0, 1: 0})
"""Both matrices may be transposed, and have gaps between their rows; broadcast ones are copied."""
_LEAVE, _TURN_SECOND, _TURN_FIRST = 0, 1, 2
_ROWS_AND_MATRIX = Effects(contiguous=(0,), axis_order={1: ()}, gap_bytes={1: 0})


def forward(x: Spec, w: Spec, bias: bool, transposed: Part = TRANSPOSED) -> FusedKernel:
    """Return the product of rows ``x`` with ``w``, with a bias as the third operand.

    Args:
        transposed: the record of the transposed view of ``w``.
    """
    k, n = w.known_dims
    small = _unflattened(x, call(_ADDMM, Z, _rows_of(X, x), Y) if bias else call(_MM, _rows_of(X, x), Y))
    return _by_rows("product addmm mm", x, (k, n), w, small, _onednn(transposed, bias), _LEAVE, bias)


def forward_turned(x: Spec, w: Spec, bias: bool, transposed: Part) -> FusedKernel:
    """Return the product of rows ``x`` with the transposed ``w`` ``[n, k]``, with a bias as the third operand; ``transposed`` as for `forward`."""
    n, k = w.known_dims
    if x.rank != 2:
        small = of_operands(_LINEAR, 3 if bias else 2)
    else:
        small = call(_ADDMM, Z, X, transposed) if bias else call(_MM, X, transposed)
    return _by_rows("product addmm mm", x, (k, n), w, small, _onednn(Y, bias), _TURN_SECOND, bias)


def input_gradient(d: Spec, w: Spec, transposed: Part = TRANSPOSED, turned: bool = False) -> FusedKernel:
    """Return the gradient of the rows: the product of ``d`` ``[..., n]`` with ``w'``, or with ``w`` where it was ``turned`` before."""
    if turned:
        n, k = w.known_dims
        return _by_rows("{op} mm", d, (n, k), w, _unflattened(d, call(_MM, _rows_of(X, d), Y)), _onednn(transposed), _LEAVE)
    k, n = w.known_dims
    return _by_rows("{op} mm", d, (n, k), w, _unflattened(d, call(_MM, _rows_of(X, d), transposed)), _onednn(Y), _TURN_SECOND)


def weight_gradient(x: Spec, w: Spec) -> FusedKernel:
    """Return the gradient of the matrix: ``x' d``."""
    k, n = w.known_dims
    record = call(NamedConstant("mm", products.mm), method(_rows_of(X, x), "t"), _rows_of(Y, x))
    needs = (lambda: products.workspace(k, _rows(x), n, turned=True)) if w.dtype is FP32 else None
    effects, small = _of_weight_gradient(x, w), _small_gradient(-1, None, 1.0, 0.0)
    return FusedKernel("weight gradient mm", record, effects=effects, workspace=needs, work=work_of_product, small=small)


def descent(x: Spec, w: Spec, rate: str) -> FusedKernel:
    """Return ``w -= rate x' d``, of the operands x, d and w.

    It is done at once where the product is small, since oneDNN cannot add to memory.

    Args:
        rate: the name of the learning rate as a number.
    """
    (k, n), factors, by = w.known_dims, (method(_rows_of(X, x), "t"), _rows_of(Y, x)), Negative(StepName(rate))
    record: Part = method(Z, "addmm_", *factors, alpha=by)
    needs, least = None, _elements_for_onednn(k, n, w)
    if least is not None:
        record = BySize(call(NamedConstant("add_product_", products.add_product_), Z, *factors, by), record, least)
        needs = lambda: products.adding_workspace(k, _rows(x), n)  # noqa: E731
    effects = _of_weight_gradient(x, w)
    effects = Effects(in_place={0: 2}, contiguous=effects.contiguous, axis_order=effects.axis_order, gap_bytes=effects.gap_bytes)
    small = _small_gradient(2, rate, -1.0, 1.0)
    return FusedKernel("{op} add_product_", record, effects=effects, workspace=needs, work=work_of_product, small=small)


def may_be_large(w: Spec) -> bool:
    """Return whether some products with a matrix are made by oneDNN."""
    return _elements_for_onednn(w.known_dims[0], w.known_dims[1], w) is not None


def _by_rows(kind: str, x: Spec, dims: Sequence[Size], w: Spec, small: Part, large: Part, turned: int, bias: bool = False) -> FusedKernel:
    """Return a product of rows with a matrix of these dims, by BLAS or, where it is large, by oneDNN; ``turned`` tells how the matrix lies."""
    least = _elements_for_onednn(dims[0], dims[1], w)
    steps = partial(_small_product, turned, bias)
    if least is None:
        return FusedKernel(kind, small, effects=_MATRICES if x.rank == 2 else _ROWS_AND_MATRIX, work=work_of_product, small=steps)
    needs = lambda: products.workspace(_rows(x), dims[0], dims[1], longer=True)  # noqa: E731
    of_rows, of_matrix = products.copied(_rows(x), dims[0], dims[1])
    gaps = {0: of_rows, 1: of_matrix} if x.rank == 2 else {1: of_matrix}  # rows of more dims are copied whole to become a matrix, by BLAS, too
    effects = Effects(contiguous=(0,), axis_order={1: ()}, gap_bytes=gaps)
    return FusedKernel(f"{kind} onednn", BySize(large, small, least), effects=effects, workspace=needs, work=work_of_product, small=steps)


def _small_product(turned: int, bias: bool, of: Sizes, made: Sizes) -> list[Instruction] | None:
    """Return the instructions of a product of rows."""
    x, out = of[0], made[0]
    if not x or not out:
        return None
    dims = (int(prod(x[:-1])), int(out[-1]), int(x[-1]), turned)
    begin = [Instruction(ROWS, (2, None, -1), dims[:2])] if bias else []
    return [*begin, Instruction(PRODUCT, (0, 1, -1), dims, (1.0, float(bias)))]


def _small_gradient(out: int, rate: str | None, by: float, kept: float) -> Callable[[Sizes, Sizes], list[Instruction] | None]:
    """Return the rule for the instructions of a matrix' gradient, times the number ``rate``, in an operand or a result."""

    def instructions(of: Sizes, made: Sizes) -> list[Instruction] | None:
        x, d = of[:2]
        if not x or not d:
            return None
        return [Instruction(PRODUCT, (0, 1, out, rate), (int(x[-1]), int(d[-1]), int(prod(x[:-1])), _TURN_FIRST), (by, kept))]

    return instructions


def _of_weight_gradient(x: Spec, w: Spec) -> Effects:
    if x.rank != 2:
        return Effects(contiguous=(0, 1))
    gap = products.copied(w.known_dims[0], _rows(x), w.known_dims[1])[1] if w.dtype is FP32 else 0
    return Effects(axis_order={0: (), 1: ()}, gap_bytes={0: 0, 1: gap})


def _rows_of(operand: NumberedOperand, x: Spec) -> Part:
    """Return an operand with as many dims as x as a matrix."""
    return operand if x.rank == 2 else method(operand, "flatten", 0, -2)


def _unflattened(x: Spec, rows: Part) -> Part:
    """Return a matrix with the outer dims of x, the first operand."""
    return rows if x.rank == 2 else method(rows, "unflatten", 0, Subscript(shape(), slice(None, -1)))


def _onednn(weight: Part, bias: bool = False) -> Part:
    return call(NamedConstant("onednn", Lazy(products.onednn_linear)), X, weight, Z if bias else None, "none", (), "")


def _rows(x: Spec) -> Size:
    return product(x.known_dims[:-1])


def _elements_for_onednn(k: Size, n: Size, w: Spec) -> int | None:
    """Return from how many elements in ``[..., k]`` on oneDNN is the better kernel for its product with ``[k, n]``; None for never."""
    if not isinstance(k, int) or not isinstance(n, int) or w.dtype is not FP32 or not products.prefers_onednn() or k * n == 0:
        return None
    return -(-products.LARGE // n)
