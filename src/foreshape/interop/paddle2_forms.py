"""Operators whose form here has no kernel in PaddlePaddle 2.6.2, written in an older form of the same numbers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

from foreshape.core.spec import BOOL, FP32, FP64, INT8, INT16, INT32, INT64, LOD_TENSOR, UINT8, DType, Spec
from foreshape.language.program import Op, Program, Variable
from foreshape.language.program.block import Block


def write_older_forms(program: Program) -> None:
    """Put older forms in the places of ops of a program; names of results stay. Unknown ops, and ops with errors, stay as they are."""
    for block in program.blocks:
        index = 0
        while index < len(block.ops):
            op = block.ops[index]
            form = _FORMS.get(op.type)
            count = len(block.ops)
            if form is not None and op.attributes.error is None:
                form(_InsertionPoint(block, index, op), op)
            index += 1 + len(block.ops) - count
    program.touch()


class _InsertionPoint:
    """A place before an op of a block, where others are written."""

    __slots__ = ("block", "index", "site")

    def __init__(self, block: Block, index: int, op: Op) -> None:
        self.block, self.index, self.site = block, index, op.site

    def variable(self, op: Op, slot: str) -> Variable:
        operand = self.block.find(op.input(slot) or "")
        assert operand is not None
        return operand

    def write(self, type: str, inputs: Mapping[str, Any], attrs: Mapping[str, Any] | None = None, out: str | None = None) -> list[Variable]:
        """Write an op, and return its results in the slot Out."""
        op = self.block.append_op(type, inputs, None if out is None else {"Out": out}, dict(attrs or {}), index=self.index, site=self.site)
        self.index += 1
        return [self.block.var(name) for name in op.outputs["Out"]]

    def cast(self, x: Variable, dtype: DType, out: str | None = None) -> Variable:
        source = x.spec.known_dtype
        return x if source is dtype and out is None else self.write("cast", {"X": x}, {"in_dtype": source.code, "out_dtype": dtype.code}, out)[0]


def _where_form(place: _InsertionPoint, op: Op) -> None:
    """Broadcast the operands before, in an element type with a kernel there."""
    condition, x, y = (place.variable(op, slot) for slot in ("Condition", "X", "Y"))
    dtype, result = x.spec.known_dtype, op.output("Out") or ""
    wide = dtype if dtype in _WIDE else INT32 if dtype.is_integer else FP32
    if wide is dtype and condition.spec.dims == x.spec.dims == y.spec.dims:
        return
    inputs = [place.cast(condition, wide), place.cast(x, wide), place.cast(y, wide)]
    condition, x, y = place.write("broadcast_tensors", {"X": inputs})
    operands = {"Condition": place.cast(condition, BOOL), "X": x, "Y": y}
    if wide is dtype:
        place.write("where", operands, out=result)
    else:
        place.cast(place.write("where", operands)[0], dtype, result)
    place.block.remove_op(op)


def _widened(*narrow: DType) -> Callable[[_InsertionPoint, Op], None]:
    """Return a form of an op to compute its elements of some types as int32, without a kernel for them there."""

    def form(place: _InsertionPoint, op: Op) -> None:
        result = op.output("Out") or ""
        dtype = place.variable(op, "X").spec.known_dtype
        if dtype not in narrow or place.block.find(result) is None:
            return
        for slot in {"X", "Y"} & op.inputs.keys():
            op.set_input(slot, place.cast(place.variable(op, slot), INT32).name)
        wide = place.block.create_variable(place.block.program.unique_name(f"{op.type}.wide"), place.block.var(result).spec.with_dtype(INT32))
        op.rename_output(result, wide.name)
        wide.op = op
        place.index += 1
        place.cast(wide, dtype, result)

    return form


def _cumsum(place: _InsertionPoint, op: Op) -> None:
    """Subtract the entries themselves: there the kernel is wrong in place, as an executor may choose."""
    values = op.attributes.values
    if values.get("exclusive") and not values.get("flatten"):
        x = place.variable(op, "X")
        (sums,) = place.write("cumsum", {"X": x}, {"axis": values.get("axis", -1), "reverse": values.get("reverse", False)})
        place.write("elementwise_sub", {"X": sums, "Y": x}, out=op.output("Out"))
        place.block.remove_op(op)


def _grouped_matmul(place: _InsertionPoint, op: Op) -> None:
    """Multiply all rows by the matrix of each group, and add those of its own: there is no such operator there."""
    x, y, ends = (place.variable(op, slot) for slot in ("X", "Y", "Ends"))
    groups, dtype = y.spec.known_dims[0], x.spec.known_dtype
    if not isinstance(groups, int) or not groups or dtype not in (FP32, FP64):
        return

    def filled(number: int, like: Variable) -> Variable:
        return place.write("fill_any_like", {"X": like}, {"value": float(number), "dtype": INT64.code})[0]

    (column,) = place.write("slice", {"Input": x}, {"axes": [1], "starts": [0], "ends": [1]})
    ones = filled(1, column)
    (behind,) = place.write("cumsum", {"X": ones}, {"axis": 0})
    (row,) = place.write("elementwise_sub", {"X": behind, "Y": ones})
    (group,) = place.write("searchsorted", {"SortedSequence": place.cast(ends, INT64), "Values": row}, {"right": True})
    parts: list[Variable] = []
    for index in range(groups):
        (matrix,) = place.write("slice", {"Input": y}, {"axes": [0], "starts": [index], "ends": [index + 1], "decrease_axis": [0]})
        (product,) = place.write("matmul_v2", {"X": x, "Y": matrix}, {"trans_y": bool(op.attributes.values.get("trans_y"))})
        (mask,) = place.write("equal", {"X": group, "Y": filled(index, group)})
        parts += place.write("elementwise_mul", {"X": product, "Y": place.cast(mask, dtype)})
    place.write("sum", {"X": parts}, out=op.output("Out"))
    place.block.remove_op(op)


def _rnn(place: _InsertionPoint, op: Op) -> None:
    """Name a result always written by the kernel there."""
    if not op.output("DropoutState"):
        state = place.block.create_variable(place.block.program.unique_name("rnn.dropout_state"), Spec(LOD_TENSOR, UINT8, ()))
        op.output_slots["DropoutState"] = (state.name,)


def _assert(_: _InsertionPoint, op: Op) -> None:
    """Give the values to print, required there: the condition."""
    if not op.inputs.get("Data"):
        op.input_slots["Data"] = op.inputs["Cond"]


_WIDE: Final = (BOOL, INT32, INT64, FP32, FP64)
_NARROW: Final = ("elementwise_add", "elementwise_sub", "elementwise_mul", "elementwise_min", "elementwise_max", "elementwise_mod", "reduce_max", "reduce_min")
_FORMS: Final[Mapping[str, Callable[[_InsertionPoint, Op], None]]] = {
    **dict.fromkeys(_NARROW, _widened(BOOL, UINT8, INT8, INT16)),
    "gather": _widened(BOOL),
    "where": _where_form,
    "cumsum": _cumsum,
    "grouped_matmul": _grouped_matmul,
    "rnn": _rnn,
    "assert": _assert,
}
