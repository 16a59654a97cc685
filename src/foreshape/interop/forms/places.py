"""Entries of tensors by their places, as torch code."""

from __future__ import annotations

from typing import Final

from foreshape.core.spec import BOOL, INT64
from foreshape.interop.forms.rules import to_torch
from foreshape.interop.torch.write import helpers
from foreshape.interop.torch.write.plain_op import PlainOp, tuple_of


@to_torch()
def _to_torch_multiplex(w: PlainOp) -> str:
    ids = w.let(w.call(helpers.bounds.within, f"{w.x('Ids')}.reshape(-1).long()", w.count("X"), "'a number in Ids'"))
    return f"torch.stack({tuple_of(w.all('X'))})[{ids}, torch.arange({ids}.shape[0], device={w.device()})]"


@to_torch()
def _to_torch_take_along_axis(w: PlainOp) -> str:
    x, axis = w.x("Input"), w.of.Axis
    places = w.let(w.call(helpers.bounds.within, f"{w.x('Index')}.long()", f"{x}.shape[{axis}]", "'a number in Index'", f"-{x}.shape[{axis}]"))
    return f"torch.gather({x}, {axis}, torch.where({places} < 0, {places} + {x}.shape[{axis}], {places}))"


@to_torch()
def _to_torch_scatter(w: PlainOp) -> str:
    rows = w.let(f"{w.x('Ids')}.reshape(-1).long()")
    if w.of.overwrite:
        return f"torch.index_copy({w.x('X')}, 0, {rows}, {w.x('Updates')})"
    return f"torch.index_fill({w.x('X')}, 0, {rows}, 0).index_add(0, {rows}, {w.x('Updates')})"


@to_torch()
def _to_torch_scatter_nd_add(w: PlainOp) -> str:
    if w.dims("Index")[-1] == 0:  # all updates are for the whole of X
        return f"{w.x('X')} + {w.x('Updates')}.reshape(-1, *{w.x('X')}.shape).sum(0)"
    x, index = w.x("X"), w.let(f"{w.x('Index')}.long()")
    places = [
        w.call(helpers.bounds.within, f"{index}[..., {axis}]", f"{x}.shape[{axis}]", f"'an index into axis {axis}'") for axis in range(w.dims("Index")[-1])
    ]
    return f"torch.index_put({x}, {tuple_of(places)}, {w.x('Updates')}, accumulate=True)"


@to_torch()
def _to_torch_index_add(w: PlainOp) -> str:
    return f"torch.index_add({w.x('X')}, {w.of.axis}, {w.x('Index')}, {w.x('AddValue')})"


@to_torch()
def _to_torch_index_put(w: PlainOp) -> str:
    places = [x if w.dtype("indices", k) is BOOL else w.cast(x, w.dtype("indices", k), INT64) for k, x in enumerate(w.all("indices"))]
    return f"torch.index_put({w.x('x')}, {tuple_of(places)}, {w.x('value')}, accumulate={w.of.accumulate})"


@to_torch()
def _to_torch_shard_index(w: PlainOp) -> str:
    x = w.let(w.call(helpers.bounds.within, w.x("X"), w.of.index_num, "'a number in X'"))
    share = -(-w.of.index_num // w.of.nshards)
    return f"torch.where({x} // {share} == {w.of.shard_id}, {x} % {share}, {w.of.ignore_value})"


_REDUCTIONS: Final = {"add": "sum", "sum": "sum", "mul": "prod", "multiply": "prod", "mean": "mean", "amin": "amin", "amax": "amax"}


@to_torch()
def _to_torch_put_along_axis(w: PlainOp) -> str:
    x, value, axis = w.x("Input"), w.x("Value"), w.of.Axis
    index = w.call(helpers.bounds.within, f"{w.x('Index')}.long()", f"{x}.shape[{axis}]", "'a number in Index'", f"-{x}.shape[{axis}]")
    if w.of.Reduce == "assign":
        return w.call(helpers.entries.put_along, x, index, value, axis)
    index = w.let(index)
    places = f"torch.where({index} < 0, {index} + {x}.shape[{axis}], {index})"
    return f'torch.scatter_reduce({x}, {axis}, {places}, {value}, "{_REDUCTIONS[w.of.Reduce]}", include_self={w.of.Include_self})'


@to_torch()
def _to_torch_similarity_focus(w: PlainOp) -> str:
    return w.call(helpers.ranking.similarity_focus, w.x("X"), w.of.axis, list(w.of.indexes))
