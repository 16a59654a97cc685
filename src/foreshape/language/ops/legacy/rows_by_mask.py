"""Rows divided by a mask, and merged again: split_lod_tensor and merge_lod_tensor, written by `fluid.layers.IfElse` of old programs."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size, product
from foreshape.core.spec import BOOL, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import ExecutionError, TypeMismatchError
from foreshape.language.operator import AttrType, Operator, attribute, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import fail, require, require_equal, require_rank, unknown_size
from foreshape.language.operator.samples import b1, f32, i64, reject, sample
from foreshape.language.ops.legacy.rank_tables import selected
from foreshape.language.ops.rules.ragged_rules import new_lod, rows


def _level() -> Any:
    return attribute(AttrType.INT, 0, low=0, doc="the level of the sequences of Mask, from the outermost")


def _check_mask(Mask: Spec) -> Size:
    """Return the number of rows of a mask."""
    require_rank(2, Mask, "Mask")
    require_equal(Mask.known_dims[1], 1, "Mask must be a column, [n, 1]", Mask=1)
    return Mask.known_dims[0]


def _selected_rows(x: Tensor, levels: tuple[Tensor, ...], which: Tensor) -> tuple[Tensor, Offsets | None]:
    """Return the rows, or the outermost sequences, at these places."""
    index, offsets = selected(levels, which)
    return x.index_select(0, index), Offsets(offsets) if offsets else None


class SplitLodTensor(Operator):
    """OutTrue = the rows of X (for a ragged X its sequences at ``level``) where Mask is true, OutFalse = the others.

    The levels above ``level`` are not in the results.
    """

    type = "split_lod_tensor"
    family = "control"
    X = operand(doc="rows, or ragged rows")
    Mask = operand((BOOL,), doc="[n, 1], for each row, or sequence at level")
    OutTrue = result(new_offsets=True, doc="the rows with a true Mask, in the order of X")
    OutFalse = result(new_offsets=True, doc="the others")
    level = _level()

    def infer_shape(self, X: Spec, Mask: Spec) -> tuple[Spec, Spec]:
        count = _check_mask(Mask)
        require(X.rank > 0, "X must have at least one dim", X=None)
        chosen = unknown_size("true")
        row = X.known_dims[1:]
        if X.lod is None:
            require(self.level == 0, f"level must be 0, since X is dense; seen {self.level}", X=None)
            require_equal(count, X.known_dims[0], "Mask must have one row for each row of X", Mask=0, X=0)
            return X.dense((chosen, *row)), X.dense((count - chosen, *row))
        counts: tuple[Size, ...] = X.lod.counts
        require(self.level < len(counts), f"level must be one of the {len(counts)} of X; seen {self.level}", X=None)
        level: int = self.level
        require_equal(count, counts[level], "Mask must have one row for each sequence of X", Mask=0, X=0)
        inner = [unknown_size(f"level{k}") for k in range(self.level + 1, len(counts))]
        row_count = unknown_size("rows")
        remaining = (count - chosen, *(c - i for c, i in zip(counts[self.level + 1 :], inner, strict=True)))
        return (
            rows(X.dtype, (row_count, *row), new_lod("OutTrue", (chosen, *inner))),
            rows(X.dtype, (X.known_dims[0] - row_count, *row), new_lod("OutFalse", remaining)),
        )

    def workspace(self, X: Spec, Mask: Spec) -> Size:
        levels = 0 if X.lod is None else sum(X.lod.counts, X.known_dims[0])
        return 64 * (Mask.elements + levels + 4)

    def kernel(self, X: Tensor, Mask: Tensor, *, offsets: list[Offsets | None]) -> Any:
        mask, sequences = Mask.reshape(-1), offsets[0]
        levels = () if sequences is None else sequences.levels[self.level :]
        true, true_offsets = _selected_rows(X, levels, mask.nonzero().view(-1))
        false, false_offsets = _selected_rows(X, levels, mask.logical_not().nonzero().view(-1))
        return true, false, true_offsets, false_offsets

    def gradient_ops(self, slots: GradientSlots) -> None:
        for slot in ("OutTrue", "OutFalse"):
            if not all(name in slots.available for name in slots.output(slot)):  # outputs without a reader have a gradient of zeros
                slots.add("fill_zeros_like", {"X": slots.output(slot)}, {"Out": slots.output(slot)})
        inputs = {"X": slots.input("X"), "Mask": slots.input("Mask"), "InTrue": slots.grad_of_output("OutTrue"), "InFalse": slots.grad_of_output("OutFalse")}
        slots.add("merge_lod_tensor", inputs, {"Out": slots.input("X")}, {"level": self.level})

    samples = [
        sample(X=f32(5, 2), Mask=b1(5, 1, data=[[1], [0], [0], [1], [1]]), differentiate=False),
        sample(X=i64(5), Mask=b1(5, 1, data=[[0], [0], [0], [0], [0]])),
        sample(X=f32(9, 3).ragged([2, 3, 4]), Mask=b1(3, 1, data=[[0], [1], [0]]), differentiate=False),
        sample(X=f32(7, 2).ragged([2, 1], [3, 1, 3]), Mask=b1(2, 1, data=[[0], [1]]), differentiate=False),
        sample(X=f32(7, 2).ragged([2, 1], [3, 1, 3]), Mask=b1(3, 1, data=[[0], [1], [1]]), level=1, differentiate=False),
    ]
    rejects = [
        reject(X=f32(5, 2), Mask=b1(5), says="Mask must have 2 dims"),
        reject(X=f32(5, 2), Mask=b1(5, 2), says="Mask must be a column"),
        reject(X=f32(5, 2), Mask=b1(4, 1), says="one row for each row of X"),
        reject(X=f32(), Mask=b1(1, 1), says="X must have at least one dim"),
        reject(X=f32(5, 2), Mask=b1(5, 1), level=1, says="level must be 0"),
        reject(X=f32(5, 2).ragged([2, 3]), Mask=b1(5, 1), says="one row for each sequence of X"),
        reject(X=f32(5, 2).ragged([2, 3]), Mask=b1(2, 1), level=1, says="level must be one of the 1 of X"),
    ]


class MergeLodTensor(Operator):
    """Out = the rows of InTrue where Mask is true and of InFalse elsewhere, in the order of Mask. For ragged operands: the outermost sequences.

    The levels of X above ``level`` come before the levels of InTrue and InFalse. (PaddlePaddle's kernel stops after a sequence without rows; here it is one
    like any other.)
    """

    type = "merge_lod_tensor"
    family = "control"
    X = operand(doc="the divided rows: their levels above level are read")
    Mask = operand((BOOL,), doc="[n, 1]")
    InTrue = operand(doc="as many rows, or sequences, as Mask has true")
    InFalse = operand(same_type_as="InTrue", doc="as many as Mask has false")
    Out = result(new_offsets=True, doc="the rows of both")
    level = _level()

    def infer_shape(self, X: Spec, Mask: Spec, InTrue: Spec, InFalse: Spec) -> Spec:
        count = _check_mask(Mask)
        require(InTrue.rank > 0, "InTrue must have at least one dim", InTrue=None)
        require_rank(InTrue.rank, InFalse, "InFalse")
        row = list(InTrue.known_dims[1:])
        for axis, (a, b) in enumerate(zip(row, InFalse.known_dims[1:], strict=True), 1):
            row[axis - 1] = require_equal(a, b, "the rows of InTrue and InFalse must be alike", InTrue=axis, InFalse=axis)
        if (InTrue.lod is None) != (InFalse.lod is None) or InTrue.lod_level != InFalse.lod_level:
            fail("InTrue and InFalse must have as many levels of sequences", TypeMismatchError, InTrue=None, InFalse=None)
        require(self.level == 0 or self.level < X.lod_level, f"level must be one of the {X.lod_level} of X; seen {self.level}", X=None)
        if InTrue.lod is None or InFalse.lod is None:
            require(self.level == 0, f"level must be 0, since InTrue is dense; seen {self.level}", InTrue=None)
            words = "InTrue and InFalse must have together as many rows as Mask"
            total = require_equal(count, InTrue.known_dims[0] + InFalse.known_dims[0], words, Mask=0, InTrue=0, InFalse=0)
            return InTrue.dense((total, *row))
        counts = [a + b for a, b in zip(InTrue.lod.counts, InFalse.lod.counts, strict=True)]
        counts[0] = require_equal(count, counts[0], "InTrue and InFalse must have together as many sequences as Mask has rows", Mask=0)
        above = X.lod.counts[: self.level] if X.lod is not None else ()
        return rows(InTrue.dtype, (InTrue.known_dims[0] + InFalse.known_dims[0], *row), new_lod("Out", (*above, *counts)))

    def workspace(self, X: Spec, Mask: Spec, InTrue: Spec, InFalse: Spec) -> Size:
        row_count = InTrue.known_dims[0] + InFalse.known_dims[0]
        levels = sum((c for s in (InTrue, InFalse) if s.lod is not None for c in s.lod.counts), row_count)
        return row_count * product(InTrue.known_dims[1:]) * InTrue.known_dtype.itemsize + 96 * (Mask.elements + levels + 4)

    def kernel(self, X: Tensor, Mask: Tensor, InTrue: Tensor, InFalse: Tensor, *, offsets: list[Offsets | None]) -> Any:
        mask, true, false = Mask.reshape(-1), offsets[2], offsets[3]
        true_places, false_places = mask.nonzero().view(-1), mask.logical_not().nonzero().view(-1)
        counts = [(InTrue.shape[0], InFalse.shape[0])] if true is None or false is None else [(len(true.levels[0]) - 1, len(false.levels[0]) - 1)]
        if counts[0] != (len(true_places), len(false_places)):
            raise ExecutionError(
                f"merge_lod_tensor: Mask has {len(true_places)} true and {len(false_places)} false; InTrue has {counts[0][0]}, InFalse {counts[0][1]}"
            )
        order = torch.empty_like(mask, dtype=torch.int64)
        order[true_places] = torch.arange(len(true_places), device=mask.device)
        order[false_places] = torch.arange(len(true_places), len(mask), device=mask.device)
        joined = torch.cat([InTrue, InFalse])
        if true is None or false is None:
            return joined.index_select(0, order), None
        levels = tuple(torch.cat([a, b[1:] + a[-1]]) for a, b in zip(true.levels, false.levels, strict=True))
        out, inner = _selected_rows(joined, levels, order)
        above = () if offsets[0] is None else offsets[0].levels[: self.level]
        return out, Offsets([*above, *(inner.levels if inner is not None else ())])

    def gradient_ops(self, slots: GradientSlots) -> None:
        results = {"OutTrue": slots.input("InTrue"), "OutFalse": slots.input("InFalse")}
        slots.add(
            "split_lod_tensor",
            {"X": slots.grad_of_output("Out"), "Mask": slots.input("Mask")},
            {s: [n if slots.needs(n) else "@EMPTY@" for n in names] for s, names in results.items()},
            {"level": self.level},
        )

    samples = [
        sample(X=f32(5, 2), Mask=b1(5, 1, data=[[1], [0], [0], [1], [1]]), InTrue=f32(3, 4), InFalse=f32(2, 4), differentiate=False),
        sample(X=f32(3), Mask=b1(3, 1, data=[[1], [1], [1]]), InTrue=i64(3), InFalse=i64(0)),
        sample(X=f32(9, 3).ragged([2, 3, 4]), Mask=b1(3, 1, data=[[0], [1], [0]]), InTrue=f32(3, 5).ragged([3]), InFalse=f32(6, 5).ragged([2, 4]),
               differentiate=False),
        sample(X=f32(7, 2).ragged([2, 1], [3, 1, 3]), Mask=b1(2, 1, data=[[0], [1]]), InTrue=f32(3, 2).ragged([1], [3]),
               InFalse=f32(4, 2).ragged([2], [3, 1]), differentiate=False),
        sample(X=f32(7, 2).ragged([2, 1], [3, 1, 3]), Mask=b1(3, 1, data=[[0], [1], [1]]), InTrue=f32(4, 2).ragged([1, 3]), InFalse=f32(3, 2).ragged([3]),
               level=1, differentiate=False),
    ]  # fmt: skip
    rejects = [
        reject(X=f32(5, 2), Mask=b1(5, 1), InTrue=f32(3, 4), InFalse=f32(3, 4), says="together as many rows as Mask"),
        reject(X=f32(5, 2), Mask=b1(5, 1), InTrue=f32(3, 4), InFalse=f32(2, 3), says="must be alike"),
        reject(X=f32(5, 2), Mask=b1(5, 1), InTrue=f32(3, 4), InFalse=f32(2), says="InFalse must have 2 dims"),
        reject(X=f32(5, 2), Mask=b1(5, 1), InTrue=f32(3, 4).ragged([3]), InFalse=f32(2, 4), says="as many levels of sequences", error=TypeMismatchError),
        reject(X=f32(5, 2), Mask=b1(5, 1), InTrue=f32(3, 4).ragged([3]), InFalse=f32(2, 4).ragged([2]), says="as many sequences as Mask has rows"),
        reject(X=f32(5, 2), Mask=b1(5, 1), InTrue=f32(3, 4), InFalse=f32(2, 4), level=1, says="level must be one of the 0 of X"),
    ]
