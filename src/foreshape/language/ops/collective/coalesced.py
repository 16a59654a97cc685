"""Many tensors concatenated into one buffer that is sharded over the ranks, a rank's own shard, and the tensors again."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from foreshape.core.dims import Size, ceildiv, product
from foreshape.core.spec import NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.errors import TypeMismatchError
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.require import fail, require, require_at_most
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.collective.parts import COUNT_DOC, ranks_of
from foreshape.machine.communication.process_group import team_of

ALIGNED = 64
"""The alignment of each tensor in the buffer in bytes, as kernels like their operands."""


def places_of(sizes: Sequence[Size], itemsize: int) -> tuple[list[Size], Size]:
    """Return the offsets in elements of tensors of these sizes, and the elements of the whole, gaps included."""
    granule = ALIGNED // itemsize
    starts: list[Size] = []
    offset: Size = 0
    for size in sizes:
        starts.append(offset)
        offset = offset + ceildiv(size, granule) * granule
    return starts, offset


def part_of(total: Size, ranks: Size, itemsize: int) -> Size:
    """Return the elements of each rank's shard of ``total`` elements."""
    granule = ALIGNED // itemsize
    return ceildiv(total, ranks * granule) * granule


class _Coalesced(Operator):
    """The base of `CoalesceParts` and `OwnPart`."""

    abstract = True
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, many=True, doc="any shapes, one element type")
    nranks = attribute(AttrType.INT, 0, low=0, doc=COUNT_DOC)

    def _part(self, X: tuple[Spec, ...]) -> Size:
        dtype = X[0].known_dtype
        for index, x in enumerate(X):
            if x.dtype is not dtype:
                fail(f"all X must have one element type; X[{index}] is {x.known_dtype.name}, X[0] is {dtype.name}", TypeMismatchError, X=None)
        _, total = places_of([x.elements for x in X], dtype.itemsize)
        return part_of(total, ranks_of(self.nranks), dtype.itemsize)

    samples = [sample(X=[f32(3, 2), f32(5)], nranks=1), sample(X=[i64(3), i64(0, 4)], nranks=1)]
    rejects = [reject(X=[f32(3), i64(4)], says="one element type", error=TypeMismatchError)]


class CoalesceParts(_Coalesced):
    """Out = the elements of all X, one tensor after the other. Zeros fill gaps up to 64 bytes, and the end up to a multiple for the ranks."""

    type = "coalesce_parts"
    Out = result(doc="[ranks * part]")

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        return X[0].dense([ranks_of(self.nranks) * self._part(X)])

    def kernel(self, X: list[Tensor]) -> Tensor:
        ranks = self.nranks or _ranks()
        starts, total = places_of([x.numel() for x in X], X[0].element_size())
        out, end = X[0].new_empty(ranks * int(part_of(total, ranks, X[0].element_size()))), 0
        for x, start in zip(X, starts, strict=True):
            out[end : int(start)] = 0
            end = int(start) + x.numel()
            out[int(start) : end].view(x.shape).copy_(x)
        out[end:] = 0
        return out


class OwnPart(_Coalesced):
    """Out = this rank's shard of the result of `coalesce_parts`; nothing of the other shards is made."""

    type = "own_part"
    Out = result(doc="[part]")
    ring_id = attribute(AttrType.INT, 0, low=0, doc="the process group")

    def infer_shape(self, X: tuple[Spec, ...]) -> Spec:
        return X[0].dense([self._part(X)])

    def kernel(self, X: list[Tensor]) -> Tensor:
        team = team_of(self.ring_id, self.nranks, self.type)
        rank, ranks = (0, 1) if team is None else (team.rank, team.ranks)
        starts, total = places_of([x.numel() for x in X], X[0].element_size())
        part = int(part_of(total, ranks, X[0].element_size()))
        out, first, filled = X[0].new_empty(part), rank * part, 0
        for x, start in zip(X, starts, strict=True):
            begin, end = max(int(start), first), min(int(start) + x.numel(), first + part)
            if begin < end:
                out[filled : begin - first] = 0
                filled = end - first
                out[begin - first : filled] = x.reshape(-1)[begin - int(start) : end - int(start)]
        out[filled:] = 0
        return out


def _ranks() -> int:
    team = team_of(0)
    return 1 if team is None else team.ranks


class SplitCoalesced(Operator):
    """Out = tensors of the dims ``dims`` (``ranks`` of them each), stored in X from ``starts`` on, as `coalesce_tensor` laid them."""

    type = "split_coalesced"
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, doc="[elements]")
    Out = result(many=True, doc="views of X", view_of="X", layout="reshaped")
    starts = attribute(AttrType.LONGS, low=0, doc="the first element of each tensor in X")
    ranks = attribute(AttrType.INTS, low=0, doc="the number of dims of each tensor")
    dims = attribute(AttrType.LONGS, low=0, doc="the dims of all, one after the other")

    def _dims(self) -> list[tuple[int, ...]]:
        ends = [0]
        for rank in self.ranks:
            ends.append(ends[-1] + rank)
        return [tuple(self.dims[a:b]) for a, b in pairwise(ends)]

    def infer_shape(self, X: Spec) -> Any:
        require(X.rank == 1, f"X must have one dim; it has {X.rank}", X=None)
        require(len(self.starts) == len(self.ranks) > 0, f"as many starts as ranks, and at least one; seen {len(self.starts)} and {len(self.ranks)}")
        require(sum(self.ranks) == len(self.dims), f"ranks say {sum(self.ranks)} dims, and there are {len(self.dims)}")
        parts = self._dims()
        end: Size = 0
        for start, dims in zip(self.starts, parts, strict=True):
            end = max(end, start + product(dims))  # pyright: ignore[reportArgumentType]
        require_at_most(end, X.known_dims[0], "the last part must end within X", X=0)
        return tuple(X.dense(dims) for dims in parts)

    def kernel(self, X: Tensor) -> list[Tensor]:
        parts = zip(self.starts, self._dims(), strict=True)
        return [X.narrow(0, start, int(product(dims))).view(dims) for start, dims in parts]

    samples = [
        sample(X=f32(24), starts=[0, 16], ranks=[2, 1], dims=[3, 4, 5]),
        sample(X=i64(7), starts=[2], ranks=[0], dims=[]),
    ]
    rejects = [
        reject(X=f32(10), starts=[0, 6], ranks=[1, 1], dims=[6, 5], says="the last part must end within X"),
        reject(X=f32(10), starts=[0], ranks=[2], dims=[6], says="ranks say 2 dims"),
    ]
