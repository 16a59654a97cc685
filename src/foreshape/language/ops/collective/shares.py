"""A rank's share of all examples, counted over the ranks in the forward pass, and the weighting of its mean by this share."""

from __future__ import annotations

from typing import Any

from foreshape.core.dims import product
from foreshape.core.spec import ANY, FLOATING, FP64, NUMERIC, Spec, tensor
from foreshape.core.values.torch_proxy import Tensor, torch
from foreshape.errors import RankError, TypeMismatchError
from foreshape.language.operator import ZERO_GRADIENT, AttrType, attribute, gradient, operand, result
from foreshape.language.operator.require import fail, require_equal
from foreshape.language.operator.samples import f32, f64, i64, reject, sample
from foreshape.language.ops.collective.messages import ALL_REDUCE, NOTHING, Given, Messages
from foreshape.language.ops.collective.sums import Collective
from foreshape.machine.communication.process_group import numbers_of

_SIGNED = 3
"""The elements of the summed message: the count, the signature, its square."""


class CountExamples(Collective):
    """Own = the number of elements of X, or the sum of its ``values``. Total is its sum over the ranks, once `weigh_by_examples` has waited for it.

    Each rank's signature of its step is summed with it, so ranks in different steps are found before any of their data is mixed. A rank with an empty part of a
    batch is fed one example with the weight 0: ``Counts`` is 0 there.
    """

    type = "count_examples"
    starts = True
    readers_wait = True
    gradient = ZERO_GRADIENT
    X = operand(ANY, doc="any shape; only its dims are read, unless values is set")
    Counts = operand(FLOATING, optional=True, doc="one number, 1, or 0 if nothing of this rank counts")
    Own = result(doc="fp64 [1]")
    Total = result(doc="fp64 [3]: the elements, the signatures, their squares")
    values = attribute(AttrType.BOOLEAN, False, doc="X is the count itself, such as a sum of weights")

    def infer_shape(self, X: Spec, Counts: Spec | None) -> Any:
        if Counts is not None:
            require_equal(product(Counts.known_dims), 1, "Counts must be one number", Counts=None)
        return tensor(FP64, 1), tensor(FP64, _SIGNED)

    def sends(self, given: Given) -> Messages:
        return [(ALL_REDUCE, _SIGNED * FP64.itemsize)]

    def kernel(self, X: Tensor, Counts: Tensor | None) -> tuple[Tensor, Tensor]:
        team = self._team()
        count = float(X.sum() if self.values else X.numel()) * (1.0 if Counts is None else float(Counts.item()))
        signature = 0.0 if team is None else float(team.signature)
        # On the processor wherever X is: a message with a deadline checks the steps of the ranks, and no device waits for it.
        total = torch.tensor([count, signature, signature * signature], dtype=torch.float64, device="cpu")
        own_count = total[:1].clone()
        if team is not None:
            team.start_sum(total, self.type)
        return own_count, total

    samples = [sample(X=f32(3, 2)), sample(X=i64(4), Counts=f32(1, data=[0.0])), sample(X=f32(1), values=True)]


class WeighByExamples(Collective):
    """Out = X * Own / Total: the mean over this rank's examples becomes its part of the mean over all ranks. If X ``sums``, Out = X, or 0 if Own is 0: its part
    of the sum.

    If groups of ``alike`` ranks have the same examples, each example is counted once per rank, and one rank of each group gives the whole.
    """

    type = "weigh_by_examples"
    way = NOTHING
    awaits = True
    X = operand(NUMERIC, doc="any shape; floating-point, but for sums")
    Own = operand((FP64,), doc="the result of count_examples")
    Total = operand((FP64,), doc="the result of count_examples")
    Out = result(doc="as X")
    Count = result(optional=True, doc="[], as X: the number of examples in Total")
    alike = attribute(AttrType.INT, 1, low=1, doc="the number of ranks with the same examples")
    sums = attribute(AttrType.BOOLEAN, False, doc="X is a sum over examples, and no mean")

    def infer_shape(self, X: Spec, Own: Spec, Total: Spec) -> tuple[Spec, Spec]:
        require_equal(product(Own.known_dims), 1, "Own must be one number", Own=None)
        require_equal(product(Total.known_dims), _SIGNED, f"Total must be {_SIGNED} numbers", Total=None)
        if not (self.sums or X.known_dtype.is_floating):
            fail("X must be floating-point, unless it sums", TypeMismatchError, X=None)
        return X.like(), X.dense(())

    def _share(self, own_count: Tensor, total: Tensor) -> tuple[float, float]:
        """Return the factor of X, and the number of examples of all ranks."""
        team = self._team()
        if team is None:
            return 1.0, own_count.item()
        team.wait(total)
        count, signature, square = numbers_of(total)
        mean = team.signature
        if signature != team.ranks * mean or square != team.ranks * mean * mean:
            raise RankError("the ranks are not in the same step, or were fed other inputs, element types or dims of an example")
        mine = own_count.item()
        return (float(mine != 0) if self.sums else mine * self.alike / count if count else 0.0), count / self.alike

    def kernel(self, X: Tensor, Own: Tensor, Total: Tensor, *, requested: tuple[bool, ...]) -> tuple[Tensor, Tensor | None]:
        share, count = self._share(Own, Total)
        out = X * share if not self.sums else X.clone() if share else torch.zeros_like(X)
        return out, X.new_full((), count) if requested[1] else None

    @gradient("Own", "Total", "Out@GRAD", gives="X@GRAD", like={"X@GRAD": "Out@GRAD"})
    def backward(self, Own: Tensor, Total: Tensor, d_out: Tensor) -> Tensor:
        return d_out * self._share(Own, Total)[0]

    samples = [
        sample(X=f32(3, 2), Own=f64(1, data=[1.0]), Total=f64(3, data=[1.0, 0.0, 0.0])),
        sample(X=f64(), Own=f64(1, data=[1.0]), Total=f64(3, data=[1.0, 0.0, 0.0])),
        sample(X=i64(1), Own=f64(1, data=[1.0]), Total=f64(3, data=[1.0, 0.0, 0.0]), sums=True),
    ]
    rejects = [
        reject(X=f32(3), Own=f64(2), Total=f64(3), says="Own must be one number"),
        reject(X=f32(3), Own=f64(1), Total=f64(2), says="Total must be 3 numbers"),
        reject(X=i64(3), Own=f64(1), Total=f64(3), says="floating", error=TypeMismatchError),
    ]
