"""Diagonals of matrices, in the other formats."""

from __future__ import annotations

from typing import Any

from foreshape import layer
from foreshape.interop.forms.creation import to_onnx_filled
from foreshape.interop.forms.rules import from_torch, to_onnx, to_torch
from foreshape.interop.onnx.write.terms import Term, count_to, size_of, term
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.language.program import Variable

# --- to ONNX


def _diagonal_of(x: Term, rank: int, offset: int, first: int, second: int) -> Term:
    """Return the diagonals over two axes as a last axis."""
    w, (a, b) = x.w, (first % rank, second % rank)
    x = x.turned(*[k for k in range(rank) if k not in (a, b)], a, b)
    rows, columns = x.size(rank - 2), x.size(rank - 1)
    down, right = max(0, -offset), max(0, offset)
    length = (rows - down).least(columns - right).most(0)
    index = count_to(length)
    places = (index + down) * columns + (index + right)
    front = w.shape(x.value, 0, rank - 2)
    flat = x.shaped_as(w.node("Concat", front, (rows * columns).value, axis=0) if rank > 2 else (rows * columns).value)
    return flat.taken(places, rank - 2)


def _on_diagonal(values: Term, rank: int, offset: int, filler: Term | float) -> Term:
    """Return matrices with the last axis of ``values`` (of ``rank`` dims) as a diagonal, and ``filler``, a number or such matrices, elsewhere."""
    if isinstance(filler, Term):
        rows, columns = count_to(filler.size(rank - 1)), count_to(filler.size(rank))
    else:
        rows = columns = count_to(values.size(rank - 1) + abs(offset))
    index = (rows if offset >= 0 else columns).least((values.size(rank - 1) - 1).most(0))
    line = values.taken(index, rank - 1).with_dims(rank if offset >= 0 else rank - 1)
    return (columns - rows.with_dims(1)).same(offset).where(line, filler)


def _placed(x: Term, rank: int, first: int, second: int) -> Term:
    """Return matrices of the last two axes with these at ``first`` and ``second``."""
    a, b = first % rank, second % rank
    order, remaining = [0] * rank, iter(range(rank - 2))
    for k in range(rank):
        order[k] = rank - 2 if k == a else rank - 1 if k == b else next(remaining)
    return x.turned(*order)


@to_onnx("diag", "diag_v2")
def _diag(w: WrittenOp) -> Any:
    slot = "Diagonal" if w.op.type == "diag" else "X"
    x, rank, values = term(w, slot), w.rank(slot), w.op.attributes.values
    offset, fill = int(values.get("offset", 0)), float(values.get("padding_value", 0.0))
    if rank == 2 and w.op.type == "diag_v2":
        return _diagonal_of(x, 2, offset, 0, 1).value
    if w.spec(slot).known_dims == (0,):
        return to_onnx_filled(w, [abs(offset), abs(offset)], fill if x.of.is_floating else int(fill), x.of)
    return _on_diagonal(x.shaped(1) if rank == 0 else x, max(rank, 1), offset, fill).value


@to_onnx()
def _to_onnx_diag_embed(w: WrittenOp) -> Any:
    rank = w.rank("Input")
    return _placed(_on_diagonal(term(w, "Input"), rank, int(w.of.offset), 0.0), rank + 1, int(w.of.dim1), int(w.of.dim2)).value


@to_onnx()
def _to_onnx_diagonal(w: WrittenOp) -> Any:
    return _diagonal_of(term(w, "Input"), w.rank("Input"), int(w.of.offset), int(w.of.axis1), int(w.of.axis2)).value


@to_onnx()
def _to_onnx_trace(w: WrittenOp) -> Any:
    rank = w.rank("Input")
    a, b = sorted((int(w.of.axis1) % rank, int(w.of.axis2) % rank))
    out = _diagonal_of(term(w, "Input"), rank, int(w.of.offset), a, b).total(rank - 2)
    return out.value


@to_onnx()
def _to_onnx_fill_diagonal(w: WrittenOp) -> Any:
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


@to_onnx()
def _to_onnx_fill_diagonal_tensor(w: WrittenOp) -> Any:
    x, rank = term(w, "X"), w.rank("X")
    a, b = int(w.of.dim1) % rank, int(w.of.dim2) % rank
    matrices = x.turned(*[k for k in range(rank) if k not in (a, b)], a, b)
    y = term(w, "Y").shaped_as(_diagonal_of(x, rank, int(w.of.offset), a, b).dims())
    return _placed(_on_diagonal(y, rank - 1, int(w.of.offset), matrices), rank, a, b).value


@to_onnx("tril_indices", "triu_indices")
def _triangle_indices(w: WrittenOp) -> Any:
    import numpy

    low = w.op.type == "tril_indices"
    rows, columns = (w.of.rows, w.of.cols) if low else (w.of.row, w.of.col)
    places = (numpy.tril_indices if low else numpy.triu_indices)(int(rows), int(w.of.offset), int(columns))
    return w.array(numpy.stack(places).astype(w.result("out").known_dtype.numpy_name))


# --- from torch


@from_torch()
def _from_torch_diagonal_scatter(t: TorchCall, x: Variable, src: Variable, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    if x.spec.known_dims[dim1] != x.spec.known_dims[dim2]:
        raise Refused("the diagonal of matrices that are not square")
    ones = layer.fill_like(src, 1.0)
    return t.where(layer.not_equal(layer.diag_embed(ones, offset, dim1, dim2), 0.0), layer.diag_embed(src, offset, dim1, dim2), x)


@from_torch()
def _from_torch_diagonal(t: TorchCall, x: Variable, offset: int = 0, dim1: int = 0, dim2: int = 1) -> Any:
    return layer.diagonal(x, offset, dim1, dim2)


# --- to torch


@to_torch()
def _to_torch_diag_v2(w: PlainOp) -> str:
    x, offset = w.x("X"), w.of.offset
    if w.rank("X") == 2:
        return f"torch.diagonal({x}, {offset}).clone()"
    x = w.let(x if w.rank("X") else f"{x}.reshape(1)")
    if not w.of.padding_value:
        return f"torch.diag_embed({x}, {offset})"
    place = f"torch.diag_embed(torch.ones_like({x}, dtype=torch.bool), {offset})"
    return f"torch.where({place}, torch.diag_embed({x}, {offset}), {w.number(w.of.padding_value, w.dtype('X'))})"


@to_torch()
def _to_torch_fill_diagonal(w: PlainOp) -> str:
    offset, value = w.of.offset, w.number(w.of.value, w.dtype("X"))
    if w.rank("X") != 2 or w.of.wrap or offset < 0:
        return w.call(helpers.entries.with_diagonal, w.x("X"), value, offset, w.of.wrap)
    x = w.let(w.x("X"))
    return f"torch.diagonal_scatter({x}, torch.full_like(torch.diagonal({x}, {offset}), {value}), {offset})"


@to_torch()
def _to_torch_trace(w: PlainOp) -> str:
    rank, dtype = w.rank("Input"), w.dtype("Input")
    rows, columns = sorted((w.of.axis1 % rank, w.of.axis2 % rank))
    return f"torch.sum(torch.diagonal({w.x('Input')}, {w.of.offset}, {rows}, {columns}), -1{'' if dtype.is_floating else f', dtype={w.type(dtype)}'})"


@to_torch("tril_indices", "triu_indices")
def _to_torch_triangle(w: PlainOp) -> str:
    rows, columns = (w.of.rows, w.of.cols) if w.op.type == "tril_indices" else (w.of.row, w.of.col)
    return f"torch.{w.op.type}({rows}, {columns}, {w.of.offset}, dtype={w.type(w.result('out').known_dtype)}, device={w.device()})"
