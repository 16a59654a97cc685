"""Ragged values split into an array of time steps, the longest sequences first, and joined again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from foreshape.core.dims import Size, maximum, product
from foreshape.core.spec import FLOATING, LOD_TENSOR_ARRAY, Kind, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.tensor_array import TensorArray
from foreshape.core.values.torch_proxy import Tensor, aten, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import NOT_WRITTEN, Operator, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import require, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.control.tensor_arrays import ArrayGradient
from foreshape.language.ops.legacy.rank_tables import TABLE, at_first, ranked, selected
from foreshape.language.ops.rules.array_rules import ARRAY, EACH, d_out_slot, known_array, own_size
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows
from foreshape.machine.kernels.row_ranges import shown


def _is_nested(x: Spec, table: Spec) -> bool:
    """Tell whether the parts of the table are sequences of ``x``."""
    return x.lod is not None and table.lod is not None and len(x.lod.counts) > len(table.lod.counts)


def _numbers(x: Spec, table: Spec) -> Size:
    """Return the bytes of the row numbers, and of the new offsets, if parts are sequences."""
    if not _is_nested(x, table):
        return 0
    count, parts, row = x.known_dims[0], ranked(table)[1], product(x.known_dims[1:]) * x.known_dtype.itemsize
    return maximum(at_first(24, 8, row) * count + 8 * parts, 8 * count + 24 * parts)


def _order(table: Spec, stored: int, row: Size = 0) -> Size:
    """Return the bytes for the parts' order in time, if the table does not have it yet.

    They are 48 for each part before there is a result with parts of ``row`` bytes; ``stored`` stay with the table.
    """
    lod, parts = ranked(table)
    return at_first(48, stored, row) * parts + 32 * lod.counts[-1]


def _cuts(table: Offsets) -> list[int]:
    """Return the offsets of the time steps among all parts by time, with the end."""

    def make() -> list[int]:
        out = [0]
        for alive in table.alive:
            out.append(out[-1] + alive)
        return out

    return table.kept("cuts", make)


class LodTensorToArray(Operator):
    """Element t of Out = part t of every sequence of X longer than t, in the order of the table."""

    type = "lod_tensor_to_array"
    family = "control"
    X = operand(doc="ragged, as the table")
    RankTable = operand(kinds=TABLE)
    Out = result(doc="an array of [sequences longer than t, *row]; ragged if parts are sequences")

    def infer_var_type(self, X: Spec, RankTable: Spec) -> Kind:
        return LOD_TENSOR_ARRAY

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        lod, parts = ranked(RankTable)
        levels = len(lod.counts)
        counts = (*ragged(X, "X").counts, X.known_dims[0])
        require(len(counts) > levels, f"X must have at least {levels} level{'s' if levels > 1 else ''} of sequences, as the table", X=None, RankTable=None)
        words = "X must be grouped as what the table was made of"
        for count, expected in zip(counts, (*lod.counts, parts), strict=False):
            require_equal(count, expected, words, X=None, RankTable=None)
        inner = [unknown_size(f"{EACH}.level{k}") for k in range(len(counts) - levels - 1)]
        dims = (unknown_size(f"{EACH}0"), *X.known_dims[1:])
        return Spec(LOD_TENSOR_ARRAY, X.dtype, dims, new_lod(f"{EACH}.parts", inner) if inner else None)

    def workspace(self, X: Spec, RankTable: Spec) -> Size:
        if _is_nested(X, RankTable):
            return _numbers(X, RankTable) + 24 * ranked(RankTable)[1] + 32 * ranked(RankTable)[0].counts[-1]
        return _order(RankTable, 24, product(X.known_dims[1:]) * X.known_dtype.itemsize)

    def kernel(self, X: Tensor, RankTable: Offsets, *, offsets: list[Offsets]) -> TensorArray:
        return _taken_apart(X, offsets[0], RankTable)

    def gradient_ops(self, slots: GradientSlots) -> None:
        x, (out,) = slots.input("X"), slots.output("Out")
        if out in slots.available:
            inputs = {"X": x, "RankTable": slots.input("RankTable"), "Out@GRAD": slots.grad_of_output("Out")}
            slots.add("lod_tensor_to_array_grad", inputs, ({"X@GRAD": x} if slots.needs(x[0]) else {}) | {"Rest@GRAD": [out]})

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), RankTable=i64(9).ragged([4, 0, 5])),
        sample(X=f32(10, 3).ragged([2, 1, 3], [1, 2, 3, 1, 2, 1]), RankTable=i64(6).ragged([2, 1, 3])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4]), RankTable=i64(7).ragged([2, 1], [3, 0, 4])),
        sample(X=i64(6).ragged([1, 3, 2]), RankTable=i64(6).ragged([1, 3, 2])),
        sample(X=f32(5, 2).ragged([1, 2], [2, 0, 1], [3, 1, 1]), RankTable=i64(3).ragged([1, 2])),
        sample(X=f32(0, 2).ragged([0, 0]), RankTable=i64(0).ragged([0, 0]), differentiate=False),
    ]
    rejects = [
        reject(X=f32(9, 2).ragged([4, 5]), RankTable=i64(9).ragged([4, 0, 5]), says="X must be grouped as what the table was made of"),
        reject(X=f32(9, 2).ragged([4, 0, 5]), RankTable=i64(7).ragged([4, 0, 3]), says="X must be grouped as what the table was made of"),
        reject(X=f32(7, 2).ragged([3, 4]), RankTable=i64(7).ragged([1, 1], [3, 4]), says="X must have at least 2 levels"),
    ]


def _taken_apart(x: Tensor, of_x: Offsets, table: Offsets) -> TensorArray:
    depth = len(table.levels)
    if of_x.outer(depth) is not table and not torch.equal(of_x.levels[depth - 1], table.last):
        finding = f"it has {shown(of_x.levels[depth - 1])}, the table {shown(table.last)}"
        raise ExecutionError(f"X must be grouped as what the table was made of; {finding}")
    if len(of_x.levels) == depth:
        if not table.alive:
            return TensorArray((x[:0], None))
        parts: Sequence[Tensor] = aten.split_with_sizes(x.index_select(0, table.by_time), table.alive)
        return TensorArray.of(parts)
    index, levels = selected(of_x.levels[depth:], table.by_time)
    x = x.index_select(0, index)
    tensors: list[Tensor] = []
    offsets: list[Offsets] = []
    for begin, end in pairwise(_cuts(table)):
        starts: list[Tensor] = []
        for level in levels:
            piece = level[begin : end + 1]
            starts.append(piece - piece[0])
            begin, end = int(piece[0]), int(piece[-1])
        tensors.append(x[begin:end])
        offsets.append(Offsets(starts))
    out = TensorArray.of(tensors, offsets)
    out.empty = (x[:0], Offsets(levels))  # without parts all of it is empty
    return out


class LodTensorToArrayGrad(Operator):
    """X@GRAD = the elements of Out@GRAD put together again, zeros for missing ones; Rest@GRAD is Out@GRAD, emptied in place."""

    type = "lod_tensor_to_array_grad"
    family = "control"
    X = operand(doc="as in lod_tensor_to_array")
    RankTable = operand(kinds=TABLE)
    Out_GRAD = operand(FLOATING, kinds=ARRAY, name="Out@GRAD", doc="an array")
    X_GRAD = result(optional=True, name="X@GRAD", doc="as X")
    Rest_GRAD = result(optional=True, name="Rest@GRAD", doc="Out@GRAD")
    accumulates = ("Rest@GRAD",)
    gradient = NOT_WRITTEN

    def infer_var_type(self, *specs: Spec) -> tuple[Kind, Kind]:
        return specs[0].kind, LOD_TENSOR_ARRAY

    def infer_shape(self, *specs: Spec) -> tuple[Spec, Spec]:
        ragged(specs[0], "X")
        ranked(specs[1])
        return specs[0].like(), specs[2].like()

    def workspace(self, *specs: Spec) -> Size:
        return _numbers(specs[0], specs[1])

    def kernel(self, *operands: Any, offsets: list[Any], before: list[TensorArray | None]) -> tuple[Tensor, TensorArray]:
        x, table, d_out = operands
        index, cuts = table.by_time, _cuts(table)
        if len(offsets[0].levels) > len(table.levels):
            index, levels = selected(offsets[0].levels[len(table.levels) :], index)
            for level in levels:
                cuts = [int(n) for n in level[cuts]]
        out = torch.zeros_like(x)
        for step, (begin, end) in enumerate(pairwise(cuts)):
            part = d_out.take(step)
            if part is not None:
                out.index_copy_(0, index[begin:end], part)
        return out, d_out

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5]), RankTable=i64(9).ragged([4, 0, 5]), **d_out_slot([f32(2, 2), None, f32(2, 2)])),
        sample(X=f32(4, 3).ragged([2, 1], [1, 0, 3]), RankTable=i64(3).ragged([2, 1]), **d_out_slot([f32(4, 3)])),
    ]
    rejects = [reject(X=f32(9, 2), RankTable=i64(9).ragged([9]), says="X must be ragged", error=TypeMismatchError, **d_out_slot([f32(9, 2)]))]


class ArrayToLodTensor(Operator):
    """Out = the sequences with the elements of X as their parts, time step by time step: the inverse of lod_tensor_to_array."""

    type = "array_to_lod_tensor"
    family = "control"
    X = operand(kinds=ARRAY, doc="an array with an element for each time step, ragged if parts are sequences")
    RankTable = operand(kinds=TABLE)
    Out = result(new_offsets=True, doc="rows of the elements, ragged as the tensor of the table")

    def infer_shape(self, X: Spec, RankTable: Spec) -> Spec:
        lod, parts = ranked(RankTable)
        dims = known_array(X, "X")
        require(len(dims) > 0, "the elements of X must have at least one dim", X=None)
        row = [own_size(d, f"size{axis}") for axis, d in enumerate(dims[1:], 1)]
        if X.lod is None:
            return rows(X.dtype, (parts, *row), lod)
        inner = [unknown_size(f"level{k}") for k in range(1, len(X.lod.counts))]
        return rows(X.dtype, (unknown_size("rows"), *row), new_lod("Out", (*lod.counts, parts, *inner)))

    def workspace(self, X: Spec, RankTable: Spec) -> Size:
        """Return the bytes of the elements one after the other, before they are put in order.

        If the elements are ragged themselves, no description tells the number of rows of all of them. The array's spec is of one element, and the number of
        rows of the result is a symbol only the result has. So the copy of the rows, with 16 bytes of numbers each, cannot be told: only the order of the parts
        is counted.
        """
        if X.dtype is None or X.dims is None or X.lod is not None or not RankTable.dims:
            return _order(RankTable, 32) if RankTable.dims else 0
        row = product(X.dims[1:]) * X.dtype.itemsize
        return RankTable.dims[0] * row + _order(RankTable, 32, row)

    def kernel(self, X: TensorArray | None, RankTable: Offsets) -> tuple[Tensor, Offsets]:
        parts = X.whole() if X is not None else []
        if X is None or not parts:
            if X is None or X.empty is None or RankTable.alive:
                raise ExecutionError("array_to_lod_tensor: the array has no elements, so that nothing is known of their rows")
            rows, inner = X.empty
            return rows, RankTable if inner is None else Offsets([*RankTable.levels, *inner.levels])
        if any(o is not None for o in X.offsets):
            return self._of_sequences(X, parts, RankTable)
        alive = RankTable.alive or [0]
        if [p.shape[0] for p in parts] != alive:
            raise ExecutionError(
                f"array_to_lod_tensor: the elements must have {alive[:12]} rows, as many as sequences are longer; seen {[p.shape[0] for p in parts[:12]]}"
            )
        return torch.cat(parts).index_select(0, RankTable.from_time), RankTable

    def _of_sequences(self, X: TensorArray, parts: Sequence[Tensor], table: Offsets) -> tuple[Tensor, Offsets]:
        element_levels: list[tuple[Tensor, ...]] = [o.levels if o is not None else () for o in X.offsets]
        if any(len(e) != len(element_levels[0]) for e in element_levels) or [len(e[0]) - 1 for e in element_levels] != table.alive:
            raise ExecutionError(
                f"array_to_lod_tensor: the elements must have {table.alive[:12]} sequences, as many as sequences are longer; "
                f"seen {[len(e[0]) - 1 if e else None for e in element_levels[:12]]}"
            )
        joined = [Offsets.of_lengths(torch.cat([e[k].diff() for e in element_levels])).last for k in range(len(element_levels[0]))]
        index, levels = selected(joined, table.from_time)
        return torch.cat(list(parts)).index_select(0, index), Offsets([*table.levels, *levels])

    def gradient_ops(self, slots: GradientSlots) -> None:
        x = slots.input("X")
        if slots.needs(x[0]) and slots.output("Out")[0] in slots.available:
            slots.add("array_to_lod_tensor_grad", {"RankTable": slots.input("RankTable"), "Out@GRAD": slots.grad_of_output("Out")}, {"X@GRAD": x})

    samples = [
        sample(X=[f32(2, 3), f32(2, 3), f32(1, 3)], RankTable=i64(5).ragged([2, 0, 3])),
        sample(X=[f32(2, 3), f32(1, 3), f32(1, 3)], RankTable=i64(4).ragged([2, 1], [3, 0, 1])),
        sample(X=[f32(4, 2).ragged([1, 0, 3]), f32(2, 2).ragged([2])], RankTable=i64(4).ragged([1, 2, 1])),
        sample(X=[i64(0, 3)], RankTable=i64(0).ragged([0, 0])),
    ]
    rejects = [
        reject(X=[f32()], RankTable=i64(1).ragged([1]), says="at least one dim"),
        reject(X=[], RankTable=i64(1).ragged([1]), says="nothing is written to X before"),
    ]


class ArrayToLodTensorGrad(ArrayGradient):
    """X@GRAD, an array: time step t of Out@GRAD is added to its element t, in place."""

    type = "array_to_lod_tensor_grad"
    family = "control"
    RankTable = operand(kinds=TABLE)
    Out_GRAD = operand(FLOATING, name="Out@GRAD", doc="as Out")

    def infer_shape(self, *specs: Spec) -> Spec:
        lod = ragged(specs[1], "Out@GRAD")
        inner = lod.counts[len(ranked(specs[0])[0].counts) + 1 :]
        dims = (unknown_size(f"{EACH}0"), *specs[1].known_dims[1:])
        counts = [unknown_size(f"{EACH}.level{k}") for k in range(len(inner))]
        return Spec(LOD_TENSOR_ARRAY, specs[1].dtype, dims, new_lod(f"{EACH}.parts", counts) if counts else None)

    def workspace(self, *specs: Spec) -> Size:
        """Return the bytes of the rows in order: a plan takes the array as made of Out@GRAD, and they are a copy of it."""
        return specs[1].nbytes + _numbers(specs[1], specs[0])

    def kernel(self, *operands: Any, offsets: list[Any], before: list[TensorArray | None]) -> TensorArray:
        parts = _taken_apart(operands[1], offsets[1], operands[0])
        out = before[0]
        if out is None:
            return parts
        for step, part in enumerate(parts.tensors):
            if part is not None:
                before_it = out.get(step)
                out.write(step, part if before_it is None else part.add_(before_it))  # the parts are memory of their own
        return out

    samples = [
        sample(RankTable=i64(9).ragged([4, 0, 5]), **d_out_slot(f32(9, 2).ragged([4, 0, 5]))),
        sample(RankTable=i64(3).ragged([2, 1]), **d_out_slot(f32(4, 2).ragged([2, 1], [1, 0, 3]))),
    ]
    rejects = [reject(RankTable=i64(9).ragged([9]), says="Out@GRAD must be ragged", error=TypeMismatchError, **d_out_slot(f32(9, 2)))]
