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
from foreshape.machine.kernels.fused import Effects, FusedKernel, Sizes, work_of_product
from foreshape.machine.kernels.instructions import PRODUCT, ROWS, Instruction

_MM, _ADDMM, _ONEDNN = Lazy(lambda: torch.mm), Lazy(lambda: torch.addmm), Lazy(products.onednn_linear)
_LINEAR = Lazy(lambda: F.linear)
_MATRICES = Effects(axis_order={0: (), 1: ()}, gap_bytes={0: 0, 1: 0})
"""Both matrices may be transposed, and have gaps between their rows; broadcast ones are copied."""
_LEAVE, _TURN_SECOND, _TURN_FIRST = 0, 1, 2
_ROWS_AND_MATRIX = Effects(contiguous=(0,), axis_order={1: ()}, gap_bytes={1: 0})


def forward(x: Spec, w: Spec, bias: bool, transposed: str = "{1}.t()") -> FusedKernel:
    """Return the product of rows ``x`` with ``w``, with a bias as the third operand.

    Args:
        transposed: the text of the transposed view of ``w``.
    """
    k, n = w.known_dims
    rows = "{0}" if x.rank == 2 else "{0}.flatten(0, -2)"
    small = (f"{{mm}}({rows}, {{1}})" if not bias else f"{{addmm}}({{2}}, {rows}, {{1}})") + _unflattened(x)
    large = f"{{onednn}}({{0}}, {transposed}, {'{2}' if bias else 'None'}, 'none', (), '')"
    return _by_rows("product addmm mm", x, (k, n), w, small, large, _LEAVE, bias)


def forward_turned(x: Spec, w: Spec, bias: bool, transposed: str) -> FusedKernel:
    """Return the product of rows ``x`` with the transposed ``w`` ``[n, k]``, with a bias as the third operand; ``transposed`` as for `forward`."""
    n, k = w.known_dims
    if x.rank != 2:
        small = "{linear}({0}, {1}, {2})" if bias else "{linear}({0}, {1})"
    else:
        small = f"{{addmm}}({{2}}, {{0}}, {transposed})" if bias else f"{{mm}}({{0}}, {transposed})"
    large = f"{{onednn}}({{0}}, {{1}}, {'{2}' if bias else 'None'}, 'none', (), '')"
    return _by_rows("product addmm mm", x, (k, n), w, small, large, _TURN_SECOND, bias)


def input_gradient(d: Spec, w: Spec, transposed: str = "{1}.t()", turned: bool = False) -> FusedKernel:
    """Return the gradient of the rows: the product of ``d`` ``[..., n]`` with ``w'``, or with ``w`` where it was ``turned`` before."""
    if turned:
        n, k = w.known_dims
        small = "{mm}({0}, {1})" if d.rank == 2 else f"{{mm}}({{0}}.flatten(0, -2), {{1}}){_unflattened(d)}"
        return _by_rows("{op} mm", d, (n, k), w, small, f"{{onednn}}({{0}}, {transposed}, None, 'none', (), '')", _LEAVE)
    k, n = w.known_dims
    small = f"{{mm}}({{0}}, {transposed})" if d.rank == 2 else f"{{mm}}({{0}}.flatten(0, -2), {transposed}){_unflattened(d)}"
    return _by_rows("{op} mm", d, (n, k), w, small, "{onednn}({0}, {1}, None, 'none', (), '')", _TURN_SECOND)


def weight_gradient(x: Spec, w: Spec) -> FusedKernel:
    """Return the gradient of the matrix: ``x' d``."""
    (k, n), flat = w.known_dims, "" if x.rank == 2 else ".flatten(0, -2)"
    text = f"{{mm}}({{0}}{flat}.t(), {{1}}{flat})"
    needs = (lambda: products.workspace(k, _rows(x), n, turned=True)) if w.dtype is FP32 else None
    effects, small = _of_weight_gradient(x, w), _small_gradient(-1, None, 1.0, 0.0)
    return FusedKernel("weight gradient mm", text, {"mm": products.mm}, effects=effects, workspace=needs, work=work_of_product, small=small)


def descent(x: Spec, w: Spec, rate: str) -> FusedKernel:
    """Return ``w -= rate x' d``, of the operands x, d and w.

    It is done at once where the product is small, since oneDNN cannot add to memory.

    Args:
        rate: the name of the learning rate as a number.
    """
    (k, n), flat = w.known_dims, "" if x.rank == 2 else ".flatten(0, -2)"
    a, b = f"{{0}}{flat}.t()", f"{{1}}{flat}"
    text, needs, least = f"{{2}}.addmm_({a}, {b}, alpha=-{rate})", None, _elements_for_onednn(k, n, w)
    if least is not None:
        text = _choice(f"{{add_product_}}({{2}}, {a}, {b}, -{rate})", text, least)
        needs = lambda: products.adding_workspace(k, _rows(x), n)  # noqa: E731
    effects = _of_weight_gradient(x, w)
    effects = Effects(in_place={0: 2}, contiguous=effects.contiguous, axis_order=effects.axis_order, gap_bytes=effects.gap_bytes)
    small, constants = _small_gradient(2, rate, -1.0, 1.0), {"add_product_": products.add_product_}
    return FusedKernel("{op} add_product_", text, constants, effects=effects, workspace=needs, work=work_of_product, small=small)


def may_be_large(w: Spec) -> bool:
    """Return whether some products with a matrix are made by oneDNN."""
    return _elements_for_onednn(w.known_dims[0], w.known_dims[1], w) is not None


def _by_rows(kind: str, x: Spec, dims: Sequence[Size], w: Spec, small: str, large: str, turned: int, bias: bool = False) -> FusedKernel:
    """Return a product of rows with a matrix of these dims, by BLAS or, where it is large, by oneDNN; ``turned`` tells how the matrix lies."""
    least = _elements_for_onednn(dims[0], dims[1], w)
    constants = {name: made for name, made in (("mm", _MM), ("addmm", _ADDMM), ("linear", _LINEAR)) if f"{{{name}}}" in small}
    steps = partial(_small_product, turned, bias)
    if least is None:
        return FusedKernel(kind, small, constants, effects=_MATRICES if x.rank == 2 else _ROWS_AND_MATRIX, work=work_of_product, small=steps)
    needs = lambda: products.workspace(_rows(x), dims[0], dims[1], longer=True)  # noqa: E731
    of_rows, of_matrix = products.copied(_rows(x), dims[0], dims[1])
    gaps = {0: of_rows, 1: of_matrix} if x.rank == 2 else {1: of_matrix}  # rows of more dims are copied whole to become a matrix, by BLAS, too
    effects = Effects(contiguous=(0,), axis_order={1: ()}, gap_bytes=gaps)
    constants = {**constants, "onednn": _ONEDNN}
    return FusedKernel(f"{kind} onednn", _choice(large, small, least), constants, effects=effects, workspace=needs, work=work_of_product, small=steps)


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


def _unflattened(x: Spec) -> str:
    return "" if x.rank == 2 else ".unflatten(0, {0}.shape[:-1])"


def _rows(x: Spec) -> Size:
    return product(x.known_dims[:-1])


def _elements_for_onednn(k: Size, n: Size, w: Spec) -> int | None:
    """Return from how many elements in ``[..., k]`` on oneDNN is the better kernel for its product with ``[k, n]``; None for never."""
    if not isinstance(k, int) or not isinstance(n, int) or w.dtype is not FP32 or not products.prefers_onednn() or k * n == 0:
        return None
    return -(-products.LARGE // n)


def _choice(large: str, small: str, least: int) -> str:
    """Return the text for ``large`` if the first operand has at least so many elements."""
    return f"({large} if {{0}}.numel() >= {least} else {small})"
