"""Writing of diagonals, and of products of vectors and matrices."""

from __future__ import annotations

from typing import Any

from foreshape.interop.onnx.write.filling_ops import filled
from foreshape.interop.onnx.write.op_writers import writes
from foreshape.interop.onnx.write.terms import Term, constant, count_to, joined, size_of, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.spec import FP32, INT64


def _diagonal(x: Term, rank: int, offset: int, first: int, second: int) -> Term:
    """Return the diagonals over two axes as a last axis."""
    w, (a, b) = x.w, (first % rank, second % rank)
    x = x.turned(*[k for k in range(rank) if k not in (a, b)], a, b)
    rows, columns = x.size(rank - 2), x.size(rank - 1)
    down, right = max(0, -offset), max(0, offset)
    length = (rows - down).least(columns - right).most(0)
    at = count_to(length)
    places = (at + down) * columns + (at + right)
    front = w.shape(x.value, 0, rank - 2)
    flat = x.shaped_as(w.node("Concat", front, (rows * columns).value, axis=0) if rank > 2 else (rows * columns).value)
    return flat.taken(places, rank - 2)


def _on_diagonal(values: Term, rank: int, offset: int, other: Term | float) -> Term:
    """Return matrices with the last axis of ``values`` (of ``rank`` dims) as a diagonal, and ``other``, a number or such matrices, elsewhere."""
    if isinstance(other, Term):
        rows, columns = count_to(other.size(rank - 1)), count_to(other.size(rank))
    else:
        rows = columns = count_to(values.size(rank - 1) + abs(offset))
    at = (rows if offset >= 0 else columns).least((values.size(rank - 1) - 1).most(0))
    line = values.taken(at, rank - 1).with_dims(rank if offset >= 0 else rank - 1)
    return (columns - rows.with_dims(1)).same(offset).where(line, other)


def _placed(x: Term, rank: int, first: int, second: int) -> Term:
    """Return matrices of the last two axes with these at ``first`` and ``second``."""
    a, b = first % rank, second % rank
    order, others = [0] * rank, iter(range(rank - 2))
    for k in range(rank):
        order[k] = rank - 2 if k == a else rank - 1 if k == b else next(others)
    return x.turned(*order)


@writes("diag", "diag_v2")
def _diag(w: WrittenOp) -> Any:
    slot = "Diagonal" if w.op.type == "diag" else "X"
    x, rank, values = term(w, slot), w.rank(slot), w.op.attributes.values
    offset, fill = int(values.get("offset", 0)), float(values.get("padding_value", 0.0))
    if rank == 2 and w.op.type == "diag_v2":
        return _diagonal(x, 2, offset, 0, 1).value
    if w.spec(slot).known_dims == (0,):
        return filled(w, [abs(offset), abs(offset)], fill if x.of.is_floating else int(fill), x.of)
    return _on_diagonal(x.shaped(1) if rank == 0 else x, max(rank, 1), offset, fill).value


@writes("diag_embed")
def _diag_embed(w: WrittenOp) -> Any:
    rank = w.rank("Input")
    return _placed(_on_diagonal(term(w, "Input"), rank, int(w.of.offset), 0.0), rank + 1, int(w.of.dim1), int(w.of.dim2)).value


@writes("diagonal")
def _diagonals(w: WrittenOp) -> Any:
    return _diagonal(term(w, "Input"), w.rank("Input"), int(w.of.offset), int(w.of.axis1), int(w.of.axis2)).value


@writes("trace")
def _trace(w: WrittenOp) -> Any:
    rank = w.rank("Input")
    a, b = sorted((int(w.of.axis1) % rank, int(w.of.axis2) % rank))
    made = _diagonal(term(w, "Input"), rank, int(w.of.offset), a, b).total(rank - 2)
    return made.value


@writes("fill_diagonal")
def _fill_diagonal(w: WrittenOp) -> Any:
    x, offset = term(w, "X"), int(w.of.offset)
    if w.rank("X") != 2:
        raise Refused("a tensor of more dims than two")
    rows, columns = count_to(size_of(w, "X", 0)).with_dims(1), count_to(size_of(w, "X", 1))
    width = size_of(w, "X", 1)
    if w.of.wrap:
        mask = ((rows * width + columns - offset) % (width + 1)).same(0)
    else:
        mask = (columns - rows).same(offset) & (rows < width)
    return mask.where(float(w.of.value), x).value


@writes("fill_diagonal_tensor")
def _fill_diagonal_with(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    a, b = int(w.of.dim1) % rank, int(w.of.dim2) % rank
    matrices = x.turned(*[k for k in range(rank) if k not in (a, b)], a, b)
    y = term(w, "Y").shaped_as(_diagonal(x, rank, int(w.of.offset), a, b).dims())
    return _placed(_on_diagonal(y, rank - 1, int(w.of.offset), matrices), rank, a, b).value


@writes("tril_indices", "triu_indices")
def _triangle_indices(w: WrittenOp) -> Any:
    import numpy

    low = w.op.type == "tril_indices"
    rows, columns = (w.of.rows, w.of.cols) if low else (w.of.row, w.of.col)
    found = (numpy.tril_indices if low else numpy.triu_indices)(int(rows), int(w.of.offset), int(columns))
    return w.array(numpy.stack(found).astype(w.result("out").known_dtype.numpy_name))


@writes("kron")
def _kron(w: WrittenOp) -> Any:
    x, y, mine, others = term(w, "X"), term(w, "Y"), w.rank("X"), w.rank("Y")
    rank = max(mine, others)
    if not rank:
        return (x * y).value
    x, y = x.with_dims(*range(rank - mine)), y.with_dims(*range(rank - others))
    made = x.with_dims(*range(1, 2 * rank, 2)) * y.with_dims(*range(0, 2 * rank, 2))
    return made.shaped_as((Term(w, x.dims(), INT64) * Term(w, y.dims(), INT64)).value).value


@writes("cross")
def _cross(w: WrittenOp) -> Any:
    x, y, dims = term(w, "X"), term(w, "Y"), w.spec("X").known_dims
    axis = int(w.of.dim)
    if axis == 9:
        if not all(isinstance(d, int) for d in dims):
            raise Refused("without an axis, and dims that are open")
        axis = [*dims].index(3)
    left, right = constant(w, [1, 2, 0], INT64), constant(w, [2, 0, 1], INT64)
    return (x.taken(left, axis) * y.taken(right, axis) - x.taken(right, axis) * y.taken(left, axis)).value


@writes("einsum")
def _einsum(w: WrittenOp) -> Any:
    return w.node("Einsum", *w.all("Operands"), equation=w.of.equation), None, None


@writes("multi_dot")
def _multi_dot(w: WrittenOp) -> Any:
    made, *others = w.all("X")
    for other in others:
        made = w.node("MatMul", made, other)
    return made


@writes("bilinear_tensor_product")
def _bilinear(w: WrittenOp) -> Any:
    x, y = term(w, "X").with_dims(0), term(w, "Y")  # [1, b, m] [k, m, n] -> [k, b, n]
    made = (x.node("MatMul", w.x("Weight")) * y).total(2).turned(1, 0)
    return (made + term(w, "Bias") if w.has("Bias") else made).value


@writes("fsp")
def _fsp(w: WrittenOp) -> Any:
    x, y = (term(w, s).node("Reshape", w.ints(0, 0, -1)) for s in "XY")
    return (x.node("MatMul", y.turned(0, 2, 1).value) / x.size(2).most(1).cast(x.of)).value


@writes("determinant")
def _determinant(w: WrittenOp) -> Any:
    return term(w, "Input").cast(FP32).node("Det").cast(w.dtype("Input")).value


@writes("slogdeterminant")
def _log_determinant(w: WrittenOp) -> Any:
    made = term(w, "Input").cast(FP32).node("Det").cast(w.dtype("Input"))
    return joined([made.node("Sign").with_dims(0), abs(made).node("Log").with_dims(0)], 0).value


@writes("matrix_power")
def _matrix_power(w: WrittenOp) -> Any:
    import numpy

    x, n, of = term(w, "X"), int(w.of.n), w.dtype("X")
    if n < 0:
        raise Refused("a power of the inverse")
    if n == 0:
        size = w.spec("X").known_dims[-1]
        if not isinstance(size, int):
            raise Refused("matrices of open sizes")
        return constant(w, numpy.eye(size), of).spread(x.dims()).value
    made, square = None, x
    while n:
        if n & 1:
            made = square if made is None else made.node("MatMul", square.value)
        n >>= 1
        square = square.node("MatMul", square.value) if n else square
    return w.node("Identity", made.value) if made is x else made.value  # pyright: ignore[reportOptionalMemberAccess]


@writes("cos_sim")
def _cosine(w: WrittenOp) -> Any:
    x, y = (term(w, s).node("Flatten", axis=1) for s in "XY")
    mine, others = (v.node("ReduceL2", *_axes(w), **_axis(w)) for v in (x, y))
    none = mine.same(0.0) | others.same(0.0)
    return none.where(0.0, (x * y).total(1, keep=True) / mine / others).value, mine.value, others.value


def _axes(w: WrittenOp) -> list[Any]:
    return [w.ints(1)] if w.opset >= 18 else []


def _axis(w: WrittenOp) -> dict[str, Any]:
    return {} if w.opset >= 18 else {"axes": [1]}
