"""Torch code of reductions, products and norms of axes."""

from __future__ import annotations

import json
from typing import Any, Final

from foreshape.interop.refused import Refused
from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import extra_functions
from foreshape.interop.torch.write.kernel_rules import kernel_rule
from foreshape.interop.torch.write.plain_op import PlainOp, number_code, tuple_of
from foreshape.spec import BOOL, INT64, dtype

_REDUCTIONS: Final = {
    "reduce_sum": "sum",
    "reduce_mean": "mean",
    "reduce_max": "amax",
    "reduce_min": "amin",
    "reduce_amax": "amax",
    "reduce_amin": "amin",
    "reduce_all": "all",
    "reduce_any": "any",
    "logsumexp": "logsumexp",
    "frobenius_norm": "",
}


def over(w: PlainOp, axes: tuple[int, ...], keep: bool) -> str:
    """Return the arguments for axes."""
    return f"{axes[0] if len(axes) == 1 else tuple(axes)}{', keepdim=True' if keep else ''}"


def _axes(w: PlainOp) -> tuple[int, ...]:
    given = tuple(getattr(w.of, "dim", getattr(w.of, "axis", ())))
    rank = w.rank("X")
    return tuple(range(rank)) if w.of.reduce_all or not given else given


@writes(*_REDUCTIONS)
def _reduce(w: PlainOp) -> str:
    x, of, to = w.x("X"), w.dtype("X"), w.result("Out").known_dtype
    keep = bool(getattr(w.of, "keep_dim", getattr(w.of, "keepdim", False)))
    axes = _axes(w)
    if w.op.type in ("reduce_all", "reduce_any"):
        x, of = w.cast(x, of, BOOL), BOOL
    if not w.rank("X"):
        return w.cast(f"torch.abs({x})" if w.op.type == "frobenius_norm" else f"{x}.clone()", of, to)
    if w.op.type == "frobenius_norm":
        return w.cast(f"torch.linalg.vector_norm({x}, 2, {over(w, axes, keep)})", of, to)
    name = _REDUCTIONS[w.op.type]
    if name in ("sum", "mean"):
        same = of is to and (of.is_floating or of is INT64)
        if name == "mean" and not of.is_floating:
            return w.cast(f"{x}.to(torch.float64).mean({over(w, axes, keep)})", dtype("fp64"), to) if to.is_floating else _whole_mean(w, x, axes, keep)
        return f"{x}.{name}({over(w, axes, keep)}{'' if same else f', dtype={w.type(to)}'})"
    return w.cast(f"{x}.{name}({over(w, axes, keep)})", of, to)


def _whole_mean(w: PlainOp, x: str, axes: tuple[int, ...], keep: bool) -> str:
    total = w.let(f"{x}.sum({over(w, axes, keep)})")
    return f'torch.div({total}, {x}.numel() // {total}.numel(), rounding_mode="trunc").to({w.type(w.result("Out").known_dtype)})'


@writes("mean")
def _mean(w: PlainOp) -> str:
    made = f"{w.x('X')}.mean()"
    return made if not w.result("Out").known_dims else f"{made}.reshape(1)"


@writes("p_norm")
def _norm(w: PlainOp) -> str:
    rank = w.rank("X")
    axes = tuple(range(rank)) if w.of.asvector else (w.of.axis,)
    if not rank:
        axes = ()
    order = number_code(float(w.of.porder))
    return f"torch.linalg.vector_norm({w.x('X')}, {order}{', ' + over(w, axes, w.of.keepdim) if axes else ''})"


@writes("matmul_v2", "matmul")
def _matmul(w: PlainOp) -> str:
    x, y = w.x("X"), w.x("Y")
    if w.op.type == "matmul":
        across = (w.of.transpose_X, w.of.transpose_Y)
        if any(turned and w.rank(slot) == 1 for slot, turned in zip(("X", "Y"), across, strict=True)):
            raise Refused("it turns a vector")
    else:
        across = (w.of.trans_x, w.of.trans_y)
    x = f"{x}.mT" if across[0] and w.rank("X") > 1 else x
    y = f"{y}.mT" if across[1] and w.rank("Y") > 1 else y
    alpha = float(getattr(w.of, "alpha", 1.0))
    return f"{x} @ {y}" if alpha == 1.0 else f"({x} @ {y}) * {number_code(alpha)}"


@writes("mul")
def _mul(w: PlainOp) -> str:
    x, y, rows, columns = w.x("X"), w.x("Y"), w.of.x_num_col_dims, w.of.y_num_col_dims
    if (w.rank("Y"), columns) != (2, 1):
        y = f"{y}.flatten({columns}).flatten(0, {columns - 1})" if columns > 1 or w.rank("Y") > 2 else y
    if w.rank("X") == rows + 1 and w.rank("Y") == 2:
        return f"{x} @ {y}"
    if w.rank("X") > rows + 1:
        x = f"{x}.flatten({rows})"
    made = f"{x} @ {y}"
    return made if w.rank("Y") == columns + 1 else f"({made}).unflatten(-1, {tuple_of([w.size(d) for d in w.dims('Y')[columns:]])})"


@writes("einsum")
def _einsum(w: PlainOp) -> Any:
    if any(n in w.writer.wanted for slot in ("InnerCache", "XShape") for n in w.op.output_slots.get(slot, ())):
        return kernel_rule(w)
    return f"torch.einsum({json.dumps(w.of.equation)}, {', '.join(w.all('Operands'))})", [], []


@writes("bmm")
def _bmm(w: PlainOp) -> str:
    return f"torch.bmm({w.x('X')}, {w.x('Y')})"


@writes("grouped_matmul")
def _grouped_matmul(w: PlainOp) -> str:
    return w.call(extra_functions.grouped_product, w.x("X"), w.x("Y") + ".mT" * w.of.trans_y, w.x("Ends"))


@writes("dot")
def _dot(w: PlainOp) -> str:
    made = f"({w.x('X')} * {w.x('Y')}).sum(-1{', keepdim=True' if len(w.result('Out').known_dims) == w.rank('X') else ''})"
    return w.cast(made, w.dtype("X"), w.result("Out").known_dtype)


@writes("addmm")
def _addmm(w: PlainOp) -> str:
    return f"torch.addmm({w.x('Input')}, {w.x('X')}, {w.x('Y')}, beta={number_code(w.of.Beta)}, alpha={number_code(w.of.Alpha)})"


@writes("inverse")
def _inverse(w: PlainOp) -> str:
    return f"torch.linalg.inv({w.x('Input')})"


@writes("arg_max", "arg_min")
def _arg(w: PlainOp) -> str:
    x, to = w.x("X"), w.result("Out").known_dtype
    name = w.op.type.replace("_", "")
    if w.of.flatten or not w.rank("X"):
        made = f"torch.{name}({x})"
        made = f"{made}.reshape({w.target(w.result('Out').known_dims)})" if w.result("Out").known_dims else made
    else:
        made = f"torch.{name}({x}, {w.of.axis}{', keepdim=True' if w.of.keepdims else ''})"
    return w.cast(made, INT64, to)


@writes("cumsum")
def _cumsum(w: PlainOp) -> str:
    x, axis = w.x("X"), w.of.axis
    if w.of.flatten:
        x, axis = f"{x}.flatten()", 0
    if not w.rank("X"):
        return f"torch.zeros_like({x})" if w.of.exclusive else f"{x}.clone()" if not w.of.flatten else x
    x = w.let(f"{x}.flip({axis})" if w.of.reverse else x) if w.of.reverse or w.of.exclusive or w.of.flatten else x
    of = "" if w.dtype("X").is_floating or w.dtype("X") is INT64 else f", dtype={w.type(w.dtype('X'))}"
    made = f"torch.cumsum({x}, {axis}{of})"
    made = f"{made} - {x}" if w.of.exclusive else made
    return (f"({made}).flip({axis})" if w.of.exclusive else f"{made}.flip({axis})") if w.of.reverse else made
