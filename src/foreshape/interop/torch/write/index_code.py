"""Torch code of looking elements up by numbers, and of putting them."""

from __future__ import annotations

from typing import Any

from foreshape.dims import product
from foreshape.interop.torch.write.code_rules import writes
from foreshape.interop.torch.write.helpers import entries, unstable_order
from foreshape.interop.torch.write.kernel_rules import kernel_rule
from foreshape.interop.torch.write.plain_op import PlainOp
from foreshape.kernels.introsort import MOST_ELEMENTS
from foreshape.spec import INT64

_FEW = 16
"""Up to so many elements an introsort keeps the order of equal ones."""


def _row(w: PlainOp, slot: str) -> str:
    """Return numbers of rows as one dim."""
    return w.x(slot) if w.rank(slot) == 1 else f"{w.x(slot)}.reshape(-1)"


@writes("gather")
def _gather(w: PlainOp) -> str:
    axis = w.int("Axis") if w.has("Axis") else str(w.of.axis)
    made = f"torch.index_select({w.x('X')}, {axis}, {_row(w, 'Index')})"
    return made if w.rank("Index") else f"{made}.squeeze({axis})"


@writes("index_select")
def _index_select(w: PlainOp) -> str:
    return f"{w.x('X')}[{':, ' * (w.of.dim % w.rank('X'))}{w.x('Index')}]"  # torch.index_select refuses negative numbers


@writes("gather_nd")
def _gather_nd(w: PlainOp) -> Any:
    size = w.dims("Index")[-1]
    return f"{w.x('X')}[{w.x('Index')}.unbind(-1)]" if isinstance(size, int) and size else kernel_rule(w)


@writes("one_hot_v2", "one_hot")
def _one_hot(w: PlainOp) -> Any:
    if w.of.allow_out_of_range or w.op.type == "one_hot":
        return kernel_rule(w)
    depth = w.int("depth_tensor") if w.has("depth_tensor") else str(w.of.depth)
    return f"F.one_hot({w.cast(w.x('X'), w.dtype('X'), INT64)}, {depth}).to({w.type(w.result('Out').known_dtype)})"


@writes("set_value")
def _set_value(w: PlainOp) -> Any:
    """Write entries of a copy: their numbers, or the value's."""
    dims, rank = w.dims("Input"), w.rank("Input")
    index = ["slice(None)"] * rank
    starts, ends, steps = (_numbers(w, name, slot) for name, slot in (("starts", "StartsTensorList"), ("ends", "EndsTensorList"), ("steps", "StepsTensorList")))
    steps = steps or ["1"] * len(starts)
    if w.of.none_axes or not all(s.isdigit() and int(s) > 0 for s in steps):
        return kernel_rule(w)
    for axis, start, end, step in zip(w.of.axes, starts, ends, steps, strict=True):
        axis %= rank
        size = dims[int(axis)]
        whole = end.lstrip("-").isdigit() and isinstance(size, int) and int(end) >= size
        index[axis] = (
            start if axis in {a % rank for a in w.of.decrease_axes} else f"slice({start}, {'None' if whole else end}{f', {step}' if step != '1' else ''})"
        )
    if w.has("ValueTensor"):
        value = w.x("ValueTensor")
    else:
        numbers = list(w.of._numbers(w.dtype("Input")))
        of = f"dtype={w.type(w.dtype('Input'))}, device={w.device()}"
        if w.dtype("Input").is_complex or len(numbers) != 1:
            value = f"torch.tensor({numbers}, {of}).reshape({tuple(w.of.shape)})"
        else:
            value = w.number(numbers[0], w.dtype("Input"))
    while len(index) > 1 and index[-1] == "slice(None)":
        index.pop()
    return w.call(entries.with_entries, w.x("Input"), f"({', '.join(index)},)" if index else "()", value)


def _numbers(w: PlainOp, attribute: str, slot: str) -> list[str]:
    if w.count(slot):
        return [w.int(slot, at) for at in range(w.count(slot))]
    return [str(n) for n in getattr(w.of, attribute)]


@writes("argsort")
def _argsort(w: PlainOp) -> Any:
    if not w.rank("X"):
        return kernel_rule(w)
    count = product(w.dims("X"))
    if w.of.stable or (isinstance(count, int) and not _FEW < count <= MOST_ELEMENTS):
        made = f"torch.sort({w.x('X')}, dim={w.of.axis}, descending={w.of.descending}, stable=True)"
    else:
        made = w.call(unstable_order.unstable_sort, w.x("X"), w.of.axis, w.of.descending)
    found = w.several(made, 2)
    return found[0], found[1]
