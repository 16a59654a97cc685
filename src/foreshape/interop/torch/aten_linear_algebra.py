"""Import of decompositions and solutions of matrices."""

from __future__ import annotations

from typing import Any, Final

from foreshape import layer
from foreshape.interop.refused import Refused
from foreshape.interop.torch.aten_rules import aten
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.program import Variable
from foreshape.spec import FP32, FP64


@aten("linalg_inv", "inverse")
def _inverse(t: TorchCall, x: Variable) -> Any:
    return layer.inverse(x)


@aten("linalg_det", "det")
def _determinant(t: TorchCall, x: Variable) -> Any:
    return layer.det(x)


@aten("linalg_solve")
def _solve(t: TorchCall, x: Variable, y: Variable, *, left: bool = True) -> Any:
    if not left:
        raise Refused("a matrix on the right")
    return layer.solve(x, y)


@aten("linalg_cholesky", "cholesky")
def _cholesky(t: TorchCall, x: Variable, upper: bool = False) -> Any:
    return layer.cholesky(x, upper)


@aten("linalg_inv_ex", "linalg_cholesky_ex", "_linalg_solve_ex")
def _with_errors(t: TorchCall, x: Variable, *given: Any, left: bool = True, upper: bool = False, **_: Any) -> Any:
    """Return the result, and nothing for the marks of errors: here errors stop the run."""
    if t.name == "linalg_inv_ex":
        return [layer.inverse(x), None]
    if t.name == "_linalg_solve_ex":
        return [_solve(t, x, given[0], left=left), None, None, None]
    return [layer.cholesky(x, upper), None]


@aten("_linalg_svd", "_linalg_eigh", "_linalg_det", "_linalg_slogdet")
def _private(t: TorchCall, x: Variable, first: Any = False, *_: Any, **more: Any) -> Any:
    """Return results as torch's operators of the same names with none left out."""
    if t.name == "_linalg_det":
        return [layer.det(x), None, None]
    if t.name == "_linalg_slogdet":
        return [*layer.unstack(layer.slogdet(x), 0), None, None]
    if t.name == "_linalg_svd":
        return list(layer.svd(x, bool(more.get("full_matrices", first))))
    return list(layer.eigh(x, str(first or "L").upper() == "U"))


@aten("linalg_svd")
def _svd(t: TorchCall, x: Variable, full_matrices: bool = True, **_: Any) -> Any:
    return list(layer.svd(x, full_matrices))


@aten("linalg_svdvals")
def _singular_values(t: TorchCall, x: Variable, **_: Any) -> Any:
    return layer.svd(x)[1]


@aten("linalg_qr")
def _qr(t: TorchCall, x: Variable, mode: str = "reduced") -> Any:
    return list(layer.qr(x, mode))


@aten("linalg_eigh")
def _eigh(t: TorchCall, x: Variable, uplo: str = "L") -> Any:
    return list(layer.eigh(x, uplo.upper() == "U"))


@aten("linalg_matrix_power", "matrix_power")
def _power(t: TorchCall, x: Variable, n: int) -> Any:
    return layer.matrix_power(x, n)


_TERMS: Final = 14


@aten("linalg_matrix_exp", "matrix_exp")
def _exponential(t: TorchCall, x: Variable) -> Any:
    """Return the series of matrices halved until their norm is at most a half, squared as often: (Moler and Van Loan, 2003, method 3)."""
    of, rank = x.spec.known_dtype, t.rank(x)
    if of not in (FP32, FP64):
        raise Refused(f"the exponential of matrices of {of}")
    sums = layer.reduce_max(layer.reduce_sum(layer.abs(x), [rank - 2], True), [rank - 1], True)
    times = layer.ceil(layer.log2(layer.scale(layer.maximum(sums, t.tensor(0.5, of)), 2.0)))
    by = t.op("elementwise_pow", X=t.tensor(0.5, of), Y=times)
    times.stop_gradient = by.stop_gradient = True
    halved = layer.multiply(x, by)
    unit = layer.fill_like(halved, 0.0)
    unit = layer.add(unit, layer.eye(int(x.spec.known_dims[-1]), None, of))  # pyright: ignore[reportArgumentType]
    made = unit
    for n in range(_TERMS, 0, -1):
        made = layer.add(unit, t.scale(t.op("matmul_v2", X=halved, Y=made), 1.0 / n))

    def left(at: Variable, _: Variable) -> Variable:
        return layer.less_than(at, layer.reshape(layer.reduce_max(times), [1]))

    def squared(at: Variable, made: Variable) -> list[Variable]:
        return [layer.scale(at, 1.0, 1.0), t.where(layer.less_than(at, times), t.op("matmul_v2", X=made, Y=made), made)]

    return layer.while_loop(left, squared, [layer.fill_constant([1], of, 0.0), made])[1]


@aten("bilinear")
def _bilinear(t: TorchCall, x: Variable, y: Variable, weight: Variable, bias: Any = None) -> Any:
    made = layer.einsum("...oj,...j->...o", layer.einsum("...i,oij->...oj", x, weight), y)
    return made if bias is None else layer.add(made, bias)


@aten("diagonal_scatter")
def _diagonal_scatter(t: TorchCall, x: Variable, src: Variable, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if x.spec.known_dims[dim1] != x.spec.known_dims[dim2]:
        raise Refused("the diagonal of matrices that are not square")
    ones = layer.fill_like(src, 1.0)
    return t.where(layer.not_equal(layer.diag_embed(ones, offset, dim1, dim2), 0.0), layer.diag_embed(src, offset, dim1, dim2), x)
