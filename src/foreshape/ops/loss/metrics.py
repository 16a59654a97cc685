"""Measures of how good predictions are."""

from __future__ import annotations

from foreshape.dims import Size
from foreshape.operator import NOT_DIFFERENTIABLE, Operator, operand, result
from foreshape.operator.require import require_equal, require_rank
from foreshape.operator.samples import f32, i32, i64, reject, sample
from foreshape.operator.totals import SUM, Total, Totals
from foreshape.spec import FLOATING, INDEX, Spec
from foreshape.values.torch_proxy import Tensor, torch


class Accuracy(Operator):
    """Accuracy = the part of the rows with their Label among Indices; Correct is their number, and Total the number of rows.

    All three have the element type of Out, as PaddlePaddle describes them. Without rows the accuracy is 0.
    """

    type = "accuracy"
    Out = operand(FLOATING, doc="[rows, k]: the k largest scores, read for the element type only")
    Indices = operand(INDEX, doc="[rows, k]: the classes of these scores")
    Label = operand(INDEX, doc="[rows, 1]")
    Accuracy = result(doc="[]")
    Correct = result(doc="[]")
    Total = result(doc="[]")
    gradient = NOT_DIFFERENTIABLE

    def infer_shape(self, Out: Spec, Indices: Spec, Label: Spec) -> tuple[Spec, Spec, Spec]:
        require_rank(2, Indices, "Indices")
        require_rank(2, Out, "Out")
        require_rank(2, Label, "Label", like=(Indices.known_dims[0], 1))
        for axis in (0, 1):
            require_equal(Out.known_dims[axis], Indices.known_dims[axis], "Out must have the dims of Indices", Out=axis, Indices=axis)
        require_equal(Indices.known_dims[0], Label.known_dims[0], "Indices and Label must be of one minibatch", Indices=0, Label=0)
        require_equal(Label.known_dims[1], 1, "Label must have 1 column", Label=1)
        number = Out.dense(())
        return number, number, number

    def totals(self) -> Totals:
        return {"Accuracy": Total(by=("Total",)), "Correct": SUM, "Total": SUM}

    def workspace(self, Out: Spec, Indices: Spec, Label: Spec) -> Size:
        return (1 if Indices.dtype is Label.dtype else 9) * Indices.elements + Label.nbytes

    def kernel(self, Out: Tensor, Indices: Tensor, Label: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        rows = Indices.shape[0]
        correct = (Indices == Label).any(1).sum().to(Out.dtype)
        return correct / max(rows, 1), correct, torch.full((), rows, dtype=Out.dtype, device=Out.device)

    samples = [
        sample(Out=f32(4, 3), Indices=i64(4, 3, high=6), Label=i64(4, 1, high=6)),
        sample(Out=f32(5, 1), Indices=i64(5, 1, high=2), Label=i32(5, 1, high=2)),
        sample(Out=f32(0, 1), Indices=i64(0, 1), Label=i64(0, 1)),
    ]
    rejects = [
        reject(Out=f32(4, 3), Indices=i64(4, 3), Label=i64(5, 1), says="one minibatch"),
        reject(Out=f32(4, 3), Indices=i64(4, 2), Label=i64(4, 1), says="Out must have the dims of Indices"),
        reject(Out=f32(4, 3), Indices=i64(4, 3), Label=i64(4, 2), says="1 column"),
        reject(Out=f32(4), Indices=i64(4), Label=i64(4, 1), says="must have 2 dims"),
    ]
