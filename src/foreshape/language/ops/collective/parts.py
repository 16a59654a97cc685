"""Collectives that join or deal the shards of the ranks: gather, reduce-scatter, broadcast, exchange, along any axis; and to one rank, or from one."""

from __future__ import annotations

from typing import Any, ClassVar

from foreshape.core.dims import Size, floordiv, maximum, symbol
from foreshape.core.spec import NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.language.operator import NOT_DIFFERENTIABLE, AttrType, attribute, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import axis_of, require, require_divides
from foreshape.language.operator.samples import f32, i64, reject, sample
from foreshape.language.ops.collective.messages import ALL_GATHER, ALL_TO_ALL, BROADCAST, NOTHING, REDUCE, REDUCE_SCATTER, SCATTER
from foreshape.language.ops.collective.sums import Collective, in_a_row, own
from foreshape.machine.communication.process_group import ProcessGroup, team_of

RANKS = "ranks"
"""The symbol for the number of ranks in a program for any number."""
COUNT_DOC = "the number of ranks; 0: any number, the symbol `ranks`"


def ranks_of(nranks: int) -> Size:
    """Return the number of ranks as a size."""
    return nranks if nranks else symbol(RANKS)


class _ShardExchange(Collective):
    """The base of collectives with results that depend on the number of ranks."""

    abstract = True
    nranks = attribute(AttrType.INT, 0, low=0, doc=COUNT_DOC)
    _undone_by: ClassVar[str]
    samples = [sample(X=f32(3, 2), nranks=1), sample(X=i64(4), nranks=1)]

    def _team(self) -> ProcessGroup | None:
        return team_of(self.ring_id, self.nranks, self.type)

    def gradient_ops(self, slots: GradientSlots) -> None:
        attrs: dict[str, Any] = {"ring_id": self.ring_id, "nranks": self.nranks, "use_calc_stream": True}
        slots.add(self._undone_by, {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, attrs)


class CAllgather(_ShardExchange):
    """Out = the X of all ranks one after the other, along the first axis. Its gradient is summed over the ranks, each getting its part."""

    type = "c_allgather"
    _undone_by = "c_reducescatter"
    way = ALL_GATHER
    starts = True
    X = operand(NUMERIC, doc="at least one dim, the same dims on every rank")
    Out = result(doc="as X, with the first dim times the number of ranks")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        return X.with_dims([X.known_dims[0] * ranks_of(self.nranks), *X.known_dims[1:]])

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is None:
            return X.clone()
        return team.gather(X, self.type) if self.use_calc_stream else team.start_gather(X.contiguous(), self.type)


class CReducescatter(_ShardExchange):
    """Out = this rank's part of the sum of X over the ranks, along the first axis. Its gradient is gathered from the ranks."""

    type = "c_reducescatter"
    _undone_by = "c_allgather"
    way = REDUCE_SCATTER
    starts = True
    X = operand(NUMERIC, doc="the same dims on every rank, the first a multiple of the number of ranks")
    Out = result(doc="as X, with the first dim divided by the number of ranks")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        ranks = ranks_of(self.nranks)
        require_divides(ranks, X.known_dims[0], "the number of ranks must divide the first dim of X", X=0)
        return X.with_dims([floordiv(X.known_dims[0], ranks), *X.known_dims[1:]])

    def retained_bytes(self, X: Spec) -> dict[str, Size]:
        """Return the buffers while it is under way: the parts of all other ranks but one, whose part lies at the place of the sum."""
        ranks = ranks_of(self.nranks)
        return {} if self.use_calc_stream else {"Out": floordiv(X.nbytes, ranks) * maximum(ranks - 2, 0)}

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is None:
            return X.clone()
        return team.scatter_sum(X, self.type) if self.use_calc_stream else team.start_scatter_sum(X.contiguous(), self.type)

    rejects = [reject(X=f32(3), nranks=2, says="the number of ranks must divide the first dim")]


class CBroadcast(Collective):
    """Out = the X of rank ``root``, on every rank."""

    type = "c_broadcast"
    way = BROADCAST
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, doc="the same dims on every rank")
    Out = result(doc="as X", may_share="X")
    root = attribute(AttrType.INT, 0, low=0)

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        team = self._team()
        out = own(X, into)
        if team is not None:
            in_a_row(out, lambda t: team.broadcast(t, self.root, self.type))
        return out

    samples = [sample(X=f32(3, 2)), sample(X=i64(4))]


class Alltoall(_ShardExchange):
    """Out = part r of X of each rank, in the order of the ranks: X is cut into a part for each rank, and part r goes to rank r.

    Its gradient goes back the same way.
    """

    type = "alltoall"
    _undone_by = "alltoall"
    way = ALL_TO_ALL
    X = operand(NUMERIC, doc="the same dims on every rank, the first a multiple of the number of ranks")
    Out = result(doc="as X")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        require_divides(ranks_of(self.nranks), X.known_dims[0], "the number of ranks must divide the first dim of X", X=0)
        return X.like()

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is None:
            return X.clone()
        rows = [X.shape[0] // team.ranks] * team.ranks
        return team.exchange(X, rows, rows, self.type)

    rejects = [reject(X=f32(3), nranks=2, says="the number of ranks must divide the first dim")]


class _AlongAxis(Collective):
    """The base of both. All ranks compute alike on the whole, so the gradient of either is the other."""

    abstract = True
    nranks = attribute(AttrType.INT, 0, low=0, doc=COUNT_DOC)
    axis = attribute(AttrType.INT, -1, doc="the axis; it may count from the back")
    rank = attribute(AttrType.INT, 0, low=0, doc="the rank the program was made for; ignored: the running rank's own number counts")
    use_model_parallel = attribute(AttrType.BOOLEAN, True, doc="all ranks compute alike on the whole, as they always do here")
    X = operand(NUMERIC, doc="at least one dim, the same dims on every rank")

    def _team(self) -> ProcessGroup | None:
        return team_of(self.ring_id, self.nranks, self.type)

    def _known_axis(self, rank: int) -> int:
        return axis_of(self.axis, rank, X=None)

    def _with(self, X: Spec, axis: int, size: Size) -> Spec:
        return X.with_dims([*X.known_dims[:axis], size, *X.known_dims[axis + 1 :]])

    def _gradient(self, slots: GradientSlots, type: str) -> None:
        attrs: dict[str, Any] = {"ring_id": self.ring_id, "nranks": self.nranks, "axis": self.axis, "use_calc_stream": True}
        slots.add(type, {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, attrs)

    samples = [sample(X=f32(3, 2), nranks=1, differentiate=False), sample(X=f32(3, 2, 5), nranks=1, axis=1, differentiate=False), sample(X=i64(4), nranks=1)]


class CConcat(_AlongAxis):
    """Out = the X of all ranks one after the other, along ``axis``. Its gradient is the rank's own part of the gradient."""

    type = "c_concat"
    way = ALL_GATHER
    Out = result(doc="as X, with the dim at axis times the number of ranks")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        axis = self._known_axis(X.rank)
        return self._with(X, axis, X.known_dims[axis] * ranks_of(self.nranks))

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is None:
            return X.clone()
        parts = team.gather(X, self.type)
        axis = self._known_axis(X.dim())
        return (
            torch.cat(parts.chunk(team.ranks), axis)
            if axis and parts.numel()
            else parts.view([s * team.ranks if d == axis else s for d, s in enumerate(X.shape)])
        )

    def gradient_ops(self, slots: GradientSlots) -> None:
        self._gradient(slots, "c_split")


class CSplit(_AlongAxis):
    """Out = this rank's part along ``axis`` of an X equal on every rank. Its gradient is gathered from the ranks."""

    type = "c_split"
    way = NOTHING
    Out = result(doc="as X, with the dim at axis divided by the number of ranks")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        axis = self._known_axis(X.rank)
        return self._with(X, axis, require_divides(ranks_of(self.nranks), X.known_dims[axis], "the number of ranks must divide the dim of X at axis", X=axis))

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is None:
            return X.clone()
        axis = self._known_axis(X.dim())
        part = X.shape[axis] // team.ranks
        return X.narrow(axis, team.rank * part, part).clone(memory_format=torch.contiguous_format)

    def gradient_ops(self, slots: GradientSlots) -> None:
        self._gradient(slots, "c_concat")

    rejects = [*_AlongAxis.rejects, reject(X=f32(4, 3), nranks=2, says="the number of ranks must divide the dim of X at axis")]


class _ToOne(Collective):
    """The base of these reductions. The other ranks keep their X."""

    abstract = True
    way = REDUCE
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, doc="the same dims on every rank")
    Out = result(doc="as X: on rank root_id the result, elsewhere the rank's own X", may_share="X")
    root_id = attribute(AttrType.INT, 0, low=0, doc="the rank of the result")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        team = self._team()
        out = own(X, into)
        if team is not None:
            in_a_row(out, lambda t: team.reduce_to(t, self.root_id, self.type.removeprefix("c_reduce_"), self.type))
        return out

    samples = [sample(X=f32(3, 2)), sample(X=i64(4))]


class CReduceSum(_ToOne):
    """Out = on rank ``root_id`` the sum of X over the ranks, elsewhere X."""

    type = "c_reduce_sum"


class CReduceMax(_ToOne):
    """Out = on rank ``root_id`` the largest of the ranks' X, element by element, elsewhere X."""

    type = "c_reduce_max"


class CReduceMin(_ToOne):
    """Out = on rank ``root_id`` the smallest of the ranks' X, element by element, elsewhere X."""

    type = "c_reduce_min"


class CReduceProd(_ToOne):
    """Out = on rank ``root_id`` the product of the ranks' X, element by element, elsewhere X."""

    type = "c_reduce_prod"


class CScatter(Collective):
    """Out = this rank's part, along the first axis, of the X of rank ``root``."""

    type = "c_scatter"
    way = SCATTER
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, doc="the same dims on every rank, the first a multiple of the number of ranks; only X of rank root is read")
    Out = result(doc="as X, with the first dim divided by the number of ranks")
    root = attribute(AttrType.INT, 0, low=0, doc="the rank of the dealt X")
    nranks = attribute(AttrType.INT, 0, low=0, doc=COUNT_DOC)

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        ranks = ranks_of(self.nranks)
        require_divides(ranks, X.known_dims[0], "the number of ranks must divide the first dim of X", X=0)
        return X.with_dims([floordiv(X.known_dims[0], ranks), *X.known_dims[1:]])

    def kernel(self, X: Tensor) -> Tensor:
        team = team_of(self.ring_id, self.nranks, self.type)
        return X.clone() if team is None else team.deal(X, self.root, self.type)

    samples = [sample(X=f32(3, 2), nranks=1), sample(X=i64(4), nranks=1)]
    rejects = [
        reject(X=f32(3), nranks=2, says="the number of ranks must divide the first dim"),
        reject(X=f32(), nranks=1, says="at least 1 dim"),
    ]
