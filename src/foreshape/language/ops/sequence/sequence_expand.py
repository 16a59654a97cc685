"""Repetitions after the sequences of another value: sequence_expand, sequence_expand_as."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import AttrType, Operator, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_equal, unknown_size
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.operator.sequence_computations import SequenceSpreading
from foreshape.language.operator.temporaries import copies
from foreshape.language.ops.rules.gradient_dims import check_made
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows
from foreshape.machine.kernels.segments import segment_sum


def _level(sequences: Offsets, level: int) -> Offsets:
    """Return one level alone: its sequences counted in sequences of the next level, or in rows."""
    if len(sequences.levels) == 1:
        return sequences
    return sequences.kept(("alone", level), lambda: Offsets([sequences.levels[level]]))


def _copied(self: Any, d_out: Spec, X: Spec, Y: Spec, *, strided: frozenset[str]) -> Size:
    return 2 * copies(strided, Out_GRAD=d_out)


class SequenceExpand(Operator):
    """Out = sequence (or, for a dense X, row) ``i`` of X, once for each part of sequence ``i`` of Y at ``ref_level``.

    The parts of a sequence are sequences of the next level; of the last level, rows. Repetitions stand one after the other.
    """

    type = "sequence_expand"
    examples = ("X", "Y")
    X = operand(ANY, doc="dense rows, one for each sequence, or rows with one level of as many sequences")
    Y = operand(ANY, doc="ragged; its numbers are not read")
    Out = result(new_offsets=True, doc="dense if X is, otherwise with one level of the repeated sequences")
    ref_level = attribute(AttrType.INT, -1, doc="the level of Y, 0 the outermost, -1 the last")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        counts = ragged(Y, "Y").counts
        level = self._checked_level(len(counts))
        require(X.rank > 0, "X must have at least one dim", X=None)
        parts = (*counts, Y.known_dims[0])[level + 1]
        if X.lod is None:
            require_equal(X.known_dims[0], counts[level], f"X must have one row for each sequence of Y at level {level}", X=0, Y=None)
            return X.dense((parts, *X.known_dims[1:]))
        if len(X.lod.counts) != 1:
            fail(f"X must be dense or have one level of sequences, not {len(X.lod.counts)}", X=None)
        require_equal(X.lod.counts[0], counts[level], f"X must have as many sequences as Y at level {level}", X=None, Y=None)
        return rows(X.dtype, (unknown_size("rows"), *X.known_dims[1:]), new_lod("Out", [parts]))

    def _checked_level(self, levels: int) -> int:
        level = levels - 1 if self.ref_level == -1 else self.ref_level
        if not 0 <= level < levels:
            fail(f"ref_level must be -1 or a level of Y, from 0 to {levels - 1}, not {level}", Y=None)
        return level

    def _repeated(self, X: Offsets, Y: Offsets) -> tuple[Tensor, Offsets]:
        """Return for each row of Out its row of X, and the offsets of Out."""
        level = self._checked_level(len(Y.levels))

        def make() -> tuple[Tensor, Offsets]:
            repeated = _level(Y, level).segments
            out_offsets = Offsets.of_lengths(X.lengths.index_select(0, repeated))
            starts = X.last[:-1].index_select(0, repeated)
            return out_offsets.positions + starts.index_select(0, out_offsets.segments), out_offsets

        return Y.kept(("expanded", X, level), make)

    def kernel(self, X: Tensor, Y: Tensor, *, offsets: list[Offsets]) -> tuple[Tensor, Offsets | None]:
        of_x, of_y = offsets
        if of_x:
            index, out_offsets = self._repeated(of_x, of_y)
            return X.index_select(0, index), out_offsets
        return X.index_select(0, _level(of_y, self._checked_level(len(of_y.levels))).segments), None

    def _infer_gradient(self, d_out: Spec, X: Spec, Y: Spec) -> Spec:
        out = SequenceExpand.infer_shape(self, X, Y)
        if X.lod is None:
            check_made(Out_GRAD=(d_out, out))
        else:  # the number of rows is known at run time only
            require(d_out.rank == out.rank, "Out@GRAD must have as many dims as X", **{"Out@GRAD": None, "X": None})
            check_made(Out_GRAD=(d_out, out.dense((d_out.known_dims[0], *out.known_dims[1:]))))
        return X.like()

    @gradient("Out@GRAD", "X", "Y", gives="X@GRAD", infer=_infer_gradient, workspace=_copied)
    def backward(self, d_out: Tensor, X: Tensor, Y: Tensor, *, offsets: list[Offsets]) -> Tensor:
        _, of_x, of_y = offsets
        if not of_x:
            return segment_sum(d_out, _level(of_y, self._checked_level(len(of_y.levels))))
        index, _ = self._repeated(of_x, of_y)
        return torch.zeros_like(X).index_add_(0, index, d_out)

    samples = [
        sample(X=f32(3, 2), Y=f32(9, 4).ragged([4, 0, 5])),
        sample(X=f32(3, 2), Y=i64(8).ragged([2, 1], [5, 0, 3])),
        sample(X=f32(2, 5, 3), Y=f32(8, 1).ragged([3, 1], [4, 0, 1, 3]), ref_level=0),
        sample(X=f32(2, 4), Y=f32(8, 1).ragged([2], [3, 0], [3, 4, 1]), ref_level=1),
        sample(X=f32(7, 2).ragged([1, 0, 6]), Y=f32(5, 3).ragged([2, 2, 1])),
        sample(X=f32(7, 2).ragged([4, 0, 3]), Y=f32(5, 3).ragged([0, 3, 2])),
        sample(X=i64(7).ragged([4, 3]), Y=f32(8, 1).ragged([3, 1], [4, 0, 1, 3]), ref_level=0),
        sample(X=f32(0, 2), Y=f32(0, 4).ragged([])),
        sample(X=f32(0, 2).ragged([]), Y=f32(0, 4).ragged([], []), ref_level=0),
        sample(X=f32(4, 2).ragged([1, 3]), Y=f32(0, 5).ragged([0, 0])),
    ]
    rejects = [
        reject(X=f32(4, 2), Y=f32(9, 2).ragged([4, 0, 5]), says="X must have one row for each sequence of Y at level 0"),
        reject(X=f32(4, 2).ragged([3, 1]), Y=f32(9, 2).ragged([4, 0, 5]), says="X must have as many sequences as Y at level 0"),
        reject(X=f32(4, 2).ragged([2, 1], [3, 0, 1]), Y=f32(9, 2).ragged([4, 5]), says="X must be dense or have one level of sequences, not 2"),
        reject(X=f32(3, 2), Y=f32(9, 2).ragged([4, 0, 5]), ref_level=1, says="ref_level must be -1 or a level of Y, from 0 to 0"),
        reject(X=f32(3, 2), Y=f32(9, 2).ragged([4, 0, 5]), ref_level=-2, says="ref_level must be -1 or a level of Y"),
        reject(X=f32(), Y=f32(9, 2).ragged([9]), says="X must have at least one dim"),
    ]


class SequenceExpandAs(Operator):
    """Out = row ``i`` of X once for each row of the innermost sequence ``i`` of Y."""

    type = "sequence_expand_as"
    examples = ("X", "Y")
    X = operand(ANY, doc="one row for each sequence; raggedness is ignored")
    Y = operand(ANY, doc="ragged; its numbers are not read")
    Out = result(doc="[rows of Y, *row of X], with the offsets of Y")

    def infer_shape(self, X: Spec, Y: Spec) -> Spec:
        lod = ragged(Y, "Y")
        require(X.rank > 0, "X must have at least one dim", X=None)
        require_equal(X.known_dims[0], lod.counts[-1], "X must have one row for each sequence of Y", X=0, Y=None)
        return rows(X.dtype, (Y.known_dims[0], *X.known_dims[1:]), lod)

    def computes(self) -> SequenceSpreading:
        return SequenceSpreading()

    def kernel(self, X: Tensor, Y: Tensor, *, offsets: list[Offsets]) -> Tensor:
        return X.index_select(0, offsets[1].segments)

    def _infer_gradient(self, d_out: Spec, X: Spec, Y: Spec) -> Spec:
        check_made(Out_GRAD=(d_out, SequenceExpandAs.infer_shape(self, X, Y)))
        return X.like()

    @gradient("Out@GRAD", "X", "Y", gives="X@GRAD", infer=_infer_gradient, workspace=_copied)
    def backward(self, d_out: Tensor, X: Tensor, Y: Tensor, *, offsets: list[Offsets]) -> Tensor:
        return segment_sum(d_out, offsets[2])

    samples = [
        sample(X=f32(3, 2), Y=f32(9, 4).ragged([4, 0, 5])),
        sample(X=f32(3, 5, 2), Y=i64(8).ragged([2, 1], [5, 0, 3])),
        sample(X=f32(3), Y=f32(8, 1).ragged([1, 1], [1, 2], [5, 0, 3])),
        sample(X=i64(2, 3).ragged([2]), Y=f32(5, 1).ragged([1, 4])),
        sample(X=f32(0, 2), Y=f32(0, 4).ragged([])),
    ]
    rejects = [
        reject(X=f32(4, 2), Y=f32(9, 2).ragged([4, 0, 5]), says="X must have one row for each sequence of Y"),
        reject(X=f32(), Y=f32(9, 2).ragged([9]), says="X must have at least one dim"),
    ]
