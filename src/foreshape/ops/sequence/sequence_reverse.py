"""sequence_reverse: every sequence reversed."""

from __future__ import annotations

from foreshape.errors import TypeMismatchError
from foreshape.operator import Operator, operand, result
from foreshape.operator.gradient_slots import GradientSlots
from foreshape.operator.samples import f32, i64, reject, sample
from foreshape.ops.rules.ragged_rules import ragged
from foreshape.spec import Spec
from foreshape.values.offsets import Offsets
from foreshape.values.torch_proxy import Tensor


class SequenceReverse(Operator):
    """Y = the rows of each innermost sequence of X, the last one first."""

    type = "sequence_reverse"
    X = operand(doc="ragged rows")
    Y = result(doc="as X, with its offsets")

    def infer_shape(self, X: Spec) -> Spec:
        ragged(X, "X")
        return X.like()

    def kernel(self, X: Tensor, *, offsets: list[Offsets]) -> Tensor:
        return X.index_select(0, offsets[0].reversal)

    def gradient_ops(self, slots: GradientSlots) -> None:
        slots.add("sequence_reverse", {"X": slots.grad_of_output("Y")}, {"Y": slots.input("X")})

    samples = [
        sample(X=f32(9, 2).ragged([4, 0, 5])),
        sample(X=f32(7, 3).ragged([2, 1], [3, 0, 4])),
        sample(X=i64(4).ragged([1, 3])),
        sample(X=f32(0, 2).ragged([])),
    ]
    rejects = [reject(X=f32(3, 2), says="X must be ragged", error=TypeMismatchError)]
