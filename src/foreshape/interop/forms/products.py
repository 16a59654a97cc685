"""Products of matrices, in the other formats."""

from __future__ import annotations

import functools
import json
import math
import operator
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from foreshape import layer
from foreshape.core.spec import FP64, INT64
from foreshape.errors import FormatError
from foreshape.interop.forms.arithmetic import result, to_onnx_pair
from foreshape.interop.forms.reductions import from_torch_norm
from foreshape.interop.forms.rules import from_onnx, from_pir, from_torch, to_onnx, to_torch
from foreshape.interop.onnx.call import Call, transposed
from foreshape.interop.onnx.write.terms import Term, constant, count_to, size_of, term
from foreshape.interop.onnx.write.values import OnnxValue
from foreshape.interop.onnx.write.written_op import WrittenOp
from foreshape.interop.refused import Refused
from foreshape.interop.torch.torch_call import TorchCall
from foreshape.interop.torch.untyped_torch import is_list
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, number_code, tuple_of
from foreshape.language.operator.computations import Transposition
from foreshape.language.program.variable import Variable

if TYPE_CHECKING:
    from foreshape.interop.pir.call import PirCall

# --- from ONNX


@from_onnx("MatMul")
def from_onnx_matmul(c: Call) -> Any:
    x, y = c.x(0), c.x(1)
    dtype = x.spec.known_dtype
    if dtype.is_integer:  # exact below 2^53
        return c.cast(layer.matmul(c.cast(x, FP64), c.cast(y, FP64)), dtype)
    source = _transposed_source(y)
    return layer.matmul(x, y) if source is None else layer.matmul(x, source, transpose_y=True)


def _transposed_source(y: Variable) -> Variable | None:
    """Return the tensor of which ``y`` is the transpose, in its last two axes alone; None if it is none."""
    source, axes = transposed(y)
    last = len(axes) - 1
    return source if axes == [*range(last - 1), last, last - 1] else None


@from_onnx("Gemm")
def gemm(c: Call) -> Any:
    """alpha A B + beta C, of matrices, each transposed or not."""
    x, y, summand = c.x(0), c.x(1), c.optional(2)
    if c.rank(x) != 2 or c.rank(y) != 2:
        raise Refused(f"a product of tensors of {c.rank(x)} and {c.rank(y)} dims")
    dtype = x.spec.known_dtype
    if dtype.is_integer:
        x, y = c.cast(x, FP64), c.cast(y, FP64)
    out = layer.matmul(x, y, transpose_x=bool(c.attribute("transA", 0)), transpose_y=bool(c.attribute("transB", 0)))
    alpha, beta = c.attribute("alpha", 1.0), c.attribute("beta", 1.0)
    out = out if alpha == 1.0 else layer.scale(out, alpha)
    if summand is not None:
        summand = c.cast(summand, out.spec.known_dtype)
        out = out + (summand if beta == 1.0 else layer.scale(summand, beta))
    return c.cast(out, dtype)


_DOTS = "..."


@from_onnx("Einsum")
def from_onnx_einsum(c: Call) -> Any:
    """The letters right of ``->`` are kept; without it the letters of one place are, sorted. Whole numbers are exact below 2^53."""
    left, arrow, out = str(c.attribute("equation")).replace(" ", "").partition("->")
    terms, dtype = left.split(","), c.x(0).spec.known_dtype
    operands = [c.cast(x, FP64) if dtype.is_integer else x for x in c.all()]
    if len(terms) != len(operands):
        raise FormatError(f"{c.node.place}: Einsum has {len(operands)} operands; its equation is of {len(terms)}")
    if not arrow:
        out = (_DOTS if _DOTS in left else "") + "".join(sorted(letter for letter in set(left) if letter.isalpha() and left.count(letter) == 1))
    numbers = [x for term, x in zip(terms, operands, strict=True) if not term]
    pairs = [_diagonal(c, term, x) for term, x in zip(terms, operands, strict=True) if term]
    while len(pairs) > 2:
        (first, x), (second, y) = pairs[:2]
        needed = {*out}.union(*(term for term, _ in pairs[2:]))
        letters = "".join(letter for letter in dict.fromkeys(first + second) if letter in needed and letter != ".")
        letters = (_DOTS if _DOTS in first or _DOTS in second else "") + letters
        pairs[:2] = [(letters, _from_onnx_product(c, [(first, x), (second, y)], letters))]
    product = _from_onnx_product(c, pairs, out) if pairs else numbers.pop(0)
    for number in numbers:
        product = product * number
    return c.cast(product, dtype)


def _from_onnx_product(c: Call, pairs: list[tuple[str, Variable]], out: str) -> Variable:
    terms = [term for term, _ in pairs]
    if terms == [out]:
        return pairs[0][1]
    return result(c.op("einsum", {"equation": f"{','.join(terms)}->{out}"}, Operands=[x for _, x in pairs]))


def _diagonal(c: Call, term: str, x: Variable) -> tuple[str, Variable]:
    """Return an operand whose letters stand once: a repeated letter is for the diagonal, the last axis of the result."""
    while (twice := next((letter for letter in term if letter != "." and term.count(letter) > 1), None)) is not None:
        head, dots, tail = term.partition(_DOTS)
        places = [
            index if index < len(head) else index - len(head) - len(dots) - len(tail) if dots else index for index, symbol in enumerate(term) if symbol == twice
        ]
        x = layer.diagonal(x, axis1=places[0], axis2=places[1])
        count, left = 0, ""
        for letter in term:
            count += letter == twice
            left += "" if letter == twice and count <= 2 else letter
        term = left + twice
    return term, x


# --- to ONNX


@to_onnx()
def _to_onnx_kron(w: WrittenOp) -> Any:
    x, y, x_rank, y_rank = term(w, "X"), term(w, "Y"), w.rank("X"), w.rank("Y")
    rank = max(x_rank, y_rank)
    if not rank:
        return (x * y).value
    x, y = x.with_dims(*range(rank - x_rank)), y.with_dims(*range(rank - y_rank))
    product = x.with_dims(*range(1, 2 * rank, 2)) * y.with_dims(*range(0, 2 * rank, 2))
    return product.shaped_as((Term(w, x.dims(), INT64) * Term(w, y.dims(), INT64)).value).value


@to_onnx()
def _to_onnx_cross(w: WrittenOp) -> Any:
    x, y, dims = term(w, "X"), term(w, "Y"), w.spec("X").known_dims
    axis = int(w.of.dim)
    if axis == 9:
        if not all(isinstance(d, int) for d in dims):
            raise Refused("without an axis, and dims that are open")
        axis = [*dims].index(3)
    left, right = constant(w, [1, 2, 0], INT64), constant(w, [2, 0, 1], INT64)
    return (x.taken(left, axis) * y.taken(right, axis) - x.taken(right, axis) * y.taken(left, axis)).value


@to_onnx()
def _to_onnx_einsum(w: WrittenOp) -> Any:
    return w.node("Einsum", *w.all("Operands"), equation=w.of.equation), None, None


@to_onnx()
def _to_onnx_multi_dot(w: WrittenOp) -> Any:
    product, *factors = w.all("X")
    for factor in factors:
        product = w.node("MatMul", product, factor)
    return product


@to_onnx()
def _to_onnx_bilinear_tensor_product(w: WrittenOp) -> Any:
    x, y = term(w, "X").with_dims(0), term(w, "Y")  # [1, b, m] [k, m, n] -> [k, b, n]
    out = (x.node("MatMul", w.x("Weight")) * y).total(2).turned(1, 0)
    return (out + term(w, "Bias") if w.has("Bias") else out).value


@to_onnx()
def _to_onnx_fsp(w: WrittenOp) -> Any:
    x, y = (term(w, s).node("Reshape", w.ints(0, 0, -1)) for s in "XY")
    return (x.node("MatMul", y.turned(0, 2, 1).value) / x.size(2).most(1).cast(x.of)).value


@to_onnx()
def _to_onnx_cos_sim(w: WrittenOp) -> Any:
    x, y = (term(w, s).node("Flatten", axis=1) for s in "XY")
    x_norm, y_norm = (v.node("ReduceL2", *_axes(w), **_axis(w)) for v in (x, y))
    none = x_norm.same(0.0) | y_norm.same(0.0)
    return none.where(0.0, (x * y).total(1, keep=True) / x_norm / y_norm).value, x_norm.value, y_norm.value


def _axes(w: WrittenOp) -> list[Any]:
    return [w.ints(1)] if w.opset >= 18 else []


def _axis(w: WrittenOp) -> dict[str, Any]:
    return {} if w.opset >= 18 else {"axes": [1]}


def _transposition(w: WrittenOp, x: OnnxValue, slot: str, turn: bool) -> OnnxValue:
    rank = w.rank(slot)
    return w.transpose(x, (*range(rank - 2), rank - 1, rank - 2)) if turn and rank > 1 else x


@to_onnx("matmul_v2", "bmm", "mv")
def _matrix_product(w: WrittenOp) -> OnnxValue:
    values = w.op.attributes.values
    slot = "Vec" if w.op.type == "mv" else "Y"
    turn_x, turn_y = (bool(values.get(f"trans_{s.lower()}", values.get(f"transpose_{s}", False))) for s in "XY")
    product = w.node("MatMul", _transposition(w, w.x("X"), "X", turn_x), _transposition(w, w.x(slot), slot, turn_y))
    ranks = (w.rank("X"), w.rank(slot))
    out = w.result("Out").dims
    return w.reshape(product, 1) if ranks == (1, 1) and out is not None and len(out) == 1 else product


@to_onnx()
def _to_onnx_mul(w: WrittenOp) -> OnnxValue:
    x, y = w.x("X"), w.x("Y")
    m, n, rank, y_rank = int(w.of.x_num_col_dims), int(w.of.y_num_col_dims), w.rank("X"), w.rank("Y")
    if y_rank == 2 and n == 1 and rank - m == 1:
        return w.node("MatMul", x, y)
    product = w.node("MatMul", w.node("Flatten", x, axis=m) if rank != 2 or m != 1 else x, w.node("Flatten", y, axis=n) if y_rank != 2 or n != 1 else y)
    if m == 1 and y_rank - n == 1:
        return product
    return w.node("Reshape", product, w.node("Concat", w.shape(x, 0, m), w.shape(y, n, y_rank), axis=0))


@to_onnx()
def _to_onnx_grouped_matmul(w: WrittenOp) -> Any:
    """Multiply all rows by the matrix of each group in turn, with zeros for the rows of others."""
    count = w.spec("Y").known_dims[0]
    if not isinstance(count, int):
        raise Refused(f"{count} groups: it takes a fixed number")
    x, y, ends = term(w, "X"), term(w, "Y"), term(w, "Ends").cast(INT64)
    y = y.turned(0, 2, 1) if w.of.trans_y else y
    if not count:
        return x.node("MatMul", y.total(0).value).value
    rows = count_to(size_of(w, "X", 0)).with_dims(1)
    group = (ends.with_dims(0) <= rows).cast(INT64).total(1, keep=True)
    parts = [group.same(g).where(x.node("MatMul", y.at(0, g).value), 0.0) for g in range(count)]
    return functools.reduce(operator.add, parts).value


@to_onnx()
def _to_onnx_dot(w: WrittenOp) -> OnnxValue:
    keep = w.result("Out").dims is not None and len(w.result("Out").known_dims) == w.rank("X")
    return w.reduce("ReduceSum", w.node("Mul", *to_onnx_pair(w)), [-1], keep)


@to_onnx()
def _to_onnx_addmm(w: WrittenOp) -> OnnxValue:
    product = w.node("MatMul", w.x("X"), w.x("Y"))
    product = product if w.of.Alpha == 1.0 else w.node("Mul", product, w.like(w.of.Alpha, "X"))
    summand = w.x("Input") if w.of.Beta == 1.0 else w.node("Mul", w.x("Input"), w.like(w.of.Beta, "Input"))
    return w.node("Add", product, summand)


# --- from PaddlePaddle 3


@from_pir("linear_v2")
def _from_pir_linear(p: PirCall) -> Any:
    """Return a product, and the sum with its bias."""
    product, bias = layer.matmul(p.x(), p.x(1), transpose_y=p.flag("transpose_weight")), p.optional(2)
    return product if bias is None else product + bias


@from_pir("baddbmm")
def _from_pir_baddbmm(p: PirCall) -> Any:
    """Return beta * Input + alpha * X Y, of batches of matrices."""
    product = layer.bmm(p.x(1), p.x(2))
    return p.x() * p.real("beta", 1.0) + product * p.real("alpha", 1.0)


@from_pir("einsum")
def _from_pir_einsum(p: PirCall) -> None:
    """Sum products by an equation; the caches of its gradient are as many as the operands."""
    operands = p.all()
    caches = {slot: p.outputs(index) if p.is_read(index) else p.temporaries(len(operands)) for index, slot in enumerate(("InnerCache", "XShape"), 1)}
    p.append("einsum", {"Operands": operands}, {"Out": p.output(0), **caches}, {"equation": p.attribute("equation")})


# --- from torch


def pairs(numbers: Any, count: int) -> list[int]:
    """Return a number for each of ``count`` axes."""
    sizes = [int(n) for n in (numbers if is_list(numbers) else [numbers])]
    return sizes * count if len(sizes) == 1 else sizes


def _from_torch_product(t: TorchCall, x: Variable, y: Variable, transposed: bool = False) -> Variable:
    """Return a product of matrices; of integers, without a kernel of ours, as a sum of products."""
    if not x.spec.known_dtype.is_integer:
        return t.op("matmul_v2", {"trans_y": True} if transposed else None, X=x, Y=y)
    if transposed:
        y = layer.transpose(y, [1, 0])
    if t.rank(y) == 1:
        return t.cast(layer.reduce_sum(layer.multiply(x, y), [t.rank(x) - 1]), x.spec.known_dtype)
    lone = t.rank(x) == 1
    x = layer.unsqueeze(x, [0]) if lone else x
    products = layer.multiply(layer.unsqueeze(x, [t.rank(x)]), layer.unsqueeze(y, [t.rank(y) - 2]))
    product = t.cast(layer.reduce_sum(products, [t.rank(products) - 2]), x.spec.known_dtype)
    return layer.squeeze(product, [t.rank(product) - 2]) if lone else product


@from_torch()
def _from_torch_linear(t: TorchCall, x: Variable, weight: Variable, bias: Variable | None = None) -> Any:
    out = _from_torch_product(t, x, weight, True)
    return out if bias is None else layer.add(out, bias)


@from_torch("matmul", "mm", "bmm", "mv")
def _from_torch_matmul(t: TorchCall, x: Variable, y: Variable) -> Any:
    return _from_torch_product(t, x, y)


@from_torch("dot", "vdot")
def _from_torch_dot(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.reduce_sum(layer.multiply(x, y))


@from_torch()
def _from_torch_outer(t: TorchCall, x: Variable, y: Variable) -> Any:
    return layer.multiply(layer.unsqueeze(x, [1]), layer.unsqueeze(y, [0]))


@from_torch("addmm", "baddbmm", "addmv")
def _from_torch_addmm(t: TorchCall, x: Variable, y: Variable, z: Variable, beta: Any = 1, alpha: Any = 1) -> Any:
    product = _from_torch_product(t, y, z)
    return t.scale(product, alpha) if beta == 0 else layer.add(t.scale(product, alpha), t.scale(x, beta))


@from_torch()
def _from_torch_addbmm(t: TorchCall, x: Variable, y: Variable, z: Variable, beta: Any = 1, alpha: Any = 1) -> Any:
    product = layer.reduce_sum(_from_torch_product(t, y, z), [0])
    return t.scale(product, alpha) if beta == 0 else layer.add(t.scale(product, alpha), t.scale(x, beta))


@from_torch()
def _from_torch__cdist_forward(t: TorchCall, x: Variable, y: Variable, p: float, mode: Any = None) -> Any:
    difference = layer.subtract(layer.unsqueeze(x, [-2]), layer.unsqueeze(y, [-3]))
    if p == math.inf:  # each of equal distances has the whole gradient here
        return layer.reduce_max(layer.abs(difference), [t.rank(difference) - 1])
    return from_torch_norm(t, difference, float(p), [t.rank(difference) - 1], False)


@from_torch("_grouped_mm", "grouped_mm_fallback")
def _grouped(t: TorchCall, x: Variable, weight: Variable, offsets: Variable, *_: Any, **__: Any) -> Any:
    """Return the rows times the matrix of their group, ``weight[group]``; ``offsets`` are the ends of the groups."""
    if t.rank(x) != 2 or t.rank(weight) != 3:
        raise Refused("groups of columns")
    op = weight.op
    computation = None if op is None or op.operator is None else op.operator.computes()
    if (
        op is not None and isinstance(computation, Transposition) and [axis % 3 for axis in computation.axes] == [0, 2, 1]
    ):  # so its gradient is a parameter's own
        return layer.grouped_matmul(x, next(op.input_variables()), offsets, transpose_y=True)
    return layer.grouped_matmul(x, weight, offsets)


@from_torch()
def _from_torch_einsum(t: TorchCall, equation: str, xs: Any, **_: Any) -> Any:
    left, arrow, right = equation.replace(" ", "").partition("->")
    terms = left.split(",")
    if not arrow:  # the letters that are there once
        right = ("..." if "..." in left else "") + "".join(letter for letter in sorted(set(left) - {",", "."}) if left.count(letter) == 1)

    def contract(terms: Sequence[str], right: str, xs: Sequence[Variable]) -> Variable:
        return layer.einsum(f"{','.join(terms)}->{right}", *xs) if not xs[0].spec.known_dtype.is_integer else _sum_of_products(terms, right, xs)

    while len(terms) > 2:  # two at a time, from the front, as torch has them
        later = "".join(terms[2:]) + right
        factors = terms[0] + terms[1]
        letters = "".join(dict.fromkeys(letter for letter in factors.replace("...", "") if letter in later))
        term = f"...{letters}" if "..." in factors else letters
        xs, terms = [contract(terms[:2], term, xs[:2]), *xs[2:]], [term, *terms[2:]]
    return contract(terms, right, xs)


def _sum_of_products(terms: Sequence[str], right: str, xs: Sequence[Variable]) -> Variable:
    """Return an einsum of integers: operands broadcast along all letters, multiplied and summed."""
    dots_rank = max([len(x.spec.known_dims) - len(term.replace("...", "")) for term, x in zip(terms, xs, strict=True) if "..." in term], default=0)
    marks = "".join(chr(0x370 + number) for number in range(dots_rank))  # a letter for each axis of ...

    def spelt(term: str, rank: int) -> str:
        return term.replace("...", marks[dots_rank - (rank - len(term.replace("...", ""))) :]) if "..." in term else term

    spellings = [spelt(term, len(x.spec.known_dims)) for term, x in zip(terms, xs, strict=True)]
    right = right.replace("...", marks)
    if any(len(set(term)) != len(term) for term in spellings):
        raise Refused("a diagonal of integers")
    letters = [*right, *sorted(set("".join(spellings)) - set(right))]
    product: Variable | None = None
    for letters_of_x, x in zip(spellings, xs, strict=True):
        order = [letters_of_x.index(letter) for letter in letters if letter in letters_of_x]
        x = layer.transpose(x, order) if order != sorted(order) else x
        missing = [number for number, letter in enumerate(letters) if letter not in letters_of_x]
        x = layer.unsqueeze(x, missing) if missing else x
        product = x if product is None else layer.multiply(product, x)
    assert product is not None
    summed = [*range(len(right), len(letters))]
    return layer.cast(layer.reduce_sum(product, summed), xs[0].spec.known_dtype) if summed else product


@from_torch()
def _from_torch_bilinear(t: TorchCall, x: Variable, y: Variable, weight: Variable, bias: Any = None) -> Any:
    out = layer.einsum("...oj,...j->...o", layer.einsum("...i,oij->...oj", x, weight), y)
    return out if bias is None else layer.add(out, bias)


# --- to torch's code


@to_torch("matmul_v2", "matmul")
def _to_torch_matmul(w: PlainOp) -> str:
    x, y = w.x("X"), w.x("Y")
    if w.op.type == "matmul":
        across = (w.of.transpose_X, w.of.transpose_Y)
        if any(flag and w.rank(slot) == 1 for slot, flag in zip(("X", "Y"), across, strict=True)):
            raise Refused("it turns a vector")
    else:
        across = (w.of.trans_x, w.of.trans_y)
    x = f"{x}.mT" if across[0] and w.rank("X") > 1 else x
    y = f"{y}.mT" if across[1] and w.rank("Y") > 1 else y
    alpha = float(getattr(w.of, "alpha", 1.0))
    return f"{x} @ {y}" if alpha == 1.0 else f"({x} @ {y}) * {number_code(alpha)}"


@to_torch()
def _to_torch_mul(w: PlainOp) -> str:
    x, y, rows, columns = w.x("X"), w.x("Y"), w.of.x_num_col_dims, w.of.y_num_col_dims
    if (w.rank("Y"), columns) != (2, 1):
        y = f"{y}.flatten({columns}).flatten(0, {columns - 1})" if columns > 1 or w.rank("Y") > 2 else y
    if w.rank("X") == rows + 1 and w.rank("Y") == 2:
        return f"{x} @ {y}"
    if w.rank("X") > rows + 1:
        x = f"{x}.flatten({rows})"
    code = f"{x} @ {y}"
    return code if w.rank("Y") == columns + 1 else f"({code}).unflatten(-1, {tuple_of([w.size(d) for d in w.dims('Y')[columns:]])})"


@to_torch()
def _to_torch_einsum(w: PlainOp) -> Any:
    operands = w.all("Operands")
    return f"torch.einsum({json.dumps(w.of.equation)}, {', '.join(operands)})", operands, operands


@to_torch()
def _to_torch_grouped_matmul(w: PlainOp) -> str:
    return w.call(helpers.extra_functions.grouped_product, w.x("X"), w.x("Y") + ".mT" * w.of.trans_y, w.x("Ends"))


@to_torch()
def _to_torch_dot(w: PlainOp) -> str:
    code = f"({w.x('X')} * {w.x('Y')}).sum(-1{', keepdim=True' if len(w.result('Out').known_dims) == w.rank('X') else ''})"
    return w.cast(code, w.dtype("X"), w.result("Out").known_dtype)


@to_torch()
def _to_torch_multi_dot(w: PlainOp) -> str:
    return f"torch.linalg.multi_dot({tuple_of(w.all('X'))})"


@to_torch()
def _to_torch_bilinear_tensor_product(w: PlainOp) -> str:
    if not all(isinstance(n, int) and n for n in w.dims("Weight")[1:]):  # torch's layer takes no empty rows
        code = f'torch.einsum("ni,oij,nj->no", {w.x("X")}, {w.x("Weight")}, {w.x("Y")})'
        return f"{code} + {w.x('Bias')}.reshape(-1)" if w.has("Bias") else code
    return f"F.bilinear({w.x('X')}, {w.x('Y')}, {w.x('Weight')}" + (f", {w.x('Bias')}.reshape(-1))" if w.has("Bias") else ")")


@to_torch()
def _to_torch_cross(w: PlainOp) -> str:
    dims, axis = w.dims("X"), w.of.dim
    if axis == 9:  # the first of the axes with three numbers
        axis = dims.index(3) if 3 in dims and all(isinstance(n, int) for n in dims[: dims.index(3)]) else f"[*{w.x('X')}.shape].index(3)"
    return f"torch.linalg.cross({w.x('X')}, {w.x('Y')}, dim={axis})"
