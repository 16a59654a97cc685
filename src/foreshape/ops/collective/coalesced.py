"""What lies in one tensor, one after the other, as tensors again."""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

from foreshape.dims import Size, product
from foreshape.errors import SchemaError
from foreshape.operator import NOT_DIFFERENTIABLE, NUMERIC, AttrType, Operator, attribute, f32, i64, operand, reject, require, result, sample
from foreshape.operator.require import require_at_most
from foreshape.spec import Spec

if TYPE_CHECKING:
    from torch import Tensor


class SplitCoalesced(Operator):
    """Out = tensors of the dims that ``dims`` and ``ranks`` say, which lie in X from ``starts`` on, as `coalesce_tensor` laid them."""

    type = "split_coalesced"
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, doc="[elements]")
    Out = result(many=True, doc="views of X", view_of="X", layout="strided")
    starts = attribute(AttrType.LONGS, low=0, doc="the element at which each begins")
    ranks = attribute(AttrType.INTS, low=0, doc="how many dims each has")
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
        reject(X=f32(2, 5), starts=[0], ranks=[1], dims=[6], says="X must have one dim"),
        reject(X=f32(10), starts=[0], ranks=[2], dims=[6], says="ranks say 2 dims"),
        reject(X=f32(10), starts=[-1], ranks=[1], dims=[6], says="attribute starts must be at least 0", error=SchemaError),
    ]
