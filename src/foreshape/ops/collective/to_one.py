"""Collectives to one rank or from one: reductions with a result on one rank, and parts dealt by one rank."""

from __future__ import annotations

from foreshape.communication.process_group import team_of
from foreshape.dims import floordiv
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.operator import NOT_DIFFERENTIABLE, AttrType, attribute, operand, result
from foreshape.operator.require import require, require_divides
from foreshape.operator.samples import b1, f32, i64, reject, sample
from foreshape.ops.collective.messages import REDUCE, SCATTER
from foreshape.ops.collective.parts import COUNT_DOC, ranks_of
from foreshape.ops.collective.sums import Collective, in_a_row, own
from foreshape.spec import NUMERIC, Spec
from foreshape.values.torch_proxy import Tensor


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
    rejects = [
        reject(X=f32(3), root_id=-1, says="attribute root_id must be at least 0", error=SchemaError),
        reject(X=b1(3), says="must be", error=TypeMismatchError),
    ]


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
        reject(X=b1(3), says="must be", error=TypeMismatchError),
        reject(X=f32(3), root=-1, says="attribute root must be at least 0", error=SchemaError),
    ]
