"""Sums and other reductions over the ranks, started now and waited for later."""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import Any, ClassVar

from foreshape.core.dims import Size, ceildiv, minimum, product
from foreshape.core.spec import INT64, NUMERIC, SELECTED_ROWS, Kind, Spec
from foreshape.core.values.rows import Rows
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import SchemaError, TypeMismatchError
from foreshape.language.operator import DENSE_OR_ROWS, NOT_DIFFERENTIABLE, AttrType, Operator, attribute, operand, result
from foreshape.language.operator.gradient_slots import GradientSlots
from foreshape.language.operator.require import fail
from foreshape.language.operator.samples import f32, i64, sample
from foreshape.language.ops.collective.messages import ALL_GATHER, ALL_REDUCE, BARRIER, NOTHING, Given, Messages
from foreshape.machine.communication.process_group import WIDEST, ProcessGroup, team_of


class Collective(Operator):
    """The base of all collectives."""

    abstract = True
    collective = True
    way: ClassVar[str | None] = None
    """The way of its operands between the ranks, of `foreshape.language.ops.collective.messages`; None for classes with their own `sends`."""
    starts: ClassVar[bool] = False
    """True if it only starts its messages, unless ``use_calc_stream`` says otherwise or these are sparse rows."""
    readers_wait: ClassVar[bool] = False
    """True if readers of its started results wait for them."""
    gradient_sends: ClassVar[bool] = False
    """True if its gradient operator sends as much; otherwise the gradient sends nothing."""
    ring_id = attribute(AttrType.INT, 0, low=0, doc="the process group")
    use_calc_stream = attribute(AttrType.BOOLEAN, False, doc="False: the op only starts; c_sync_comm_stream waits for it")

    def _team(self) -> ProcessGroup | None:
        return team_of(self.ring_id, type=self.type)

    def sends(self, given: Given) -> Messages:
        """Return the messages to which a rank contributes, from the ``given`` operands. Raises `SchemaError` if they are not known."""
        forward: Any = self.forward_class
        if forward is not None:
            return forward.sends(self, given) if forward.gradient_sends else []
        if self.way is None:
            raise SchemaError(f"{self.type} is a collective of which it is not known what it sends: its class must say its way, or have sends()")
        return [(self.way, given.nbytes)] if self.way else []


class ReductionOverRanks(Collective):
    """Out = X, element by element, over the ranks."""

    abstract = True
    way = ALL_REDUCE
    X = operand(NUMERIC, doc="the same dims on every rank")
    Out = result(doc="as X, the same on every rank", may_share="X")
    use_model_parallel = attribute(AttrType.BOOLEAN, False, doc="all ranks compute alike on the result")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    samples = [sample(X=f32(3, 2), differentiate=False), sample(X=i64(4), use_calc_stream=True)]


def own(X: Tensor, into: Tensor | None) -> Tensor:
    """Return memory for a result changed in place: the operand's if it is given away."""
    return into if into is not None else X.clone(memory_format=torch.contiguous_format)


def in_a_row(out: Tensor, change: Callable[[Tensor], None]) -> None:
    """Change a tensor in place by a function of contiguous tensors."""
    if out.is_contiguous():
        change(out)
    else:
        copy = out.contiguous()
        change(copy)
        out.copy_(copy)


class CAllreduceSum(ReductionOverRanks):
    """Out = the sum of X over the ranks. For sparse rows: the rows of all ranks, summed by id. A rank sends each id once; or, if this takes fewer bytes, each
    value once, as for the words of a bag.

    Its gradient is the sum of the gradients; if all ranks compute alike on the result (``use_model_parallel``), it is the gradient itself.
    """

    type = "c_allreduce_sum"
    starts = True
    X = operand(NUMERIC, kinds=DENSE_OR_ROWS, doc="the same dims on every rank, or rows of one table")

    def infer_var_type(self, X: Spec) -> Kind:
        return X.kind

    def sends(self, given: Given) -> Messages:
        """Return the messages. Sparse rows are gathered: their counts of rows and of values, then the message of `sum_rows`."""
        if given.rows is None:
            return [(ALL_REDUCE, given.nbytes)]
        (spec,) = given.specs["X"]
        row = product(spec.known_dims[1:]) * spec.known_dtype.itemsize
        size = bytes_merged(given.rows, spec.known_dims[0], row)
        size = size if given.values is None else minimum(bytes_shared(given.rows, given.values, row), size)
        return [(ALL_GATHER, 2 * INT64.itemsize), (ALL_GATHER, size)]

    def kernel(self, X: Tensor | Rows, *, into: Tensor | None = None) -> Any:
        team = self._team()
        if isinstance(X, Rows):
            return X if team is None else sum_rows(X, team)
        out = own(X, into)
        if team is not None and out.is_contiguous() and not self.use_calc_stream:
            team.start_sum(out, self.type)
        elif team is not None:
            in_a_row(out, lambda t: team.sum(t, self.type))
        return out

    def gradient_ops(self, slots: GradientSlots) -> None:
        type = "c_identity" if self.use_model_parallel else "c_allreduce_sum"
        attrs: dict[str, Any] = {"ring_id": self.ring_id, "use_calc_stream": True}
        slots.add(type, {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, attrs)


class MpAllreduceSum(ReductionOverRanks):
    """Out = the sum of X over the ranks, for ranks that compute alike on it: its gradient is the gradient itself."""

    type = "mp_allreduce_sum"

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        team = self._team()
        out = own(X, into)
        if team is not None:
            in_a_row(out, lambda t: team.sum(t, self.type))
        return out

    def gradient_ops(self, slots: GradientSlots) -> None:
        attrs: dict[str, Any] = {"ring_id": self.ring_id, "use_calc_stream": True}
        slots.add("c_identity", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, attrs)


def bytes_merged(rows: Size, height: Size, row: Size) -> Size:
    """Return the bytes of a message with each id once, as if no id came twice, and its values of ``row`` bytes each."""
    count = minimum(rows, height)
    return _placed(count * INT64.itemsize) + _placed(count * row)


def bytes_shared(rows: Size, values: Size, row: Size) -> Size:
    """Return the bytes of a message with the id of each row, the number of its value, and each value once."""
    return 2 * _placed(rows * INT64.itemsize) + _placed(values * row)


def _placed(size: Size) -> Size:
    """Return the size rounded up to the alignment."""
    return ceildiv(size, WIDEST) * WIDEST


def sum_rows(X: Rows, team: ProcessGroup) -> Rows:
    """Return the rows of all ranks, in the order of the ranks, so that every rank sums them in one order.

    Rows with shared values, such as those of a bag, are sent with each value once where this takes fewer bytes.
    """
    ids, values, which = X.kept
    row = prod(values.shape[1:]) * values.element_size()
    shares = which is not None and int(bytes_shared(len(ids), len(values), row)) < int(bytes_merged(len(ids), X.height, row))
    if not shares:
        ids, values, which = X.merged().kept
    sizes = team.numbers([len(ids), len(values) if which is not None else -1], CAllreduceSum.type)
    if which is not None and all(stored >= 0 for _, stored in sizes):
        parts = team.gather_uneven([ids, which, values], CAllreduceSum.type, [(count, count, stored) for count, stored in sizes])
        return Rows.joined([Rows.spread(rows, part_values, numbers, X.height) for rows, numbers, part_values in parts])
    if all(stored < 0 for _, stored in sizes):
        parts = team.gather_uneven([ids, values], CAllreduceSum.type, [(count, count) for count, _ in sizes])
    else:  # some ranks send a value per row, so all do; the number of distinct ids differs by rank
        merged = X.merged()
        parts = team.gather_uneven([merged.rows, merged.values], CAllreduceSum.type)
    return Rows.joined([Rows(rows, part_values, X.height) for rows, part_values in parts]).merged()


class _Extreme(ReductionOverRanks):
    """The base of reductions without a gradient."""

    abstract = True
    gradient = NOT_DIFFERENTIABLE

    def kernel(self, X: Tensor, *, into: Tensor | None = None) -> Tensor:
        team = self._team()
        out = own(X, into)
        if team is not None:
            in_a_row(out, lambda t: team.reduce(t, self.type.removeprefix("c_allreduce_"), self.type))
        return out


class CAllreduceMax(_Extreme):
    """Out = the largest of the ranks' X, element by element."""

    type = "c_allreduce_max"


class CAllreduceMin(_Extreme):
    """Out = the smallest of the ranks' X, element by element."""

    type = "c_allreduce_min"


class CAllreduceProd(_Extreme):
    """Out = the product of the ranks' X, element by element."""

    type = "c_allreduce_prod"


class CIdentity(ReductionOverRanks):
    """Out = X; its gradient is the sum of the gradients over the ranks, for an X equal on every rank before sharded parts."""

    type = "c_identity"
    way = NOTHING
    Out = result(doc="as X", view_of="X")

    def kernel(self, X: Tensor) -> Tensor:
        return X

    def gradient_ops(self, slots: GradientSlots) -> None:
        attrs: dict[str, Any] = {"ring_id": self.ring_id, "use_calc_stream": True}
        slots.add("c_allreduce_sum", {"X": slots.grad_of_output("Out")}, {"Out": slots.input("X")}, attrs)


class CSyncCommStream(Collective):
    """Out = X, each once the collectives started on it have ended."""

    type = "c_sync_comm_stream"
    way = NOTHING
    awaits = True
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, many=True, doc="results of collectives started without waiting")
    Out = result(many=True, doc="each as its X", view_of="X")

    def infer_shape(self, X: tuple[Spec, ...]) -> Any:
        for index, spec in enumerate(X):
            if spec.kind is SELECTED_ROWS:
                fail("X must be dense: sums of sparse rows are waited for where they are made", TypeMismatchError, X=index)
        return tuple(spec.like() for spec in X)

    def kernel(self, X: list[Tensor]) -> list[Tensor]:
        team = self._team()
        if team is not None:
            for x in X:
                team.wait(x)
        return X

    samples = [sample(X=[f32(3, 2), i64(4)])]


class Barrier(Collective):
    """Out = X, once all ranks are here."""

    type = "barrier"

    def sends(self, given: Given) -> Messages:
        return [(BARRIER, 0)]

    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, doc="anything")
    Out = result(doc="as X", view_of="X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor) -> Tensor:
        team = self._team()
        if team is not None:
            team.barrier()
        return X

    samples = [sample(X=f32(1))]
