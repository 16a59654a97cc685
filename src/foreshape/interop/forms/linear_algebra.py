"""Inverses, determinants and decompositions of matrices, in the other formats."""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, Final

from foreshape import layer
from foreshape.core.spec import FP32, FP64, INT32, INT64
from foreshape.interop.forms.arithmetic import change
from foreshape.interop.forms.rules import from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.write.terms import constant, joined, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, Several, number_code
from foreshape.language.program import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


# --- to ONNX


@to_onnx()
def _to_onnx_determinant(w: WrittenOp) -> Any:
    return term(w, "Input").cast(FP32).node("Det").cast(w.dtype("Input")).value


@to_onnx()
def _to_onnx_slogdeterminant(w: WrittenOp) -> Any:
    determinant = term(w, "Input").cast(FP32).node("Det").cast(w.dtype("Input"))
    return joined([determinant.node("Sign").with_dims(0), abs(determinant).node("Log").with_dims(0)], 0).value


@to_onnx()
def _to_onnx_matrix_power(w: WrittenOp) -> Any:
    import numpy

    x, n, dtype = term(w, "X"), int(w.of.n), w.dtype("X")
    if n < 0:
        raise Refused("a power of the inverse")
    if n == 0:
        size = w.spec("X").known_dims[-1]
        if not isinstance(size, int):
            raise Refused("matrices of open sizes")
        return constant(w, numpy.eye(size), dtype).spread(x.dims()).value
    product, square = None, x
    while n:
        if n & 1:
            product = square if product is None else product.node("MatMul", square.value)
        n >>= 1
        square = square.node("MatMul", square.value) if n else square
    return w.node("Identity", product.value) if product is x else product.value  # pyright: ignore[reportOptionalMemberAccess]


@to_onnx()
def _to_onnx_inverse(w: WrittenOp) -> OnnxValue:
    """Return the inverse of small matrices by Gauss and Jordan, with the largest pivot."""
    import numpy

    n, dtype, rank = w.spec("Input").known_dims[-1], w.dtype("Input"), w.rank("Input")
    if not isinstance(n, int) or n > 64:
        raise Refused(f"the inverse of matrices of {n} rows")
    known: Any = w.known("Input")
    if known is not None:
        return w.array(numpy.linalg.inv(known))
    # the columns of [A I], made to those of [I A^-1] one after another
    unit = w.cast(w.array(numpy.eye(n, dtype="float64")), FP64, dtype)
    a = w.x("Input")
    rows = w.node("Concat", a, w.node("Expand", unit, w.shape(a)), axis=rank - 1)
    index = numpy.arange(n).reshape(n, 1)
    for k in range(n):
        column = w.slice(rows, -1, k, k + 1)
        sizes = w.node("Where", w.array(index < k), w.number(-1.0, dtype), w.node("Abs", column))
        at = w.node("ArgMax", sizes, axis=-2, keepdims=1)
        chosen = w.node("Equal", w.array(index.astype("int64")), at)  # the row of the pivot
        pivot = w.reduce("ReduceSum", w.node("Where", chosen, rows, w.number(0.0, dtype)), [-2], True)
        kth = w.slice(rows, -2, k, k + 1)
        rows = w.node("Where", chosen, kth, rows)
        pivot = w.node("Div", pivot, w.slice(pivot, -1, k, k + 1))
        column = w.slice(rows, -1, k, k + 1)
        rows = w.node("Sub", rows, w.node("Mul", column, pivot))
        rows = w.node("Where", w.array(index == k), pivot, rows)
    return w.slice(rows, -1, n, 2 * n)


# --- from PaddlePaddle 3


@from_pir("matrix_rank", "matrix_rank_tol")
def _from_pir_rank(p: PirCall) -> Any:
    """Count singular values, as int64."""
    p.by_row()
    return p.raw(0, INT32).astype(INT64) if p.is_read(0) else None


@from_pir("lu")
def _from_pir_lu(p: PirCall) -> Any:
    """Factor matrices: of one matrix PaddlePaddle 3 gives one number as Infos, without dims."""
    p.by_row()
    is_matrix = p.is_read(2) and len(p.translation.dims_of(p.op, 0)) == 2
    return (None, None, p.apply("reshape2", {"shape": []}, X=p.raw(2, INT32, (1,)))[0]) if is_matrix else None


# --- from torch


@from_torch("linalg_inv", "inverse")
def _from_torch_inverse(t: TorchCall, x: Variable) -> Any:
    return layer.inverse(x)


@from_torch("linalg_det", "det")
def _from_torch_determinant(t: TorchCall, x: Variable) -> Any:
    return layer.det(x)


@from_torch()
def _from_torch_linalg_solve(t: TorchCall, x: Variable, y: Variable, *, left: bool = True) -> Any:
    return layer.solve(x, y) if left else _turned(t, layer.solve(_turned(t, x), _turned(t, y)))


def _turned(t: TorchCall, x: Variable) -> Variable:
    """Return matrices transposed."""
    rank = t.rank(x)
    return layer.transpose(x, [*range(rank - 2), rank - 1, rank - 2])


@from_torch()
def _from_torch_linalg_solve_triangular(t: TorchCall, x: Variable, y: Variable, *, upper: bool, left: bool = True, unitriangular: bool = False) -> Any:
    if left:
        return layer.triangular_solve(x, y, upper, unitriangular=unitriangular)
    return _turned(t, layer.triangular_solve(_turned(t, x), _turned(t, y), not upper, unitriangular=unitriangular))


@from_torch()
def _from_torch_cholesky_solve(t: TorchCall, x: Variable, factor: Variable, upper: bool = False) -> Any:
    return layer.cholesky_solve(x, factor, upper)


@from_torch("linalg_pinv", "pinverse")
def _pseudo_inverse(t: TorchCall, x: Variable, *given: Any, **named: Any) -> Any:
    """Return the pseudo-inverse by singular values, up to ``max(atol, rtol * the largest)`` taken as 0 (Penrose, 1955)."""
    of, dims = x.spec.known_dtype, x.spec.known_dims[-2:]
    names = ("rcond",) if t.name == "pinverse" or t.overload in ("default", "rcond_tensor") else ("atol", "rtol")
    settings = dict(zip(names, given, strict=False)) | named
    atol, rtol = settings.get("atol"), settings.get("rtol", settings.get("rcond"))
    if of not in (FP32, FP64) or not all(isinstance(n, int) for n in dims):
        raise Refused("the pseudo-inverse of matrices of complex numbers, or of open sizes")
    if rtol is None:
        rtol = 0.0 if atol is not None else max(int(n) for n in dims) * (2.0**-23 if of is FP32 else 2.0**-52)
    u, s, v = layer.svd(x)
    least = layer.multiply(layer.reduce_max(s, [t.rank(s) - 1], True), t.tensor(rtol, of))
    least = least if atol is None else layer.maximum(least, t.tensor(atol, of))
    kept = layer.greater_than(s, least)
    one = layer.fill_like(s, 1.0)
    inverse = t.where(kept, layer.reciprocal(t.where(kept, s, one)), layer.fill_like(s, 0.0))
    found = t.op("matmul_v2", {"trans_y": True}, X=layer.multiply(_turned(t, v), layer.unsqueeze(inverse, [t.rank(s) - 1])), Y=u)
    found.stop_gradient = True

    def product(*of: Variable) -> Variable:
        return functools.reduce(lambda a, b: t.op("matmul_v2", X=a, Y=b), of)

    # its change with x (Golub and Pereyra, 1973), which holds for equal singular values too
    held, moved = layer.assign(x), change(x)
    held.stop_gradient = True
    turned, back = _turned(t, moved), _turned(t, found)
    first, second = product(found, back, turned), product(turned, back, found)
    rest = layer.subtract(layer.add(first, second), layer.add(product(first, held, found), product(found, held, second)))
    return layer.add(found, layer.subtract(rest, product(found, moved, found)))


@from_torch("linalg_cholesky", "cholesky")
def _cholesky(t: TorchCall, x: Variable, upper: bool = False) -> Any:
    return layer.cholesky(x, upper)


@from_torch("linalg_inv_ex", "linalg_cholesky_ex", "_linalg_solve_ex")
def _with_errors(t: TorchCall, x: Variable, *given: Any, left: bool = True, upper: bool = False, **_: Any) -> Any:
    """Return the result, and nothing for the marks of errors: here errors stop the run."""
    if t.name == "linalg_inv_ex":
        return [layer.inverse(x), None]
    if t.name == "_linalg_solve_ex":
        return [_from_torch_linalg_solve(t, x, given[0], left=left), None, None, None]
    return [layer.cholesky(x, upper), None]


@from_torch("_linalg_svd", "_linalg_eigh", "_linalg_det", "_linalg_slogdet")
def _private(t: TorchCall, x: Variable, first: Any = False, *_: Any, **more: Any) -> Any:
    """Return results as torch's operators of the same names with none left out."""
    if t.name == "_linalg_det":
        return [layer.det(x), None, None]
    if t.name == "_linalg_slogdet":
        return [*layer.unstack(layer.slogdet(x), 0), None, None]
    if t.name == "_linalg_svd":
        return list(layer.svd(x, bool(more.get("full_matrices", first))))
    return list(layer.eigh(x, str(first or "L").upper() == "U"))


@from_torch()
def _from_torch_linalg_svd(t: TorchCall, x: Variable, full_matrices: bool = True, **_: Any) -> Any:
    return list(layer.svd(x, full_matrices))


@from_torch()
def _from_torch_linalg_svdvals(t: TorchCall, x: Variable, **_: Any) -> Any:
    return layer.svd(x)[1]


@from_torch()
def _from_torch_linalg_qr(t: TorchCall, x: Variable, mode: str = "reduced") -> Any:
    return list(layer.qr(x, mode))


@from_torch()
def _from_torch_linalg_eigh(t: TorchCall, x: Variable, uplo: str = "L") -> Any:
    return list(layer.eigh(x, uplo.upper() == "U"))


@from_torch("linalg_matrix_power", "matrix_power")
def _power(t: TorchCall, x: Variable, n: int) -> Any:
    return layer.matrix_power(x, n)


_TERMS: Final = 14


@from_torch("linalg_matrix_exp", "matrix_exp")
def _exponential(t: TorchCall, x: Variable) -> Any:
    """Return the series of matrices halved until their norm is at most a half, squared as often: (Moler and Van Loan, 2003, method 3)."""
    dtype, rank = x.spec.known_dtype, t.rank(x)
    if dtype not in (FP32, FP64):
        raise Refused(f"the exponential of matrices of {dtype}")
    sums = layer.reduce_max(layer.reduce_sum(layer.abs(x), [rank - 2], True), [rank - 1], True)
    times = layer.ceil(layer.log2(layer.scale(layer.maximum(sums, t.tensor(0.5, dtype)), 2.0)))
    factor = t.op("elementwise_pow", X=t.tensor(0.5, dtype), Y=times)
    times.stop_gradient = factor.stop_gradient = True
    halved = layer.multiply(x, factor)
    unit = layer.fill_like(halved, 0.0)
    unit = layer.add(unit, layer.eye(int(x.spec.known_dims[-1]), None, dtype))  # pyright: ignore[reportArgumentType]
    series = unit
    for n in range(_TERMS, 0, -1):
        series = layer.add(unit, t.scale(t.op("matmul_v2", X=halved, Y=series), 1.0 / n))

    def left(at: Variable, _: Variable) -> Variable:
        return layer.less_than(at, layer.reshape(layer.reduce_max(times), [1]))

    def squared(at: Variable, made: Variable) -> list[Variable]:
        return [layer.scale(at, 1.0, 1.0), t.where(layer.less_than(at, times), t.op("matmul_v2", X=made, Y=made), made)]

    return layer.while_loop(left, squared, [layer.fill_constant([1], dtype, 0.0), series])[1]


# --- to torch's code


# --- to torch


@to_torch()
def _to_torch_qr(w: PlainOp) -> Several:
    return Several(f'torch.linalg.qr({w.x("X")}, mode="{w.of.mode}")')


@to_torch()
def _to_torch_svd(w: PlainOp) -> Several:
    return Several(f"torch.linalg.svd({w.x('X')}, full_matrices={w.of.full_matrices})")


@to_torch()
def _to_torch_lu(w: PlainOp) -> Any:
    out, pivots, info = w.several(f"torch.linalg.lu_factor_ex({w.x('X')})", 3)
    return out, pivots, info if w.rank("X") > 2 else f"{info}.reshape(1)"


@to_torch()
def _to_torch_triangular_solve(w: PlainOp) -> str:
    x, upper = (f"{w.x('X')}.mT", not w.of.upper) if w.of.transpose else (w.x("X"), w.of.upper)
    return f"torch.linalg.solve_triangular({x}, {w.x('Y')}, upper={upper}, unitriangular={w.of.unitriangular})"


@to_torch()
def _to_torch_cholesky_solve(w: PlainOp) -> str:
    return f"torch.cholesky_solve({w.x('X')}, torch.{'triu' if w.of.upper else 'tril'}({w.x('Y')}), {w.of.upper})"


@to_torch("eigh", "eigvalsh")
def _to_torch_eigh(w: PlainOp) -> Any:
    if w.op.type == "eigvalsh" and w.of.is_test:
        return f'torch.linalg.eigvalsh({w.x("X")}, "{w.of.UPLO}")', f"torch.zeros_like({w.x('X')})"
    code = w.call(helpers.linear_systems.symmetric_eigenvalues, w.x("X"), f'"{w.of.UPLO}"')
    if w.op.type == "eigh" or w.op.output("Eigenvectors") not in w.writer.wanted:
        return Several(code)
    values, vectors = w.several(code, 2)
    return values, f"{vectors} if self.training else torch.zeros_like({vectors})"  # a test has none


@to_torch()
def _to_torch_matrix_rank(w: PlainOp) -> str:
    x = w.x("X")
    if w.has("TolTensor"):
        return w.call(helpers.linear_systems.ranks, x, w.x("TolTensor"), w.of.hermitian, w.of.use_default_tol)
    ratio = f"torch.finfo({x}.dtype).eps * max({x}.shape[-2:])" if w.of.use_default_tol else "0.0"
    return f"torch.linalg.matrix_rank({x}, atol={number_code(w.of.tol)}, rtol={ratio}, hermitian={w.of.hermitian}).to(torch.int32)"


@to_torch()
def _to_torch_lstsq(w: PlainOp) -> Several:
    return Several(w.call(helpers.linear_systems.least_squares, w.x("X"), w.x("Y"), number_code(w.of.rcond), repr(w.of.driver)))


@to_torch()
def _to_torch_lu_unpack(w: PlainOp) -> Several:
    pivots = w.call(helpers.bounds.within, w.x("Pivots"), f"{w.x('X')}.shape[-2] + 1", "'a pivot'", 1)
    return Several(f"torch.lu_unpack({w.x('X')}, {pivots}, {w.of.unpack_ludata}, {w.of.unpack_pivots})")
