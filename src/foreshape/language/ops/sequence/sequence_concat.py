"""sequence_concat: sequences joined end to end."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from foreshape.core.dims import Size
from foreshape.core.spec import ANY, Spec
from foreshape.core.values.offsets import Offsets
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import Operator, gradient, operand, result
from foreshape.language.operator.require import fail, require, require_equal
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.rules.ragged_rules import new_lod, ragged, rows


def _total(sizes: Sequence[Size]) -> Size:
    out: Size = sizes[0]
    for size in sizes[1:]:
        out = out + size
    return out


class SequenceConcat(Operator):
    """Out = for each ``i`` the outermost sequences ``i`` of all X, one after the other.

    With one level these are rows after rows; with more, a joined sequence has the sequences of the next level of all inputs. (So PaddlePaddle documents more
    levels; its kernel takes one.)
    """

    type = "sequence_concat"
    examples = ("X",)
    X = operand(ANY, many=True, doc="ragged rows, of equally many levels and outermost sequences")
    Out = result(new_offsets=True, doc="all rows, with offsets of its own")

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        first = X[0]
        lods = [ragged(x, "X") for x in X]
        for x, lod in zip(X[1:], lods[1:], strict=True):
            if len(lod.counts) != len(lods[0].counts):
                fail(f"all X must have as many levels of sequences; seen {len(lods[0].counts)} and {len(lod.counts)}", X=None)
            if x.dtype is not first.dtype:
                fail("all X must have one element type", TypeMismatchError, X=None)
            require_equal(lods[0].counts[0], lod.counts[0], "all X must have as many outermost sequences", X=None)
            require(x.rank == first.rank, f"all X must have rows of the same dims; seen {first.text()} and {x.text()}", X=None)
            for axis, (a, b) in enumerate(zip(first.known_dims[1:], x.known_dims[1:], strict=True), 1):
                require_equal(a, b, "all X must have rows of the same dims", X=axis)
        counts = [lods[0].counts[0], *(_total(level) for level in zip(*(lod.counts[1:] for lod in lods), strict=True))]
        return rows(first.dtype, (_total([x.known_dims[0] for x in X]), *first.known_dims[1:]), new_lod("Out", counts))

    def workspace(self, X: tuple[Spec, ...]) -> Size:
        return _total([x.nbytes for x in X])

    def kernel(self, X: list[Tensor], *, offsets: list[list[Offsets]]) -> tuple[Tensor, Offsets]:
        index, out_offsets = _joined(offsets[0])
        return torch.cat(X).index_select(0, index), out_offsets

    def _infer_gradient(self, d_out: Spec, X: tuple[Spec, ...]) -> tuple[Any, ...]:
        out = SequenceConcat.infer_shape(self, X)
        require(d_out.rank == out.rank, "Out@GRAD must have as many dims as X", **{"Out@GRAD": None, "X": None})
        for axis, (a, b) in enumerate(zip(d_out.known_dims, out.known_dims, strict=True)):
            require_equal(a, b, "Out@GRAD must have the dims of Out", **{"Out@GRAD": axis})
        return tuple(x.like() for x in X)

    @gradient("Out@GRAD", "X", gives="X@GRAD", infer=_infer_gradient)
    def backward(self, d_out: Tensor, X: list[Tensor], *, offsets: list[Any]) -> list[Tensor]:
        parts: list[Offsets] = offsets[1]
        index, _ = _joined(parts)

        def make() -> Tensor:
            back = torch.empty_like(index)
            back[index] = torch.arange(len(index), device=index.device)
            return back

        back = parts[0].kept(("concat back", *parts), make)
        return [d_out.index_select(0, rows) for rows in back.split_with_sizes([len(x) for x in X])]

    samples = [
        sample(X=[f32(6, 2).ragged([4, 0, 2]), f32(5, 2).ragged([0, 3, 2])]),
        sample(X=[f32(6).ragged([4, 2]), f32(3).ragged([0, 3]), f32(1).ragged([1, 0])]),
        sample(X=[f32(7, 3).ragged([2, 1], [3, 0, 4]), f32(4, 3).ragged([0, 2], [1, 3])]),
        sample(X=[f32(3, 2).ragged([1, 1], [2, 0], [1, 2]), f32(5, 2).ragged([0, 1], [3], [4, 0, 1])]),
        sample(X=[i64(3, 2).ragged([1, 2])]),
        sample(X=[f32(0, 2).ragged([]), f32(0, 2).ragged([])]),
    ]
    rejects = [
        reject(X=[f32(3, 2).ragged([3]), i64(3, 2).ragged([3])], says="all X must have one element type", error=TypeMismatchError),
        reject(X=[f32(3, 2).ragged([3]), f32(3, 2).ragged([1, 2])], says="all X must have as many outermost sequences"),
        reject(X=[f32(3, 2).ragged([3]), f32(3, 2).ragged([1], [3])], says="all X must have as many levels of sequences; seen 1 and 2"),
        reject(X=[f32(3, 2).ragged([3]), f32(3, 4).ragged([3])], says="all X must have rows of the same dims"),
        reject(X=[f32(3, 2).ragged([3]), f32(3).ragged([3])], says="all X must have rows of the same dims"),
    ]


def _joined(parts: Sequence[Offsets]) -> tuple[Tensor, Offsets]:
    """Return for each row of the result its row in all inputs end to end, and the offsets of the result."""

    def make() -> tuple[Tensor, Offsets]:
        levels = len(parts[0].levels)
        lengths: list[Tensor] = []
        bounds = [torch.arange(len(p.levels[0]), device=p.last.device) for p in parts]  # of the outermost sequences, in parts of each level
        index = bounds[0][:0]
        for level in range(levels):
            sizes = [p.levels[level].diff() for p in parts]
            if level == 0:
                lengths.append(torch.stack(sizes).sum(0))
            else:
                lengths.append(torch.cat(sizes).index_select(0, index))
            bounds = [p.levels[level][b] for p, b in zip(parts, bounds, strict=True)]
            index = _interleaved(bounds)
        return index, Offsets.of_lengths(*lengths)

    return parts[0].kept(("concat", *parts), make)


def _interleaved(bounds: Sequence[Tensor]) -> Tensor:
    """Return the new order of the parts of all inputs, put end to end, by sequence. ``bounds``: one for each input."""
    begins: list[Tensor] = []
    total = 0
    for b in bounds:
        begins.append(b[:-1] + total)
        total += int(b[-1])
    parts = Offsets.of_lengths(torch.stack([b.diff() for b in bounds], 1).view(-1))
    return parts.positions + torch.stack(begins, 1).view(-1).index_select(0, parts.segments)
