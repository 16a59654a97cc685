"""Operators that order computation and communication for devices with a queue of each. Here the order of the program is their order."""

from __future__ import annotations

from typing import Any

from foreshape.core.spec import NUMERIC, Spec
from foreshape.core.values.torch_proxy import Tensor
from foreshape.language.operator import NOT_DIFFERENTIABLE, operand, result
from foreshape.language.operator.samples import f32, i64, sample
from foreshape.language.ops.collective.messages import NOTHING
from foreshape.language.ops.collective.sums import Collective, CSyncCommStream


class CWaitComm(CSyncCommStream):
    """Out = X, each once the collectives started on it have ended, as in c_sync_comm_stream."""

    type = "c_wait_comm"


class CSyncCalcStream(Collective):
    """Out = X, once it is computed: here it always is."""

    type = "c_sync_calc_stream"
    way = NOTHING
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, doc="anything")
    Out = result(doc="as X", view_of="X")

    def infer_shape(self, X: Spec) -> Spec:
        return X.like()

    def kernel(self, X: Tensor) -> Tensor:
        return X

    samples = [sample(X=f32(3, 2)), sample(X=i64(4))]


class CWaitCompute(Collective):
    """Out = X, each once it is computed, so that it can be sent: here it always is."""

    type = "c_wait_compute"
    way = NOTHING
    gradient = NOT_DIFFERENTIABLE
    X = operand(NUMERIC, many=True, doc="anything")
    Out = result(many=True, doc="each as its X", view_of="X")

    def infer_shape(self, X: tuple[Spec, ...]) -> Any:
        return tuple(x.like() for x in X)

    def kernel(self, X: list[Tensor]) -> list[Tensor]:
        return X

    samples = [sample(X=[f32(3, 2), i64(4)])]
