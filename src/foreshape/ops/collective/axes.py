"""Collectives along any axis, for tensors sharded by columns over the ranks: the join of all shards, and a rank's own shard of the whole."""

from __future__ import annotations

from typing import Any

from foreshape.communication.process_group import ProcessGroup, team_of
from foreshape.dims import Size
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import AttrType, attribute, operand, result
from foreshape.operator.gradient_slots import GradientSlots
from foreshape.operator.require import axis_of, require, require_divides
from foreshape.operator.samples import b1, f32, i64, reject, sample
from foreshape.ops.collective.messages import ALL_GATHER, NOTHING
from foreshape.ops.collective.parts import COUNT_DOC, ranks_of
from foreshape.ops.collective.sums import Collective
from foreshape.spec import NUMERIC, Spec
from foreshape.values.torch_proxy import Tensor, torch


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

    def _at(self, rank: int) -> int:
        return axis_of(self.axis, rank, X=None)

    def _with(self, X: Spec, at: int, size: Size) -> Spec:
        return X.with_dims([*X.known_dims[:at], size, *X.known_dims[at + 1 :]])

    def _gradient(self, slots: GradientSlots, type: str) -> None:
        attrs: dict[str, Any] = {"ring_id": self.ring_id, "nranks": self.nranks, "axis": self.axis, "use_calc_stream": True}
        slots.add(type, {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, attrs)

    samples = [sample(X=f32(3, 2), nranks=1, differentiate=False), sample(X=f32(3, 2, 5), nranks=1, axis=1, differentiate=False), sample(X=i64(4), nranks=1)]
    rejects = [
        reject(X=f32(), says="at least 1 dim"),
        reject(X=f32(3), axis=1, says="axis must be in"),
        reject(X=b1(3), says="must be", error=TypeMismatchError),
        reject(X=f32(3), nranks=-1, says="attribute nranks must be at least 0", error=SchemaError),
    ]


class CConcat(_AlongAxis):
    """Out = the X of all ranks one after the other, along ``axis``. Its gradient is the rank's own part of the gradient."""

    type = "c_concat"
    way = ALL_GATHER
    Out = result(doc="as X, with the dim at axis times the number of ranks")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        at = self._at(X.rank)
        return self._with(X, at, X.known_dims[at] * ranks_of(self.nranks))

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is None:
            return X.clone()
        parts = team.gather(X, self.type)
        at = self._at(X.dim())
        return torch.cat(parts.chunk(team.ranks), at) if at and parts.numel() else parts.view([s * team.ranks if d == at else s for d, s in enumerate(X.shape)])

    def gradient_ops(self, slots: GradientSlots) -> None:
        self._gradient(slots, "c_split")


class CSplit(_AlongAxis):
    """Out = this rank's part along ``axis`` of an X equal on every rank. Its gradient is gathered from the ranks."""

    type = "c_split"
    way = NOTHING
    Out = result(doc="as X, with the dim at axis divided by the number of ranks")

    def infer_shape(self, X: Spec) -> Spec:
        require(X.rank > 0, "X must have at least 1 dim", X=None)
        at = self._at(X.rank)
        return self._with(X, at, require_divides(ranks_of(self.nranks), X.known_dims[at], "the number of ranks must divide the dim of X at axis", X=at))

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is None:
            return X.clone()
        at = self._at(X.dim())
        part = X.shape[at] // team.ranks
        return X.narrow(at, team.rank * part, part).clone(memory_format=torch.contiguous_format)

    def gradient_ops(self, slots: GradientSlots) -> None:
        self._gradient(slots, "c_concat")

    rejects = [*_AlongAxis.rejects, reject(X=f32(4, 3), nranks=2, says="the number of ranks must divide the dim of X at axis")]
